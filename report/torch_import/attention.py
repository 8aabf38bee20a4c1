"""Attention as a function, and as the products and the softmax that it consists of."""

import math
from dataclasses import dataclass

import torch

from . import views
from .network import Misread, Output, Unfit
from .views import BATCH, Constant, Probabilities, Scores, View, must, own_numbers

MASK = "a mask that is not causal; in lpsgd a frame attends to all frames, or to itself and those before it"
NEVER = -1e4  # what is added to such a score leaves no probability
TO_ROOT = 1e-5
MOST_DROPPED = 0.999


def probability(p):
    """Of dropout, as lpsgd takes it. Raises Unfit."""
    must(p <= MOST_DROPPED, f"p={p}; lpsgd drops at most {MOST_DROPPED}")
    return float(p)


def keys_of(causal, dropped):
    return {**({"causal": True} if causal else {}), **({"dropout": probability(dropped)} if dropped else {})}


def is_causal(to, mask, frames, allowed):
    """Whether a mask lets a frame see itself and those before it, or all. `allowed`: what a mask of bools has
    for what a frame sees. Raises Unfit."""
    if mask is None:
        return False
    must(isinstance(mask, Constant), "a mask that depends on the input")
    values = mask.value
    is_bool = values.dtype == torch.bool
    seen = values == (allowed if is_bool else 0)
    is_clear = is_bool or bool((seen | (values <= NEVER)).all())
    must(is_clear, "a mask of numbers that are neither 0 nor minus infinity")
    try:
        seen = torch.broadcast_to(seen, (*seen.shape[:-2], frames, frames))
    except RuntimeError:
        raise Unfit(f"a mask of {tuple(values.shape)} for {frames} frames") from None
    to.network.implied |= mask.buffers
    if bool(seen.all()):
        return False
    must(bool((seen == torch.ones(frames, frames, dtype=torch.bool).tril()).all()), MASK)
    return True


def scaled_dot_product(
    to, node, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    query, key, value = (views.of(one) for one in (query, key, value))
    must(attn_mask is None or not is_causal, "attn_mask and is_causal, both")
    factor = query.numbers.shape[-1] ** -0.5 if scale is None else scale
    scores = Scores(query, key, factor, bool(is_causal))
    if attn_mask is not None:
        scores = masked(to, scores, attn_mask, allowed=True)
    return _attention(to, node, Probabilities(scores, dropout_p), value)


def multiply_matrices(to, node, x, y):
    if isinstance(x, Probabilities):
        return _attention(to, node, x, views.of(y))
    x, y = views.of(x), views.of(y)
    keys = View(y.source, y.numbers.transpose(-2, -1), y.moves)
    try:
        heads_of(keys), heads_of(x)
    except Unfit as error:
        what = "a product of matrices that is not queries times keys of attention"
        raise type(error)(f"{what}: {error}") from None
    return Scores(x, keys, 1.0)


def scaled(scores, factor):
    return Scores(scores.queries, scores.keys, scores.factor * factor, scores.causal)


def masked(to, scores, mask, allowed):
    """Where `mask` is `allowed`, or 0 if it is no bool, queries see keys."""
    causal = is_causal(to, mask, scores.keys.numbers.shape[-2], allowed)
    return Scores(scores.queries, scores.keys, scores.factor, scores.causal or causal)


def maybe_add_mask(to, node, x, attn_mask=None):
    if attn_mask is None:
        return x
    must(isinstance(x, Scores), "adds a mask to something else than scores of attention")
    return masked(to, x, attn_mask, allowed=True)


def masked_fill(to, node, x, mask, value):
    must(isinstance(x, Scores), "fills a part of a tensor")
    _must_be_never(to, value)
    return masked(to, x, mask, allowed=False)


def where(to, node, mask, x, y):
    must(isinstance(x, Scores) or isinstance(y, Scores), "chooses between two tensors")
    scores, value = (x, y) if isinstance(x, Scores) else (y, x)
    _must_be_never(to, value)
    return masked(to, scores, mask, allowed=scores is x)


def _must_be_never(to, value):
    number = views.number(to, value)
    is_never = number is not None and number <= NEVER
    what = "a tensor" if number is None else number
    must(is_never, f"fills scores of attention with {what}; lpsgd's with minus infinity")


def softmax(x, dim, dtype):
    dimensions = x.queries.numbers.dim()
    is_last = dim is not None and dim % dimensions == dimensions - 1
    must(is_last and dtype in (None, torch.float32), f"dim={dim}; attention's softmax is over the keys")
    return Probabilities(x)


@dataclass(frozen=True)
class Heads:
    """Where the features of each head lie in a sequence."""

    source: Output
    first: int  # feature
    heads: int
    width: int

    @property
    def form(self):
        return (self.heads, self.width, self.source.shape[0])


def heads_of(view):
    """(BATCH, heads, frames, width) or (BATCH * heads, frames, width) as Heads. Raises Unfit."""
    numbers = view.numbers
    if numbers.dim() == 3 and len(numbers) % BATCH == 0:
        numbers = numbers.unflatten(0, (BATCH, -1))
    if views.is_of_layer(view) and len(view.source.shape) == 2 and numbers.dim() == 4:
        _, heads, frames, width = numbers.shape
        first = int(numbers[0, 0, 0, 0])  # of the sequence's first frame
        if frames == view.source.shape[0] and first + heads * width <= view.source.shape[1]:
            part = own_numbers(view.source)[..., first : first + heads * width]
            if views.same(numbers, part.unflatten(-1, (heads, width)).transpose(1, 2)):
                return Heads(view.source, first, heads, width)
    if views.is_parameter(view):
        views.tensor(view)
    raise Misread(
        f"attention reads {tuple(view.numbers.shape[1:])} that is made of {view.source.shape}; "
        "lpsgd's reads sequences whose features have one head behind another"
    )


def _attention(to, node, probabilities, values):
    scores = probabilities.scores
    parts = [scores.queries, scores.keys, values]
    heads = [heads_of(part) for part in parts]
    first = heads[0]
    shapes = " and ".join(str(tuple(one.numbers.shape[1:])) for one in parts)
    must(all(one.form == first.form for one in heads), f"attention of {shapes}; in lpsgd they have one shape")
    sources = _scaled_by_root(to, scores.factor, first.width, [one.source for one in heads])
    features = first.heads * first.width
    inputs = _inputs(heads, sources, features)
    keys = {"heads": first.heads, **keys_of(scores.causal, probabilities.dropped)}
    out = to.emit(node, "attention", inputs, shape=(first.source.shape[0], features), **keys)
    numbers = own_numbers(out).unflatten(-1, (first.heads, -1)).transpose(1, 2)
    numbers = numbers if scores.queries.numbers.dim() == 4 else numbers.flatten(0, 1)
    return View(out, numbers, ("attention",))


def _scaled_by_root(to, factor, width, sources):
    """The sources without those factors of queries and keys that attention has itself."""
    if not _is_root(factor, width):
        (queries, one), (keys, other) = (to.network.unscaled(source) for source in sources[:2])
        sources, factor = [queries, keys, sources[2]], factor * one * other
    root = f"lpsgd's attention divides them by the root of a head's features, {width}"
    must(_is_root(factor, width), f"scores times {factor:.5g}; {root}")
    return sources


def _is_root(factor, width):
    return math.isclose(factor, width**-0.5, rel_tol=TO_ROOT)


def _inputs(heads, sources, features):
    """One layer that gives queries, keys and values side by side, or three."""
    starts = [one.first for one in heads]
    is_one = sources[0] == sources[1] == sources[2] and sources[0].shape[1] == 3 * features
    if is_one and starts == [0, features, 2 * features]:
        return sources[:1]
    is_three = starts == [0, 0, 0] and all(one.shape[1] == features for one in sources)
    in_order = "its queries, keys and values side by side, in this order"
    must(is_three, f"attention reads parts of one tensor; in lpsgd they are {in_order}")
    return sources
