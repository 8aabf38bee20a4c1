"""Attention: PyTorch's modules, the function, and the products and the softmax that it consists of."""

import math

import torch
from torch import nn

from . import views
from .network import Unfit
from .views import Parameter, Probabilities, Scores, View, must, tensor

DROPOUT = "no layer of lpsgd drops attention's probabilities; 0 can be imported, often by --with dropout=0 or attention_dropout=0"
MASK = "a mask that is not causal; in lpsgd a frame attends to all frames, or to itself and those before it"
NEVER = -1e4  # what is added to such a score leaves no probability
TO_ROOT = 1e-5


def no_dropout(probability):
    must(probability == 0, f"dropout={probability}; {DROPOUT}")


# PyTorch's modules.


def multi_head(
    to,
    node,
    query,
    key,
    value,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    average_attn_weights=True,
    is_causal=False,
    *,
    module,
):
    x = tensor(query, 2)
    must(module.batch_first, "batch_first=False; here the samples come first")
    must(
        x == key == value and module._qkv_same_embed_dim,
        "queries, keys and values of several tensors; of nn.MultiheadAttention only what attends to itself can be imported",
    )
    must(module.bias_k is None and not module.add_zero_attn, "add_bias_kv or add_zero_attn; lpsgd's attention has neither")
    must(key_padding_mask is None, "key_padding_mask; lpsgd knows the lengths of sequences")
    if not to.is_evaluating(node):
        no_dropout(module.dropout)
    causal = _is_causal(to, attn_mask, x.shape[0], allowed=False)
    must(causal or not is_causal, "is_causal without its mask")
    (frames, features), name = x.shape, node.target
    products = to.emit_with_tensors(
        node,
        "dense",
        [x],
        f"{name}.in_proj",
        _present(weight=(f"{name}.in_proj_weight", module.in_proj_weight), bias=(f"{name}.in_proj_bias", module.in_proj_bias)),
        shape=(frames, 3 * features),
        units=3 * features,
        **({} if module.in_proj_bias is not None else {"bias": False}),
    )
    out = to.emit(node, "attention", [products], shape=x.shape, heads=module.num_heads, **_keys(causal))
    out = to.call(node, "out_proj", module.out_proj, out, shape=x.shape)
    return (out, "the probabilities of attention")


def _present(**tensors):
    return {key: Parameter(name, one) for key, (name, one) in tensors.items() if one is not None}


def _keys(causal):
    return {"causal": True} if causal else {}


def encoder_layer(to, node, src, src_mask=None, src_key_padding_mask=None, is_causal=False, *, module):
    x = tensor(src, 2)
    must(src_key_padding_mask is None, "src_key_padding_mask; lpsgd knows the lengths of sequences")

    def one(name, value):
        inner = getattr(module, name)
        shape = (x.shape[0], inner.out_features) if isinstance(inner, nn.Linear) else value.shape
        return to.call(node, name, inner, value, shape=shape)

    def attend(value):
        given = {"shape": x.shape, "attn_mask": src_mask, "is_causal": is_causal}
        return one("dropout1", to.call(node, "self_attn", module.self_attn, value, value, value, **given)[0])

    def feed(value):
        value = one("linear1", value)
        if isinstance(module.activation, nn.Module):
            value = one("activation", value)
        else:
            value = to.call_function(node, module.activation, value, shape=value.shape)
        return one("dropout2", one("linear2", one("dropout", value)))

    def plus(first, second):
        return to.call_function(node, torch.add, first, second, shape=x.shape)

    if module.norm_first:
        x = plus(x, attend(one("norm1", x)))
        return plus(x, feed(one("norm2", x)))
    x = one("norm1", plus(x, attend(x)))
    return one("norm2", plus(x, feed(x)))


def encoder(to, node, src, mask=None, src_key_padding_mask=None, is_causal=None, *, module):
    x = tensor(src, 2)
    given = {"shape": x.shape, "src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": is_causal}
    for number, inner in enumerate(module.layers):
        x = to.call(node, f"layers.{number}", inner, x, **given)
    return x if module.norm is None else to.call(node, "norm", module.norm, x, shape=x.shape)


# The function, and its parts.


def scaled_dot_product(
    to, node, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    no_dropout(dropout_p)
    query, key, value = (views.of(one) for one in (query, key, value))
    must(attn_mask is None or not is_causal, "a mask and is_causal")
    frames = key.numbers.shape[-2]
    causal = bool(is_causal) or _is_causal(to, attn_mask, frames, allowed=True)
    factor = query.numbers.shape[-1] ** -0.5 if scale is None else scale
    return _attention(to, node, Probabilities(Scores(query, key, factor, causal)), value)


def multiply_matrices(to, node, x, y):
    if isinstance(x, Probabilities):
        return _attention(to, node, x, views.of(y))
    x, y = views.of(x), views.of(y)
    transposed = View(y.source, y.numbers.transpose(-2, -1), y.factor, y.moves)
    try:
        views.heads_of(x), views.heads_of(transposed)
    except Unfit as error:
        raise type(error)(f"a product of matrices that is not queries times keys of attention: {error}") from None
    return Scores(x, transposed, 1.0)


def scaled(scores, factor):
    return Scores(scores.queries, scores.keys, scores.factor * factor, scores.causal)


def masked(to, scores, mask, allowed):
    """`mask`: a Constant; where it is `allowed`, or 0 if it is no bool, queries see keys."""
    causal = _is_causal(to, mask, scores.queries.numbers.shape[-2], allowed)
    return Scores(scores.queries, scores.keys, scores.factor, scores.causal or causal)


def masked_fill(to, node, x, mask, value):
    must(isinstance(x, Scores), "fills a part of a tensor")
    must(isinstance(value, (int, float)) and value <= NEVER, f"fills scores of attention with {value}; lpsgd's with minus infinity")
    return masked(to, x, mask, allowed=False)


def where(to, node, mask, x, y):
    must(isinstance(x, Scores), "chooses between two tensors")
    value = views.number(to, y)
    must(value is not None and value <= NEVER, "fills scores of attention with something else than minus infinity")
    return masked(to, x, mask, allowed=True)


def softmax(x, dim, dtype):
    dimensions = x.queries.numbers.dim()
    must(dim is not None and dim % dimensions == dimensions - 1 and dtype in (None, torch.float32),
         f"dim={dim}; attention's softmax is over the keys")
    return Probabilities(x)


def _attention(to, node, probabilities, values):
    scores = probabilities.scores
    parts = [scores.queries, scores.keys, values]
    factor = scores.factor * scores.queries.factor * scores.keys.factor
    heads = [views.heads_of(part) for part in parts]
    sources, (first, *others) = [one.source for one in heads], heads
    must(
        all((one.heads, one.width, one.source.shape[0]) == (first.heads, first.width, first.source.shape[0]) for one in others),
        f"attention of {' and '.join(str(tuple(one.numbers.shape[1:])) for one in parts)}; in lpsgd they have one shape",
    )
    must(
        math.isclose(factor, first.width**-0.5, rel_tol=TO_ROOT) and values.factor == 1,
        f"scores times {factor * values.factor:.5g}; lpsgd's attention divides them by the root of a head's features, {first.width}",
    )
    features = first.heads * first.width
    starts = [one.first for one in heads]
    if starts == [0, features, 2 * features] and sources[0] == sources[1] == sources[2] and sources[0].shape[1] == 3 * features:
        inputs = sources[:1]
    else:
        must(
            all(one.first == 0 and one.source.shape[1] == features for one in heads),
            "attention reads parts of one tensor; in lpsgd they are its queries, keys and values side by side, in this order",
        )
        inputs = sources
    shape = (first.source.shape[0], features)
    out = to.emit(node, "attention", inputs, shape=shape, heads=first.heads, **_keys(scores.causal))
    return views.by_head(out, first.heads, scores.queries.numbers)


def _is_causal(to, mask, frames, allowed):
    """Of a mask: whether it lets a frame see itself and those before it, or all. `allowed`: what it says of what a frame
    sees, if it is of bools. Raises Unfit."""
    if mask is None:
        return False
    must(isinstance(mask, views.Constant), "a mask that depends on the input")
    values = mask.value
    seen = values == allowed if values.dtype == torch.bool else values == 0
    must(values.dtype == torch.bool or bool((seen | (values <= NEVER)).all()), "a mask of numbers that are neither 0 nor minus infinity")
    try:
        seen = torch.broadcast_to(seen, (*seen.shape[:-2], frames, frames))
    except RuntimeError:
        raise Unfit(f"a mask of {tuple(values.shape)} for {frames} frames") from None
    to.network.implied |= mask.buffers
    if bool(seen.all()):
        return False
    must(bool((seen == torch.ones(frames, frames, dtype=torch.bool).tril()).all()), MASK)
    return True
