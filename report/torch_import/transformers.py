"""PyTorch's own modules of transformers, as the layers that they consist of."""

import torch
from torch import nn

from . import attention
from .network import unlike
from .views import must, parameters_of, tensor

SEVERAL = (
    "queries, keys and values of several tensors; "
    "of nn.MultiheadAttention only what attends to itself can be imported"
)


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
    must(x == key == value and module._qkv_same_embed_dim, SEVERAL)
    has_neither = module.bias_k is None and not module.add_zero_attn
    must(has_neither, "add_bias_kv or add_zero_attn; lpsgd's attention has neither")
    must(key_padding_mask is None, "key_padding_mask; lpsgd knows the lengths of sequences")
    dropped = 0 if to.is_evaluating(node) else module.dropout
    causal = attention.is_causal(to, attn_mask, x.shape[0], allowed=False)
    must(causal or not is_causal, "is_causal=True without a causal mask")
    keys = {"heads": module.num_heads, **attention.keys_of(causal, dropped)}
    out = to.emit(node, "attention", [_in_projection(to, node, x, module)], shape=x.shape, **keys)
    out = to.call(node, "out_proj", module.out_proj, out, shape=x.shape)
    return (out, "the probabilities of attention")


def _in_projection(to, node, x, module):
    """Queries, keys and values by one dense layer."""
    frames, features = x.shape
    tensors = parameters_of(module, node.target, "in_proj_weight", "in_proj_bias")
    tensors = {name.removeprefix("in_proj_"): one for name, one in tensors.items()}
    keys = {"units": 3 * features, **unlike({"bias": True}, bias="bias" in tensors)}
    shape = (frames, 3 * features)
    return to.emit_with_tensors(node, "dense", [x], f"{node.target}.in_proj", tensors, shape=shape, **keys)


def encoder_layer(to, node, src, src_mask=None, src_key_padding_mask=None, is_causal=False, *, module):
    x = tensor(src, 2)
    must(src_key_padding_mask is None, "src_key_padding_mask; lpsgd knows the lengths of sequences")

    def one(name, value):
        inner = getattr(module, name)
        shape = (x.shape[0], inner.out_features) if isinstance(inner, nn.Linear) else value.shape
        return to.call(node, name, inner, value, shape=shape)

    def attend(value):
        given = {"shape": x.shape, "attn_mask": src_mask, "is_causal": is_causal}
        out = to.call(node, "self_attn", module.self_attn, value, value, value, **given)
        return one("dropout1", out[0] if isinstance(out, tuple) else out)

    def activate(value):
        if isinstance(module.activation, nn.Module):
            return one("activation", value)
        return to.call_function(node, module.activation, value, shape=value.shape)

    def feed(value):
        return one("dropout2", one("linear2", one("dropout", activate(one("linear1", value)))))

    def plus(first, second):
        return to.call_function(node, torch.add, first, second, shape=x.shape)

    if module.norm_first:
        x = plus(x, attend(one("norm1", x)))
        return plus(x, feed(one("norm2", x)))
    x = one("norm1", plus(x, attend(x)))
    return one("norm2", plus(x, feed(x)))


def encoder(to, node, src, mask=None, src_key_padding_mask=None, is_causal=None, *, module):
    x = tensor(src, 2)
    given = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": is_causal}
    for number, inner in enumerate(module.layers):
        x = to.call(node, f"layers.{number}", inner, x, shape=x.shape, **given)
    return x if module.norm is None else to.call(node, "norm", module.norm, x, shape=x.shape)
