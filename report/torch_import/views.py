"""Values that are no layer's output as it stands: views of one, tensors of the module, and what attention computes on its
way. A view is the numbers of the values that it consists of, so that what it is shows in its numbers alone, whichever
calls made it: view and transpose, or reshape and permute, or chunk."""

import functools
from dataclasses import dataclass

import torch

from .network import Misread, Output, Unfit

BATCH = 2  # samples of the batch that shapes and views are found with
NO_ATTENTION = "what attention computes on its way; softmax and the product with the values are to follow"


@dataclass(frozen=True, eq=False)
class Parameter:
    """Of the module, by its name there."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that depends neither on the input nor on parameters, such as a mask."""

    value: torch.Tensor
    buffers: frozenset  # names of those that it is made of

    def __str__(self):
        return f"{''.join(f'{name}, ' for name in sorted(self.buffers))}a tensor that belongs to no layer"


@dataclass(frozen=True, eq=False)
class View:
    """Some of the values of a layer or of a parameter, in some order."""

    source: object  # an Output or a Parameter
    numbers: torch.Tensor  # of the source's values, in a batch of BATCH samples if it is an Output
    factor: float = 1.0  # which the values are multiplied with
    moves: tuple = ()  # names of the calls that made it

    def moved(self, numbers, name):
        return View(self.source, numbers, self.factor, (*self.moves, name))


@dataclass(frozen=True, eq=False)
class Scores:
    """Products of queries and keys, (BATCH, heads, frames, frames)."""

    queries: View
    keys: View  # as the queries are, not transposed
    factor: float
    causal: bool = False


@dataclass(frozen=True, eq=False)
class Probabilities:
    """The softmax of Scores."""

    scores: Scores


BETWEEN = (View, Scores, Probabilities)  # what a call gives that is a part of a layer


def must(holds, what):
    if not holds:
        raise Unfit(what)


@functools.cache
def _counted(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)


def own_numbers(source):
    """Of the source as it stands."""
    return _counted(tuple(source.tensor.shape) if isinstance(source, Parameter) else (BATCH, *source.shape))


def of(value):
    """A layer's output, or a tensor, as a view."""
    if isinstance(value, Constant):
        raise Unfit(f"reads {value}")
    if isinstance(value, (Scores, Probabilities)):
        raise Unfit(f"reads {NO_ATTENTION}")
    if not isinstance(value, (Output, View)):
        raise Unfit(f"an input that is not the output of a layer: {type(value).__name__}")
    return value if isinstance(value, View) else View(value, own_numbers(value))


def tensor(value, dimensions=None):
    """The output of a layer, of so many dimensions a sample."""
    if not isinstance(value, Output):
        _refuse(of(value))
    if dimensions is not None and len(value.shape) != dimensions:
        raise Misread(f"a sample of its input has the shape {value.shape}; such a layer takes {dimensions} dimensions")
    return value


def number(to, value):
    """A plain number, or the only value of a Constant; or None."""
    if isinstance(value, Constant) and value.value.numel() == 1:
        to.network.implied |= value.buffers
        return value.value.item()
    return value if isinstance(value, (int, float)) else None


def of_parameter(parameter):
    return View(parameter, own_numbers(parameter))


def same(numbers, wanted):
    return numbers.shape == wanted.shape and torch.equal(numbers, wanted)


def _refuse(view):
    """Why no layer can read it."""
    if isinstance(view.source, Parameter):
        raise Unfit(f"reads {view.source.name}, a tensor that belongs to no layer")
    if channels_last(view) is not None:
        raise Misread("reads an image whose channels are last; in lpsgd a linear layer, layer_norm and activations do")
    made = f"{', '.join(view.moves)} and a factor" if view.factor != 1 else ", ".join(view.moves)
    raise Misread(f"reads what {made} made of the output of a layer; no layer of lpsgd computes it")


def channels_last(value):
    """The image that it is, with its channels last, or None."""
    is_image = isinstance(value, View) and isinstance(value.source, Output) and len(value.source.shape) == 3
    if not is_image or value.factor != 1:
        return None
    return value.source if same(value.numbers, own_numbers(value.source).permute(0, 2, 3, 1)) else None


def by_channel(value, shape):
    """What has one value for each channel, and gives it to all pixels of an image of this shape; or None. `value`: a View of
    an Output or of a Parameter."""
    channels = shape[0]
    count = own_numbers(value.source).numel()
    is_parameter = isinstance(value.source, Parameter)
    if count != (channels if is_parameter else BATCH * channels) or value.factor != 1:
        return None
    if not is_parameter and any(size != 1 for size in value.source.shape[1:]):
        return None
    wanted = _counted((1 if is_parameter else BATCH, channels, 1, 1)).expand(BATCH, *shape)
    return value.source if _broadcasts_to(value.numbers, wanted) else None


def frames_of(view, shape):
    """The Parameter, if it has a vector for each frame of a sequence of this shape, or None."""
    frames, features = shape
    if not isinstance(view.source, Parameter) or view.factor != 1:
        return None
    own = own_numbers(view.source)
    if own.numel() % features != 0 or own.numel() < frames * features:
        return None
    wanted = own.reshape(-1, features)[:frames].expand(BATCH, *shape)
    return view.source if _broadcasts_to(view.numbers, wanted) else None


def is_token(value, features):
    """Whether it is one frame, the same for each sample, of a Parameter."""
    if not isinstance(value, View) or not isinstance(value.source, Parameter) or value.factor != 1:
        return False
    return same(value.numbers, _counted((1, 1, features)).expand(BATCH, 1, features))


@dataclass(frozen=True)
class Heads:
    """Where the features of each head lie in a sequence."""

    source: Output
    first: int  # feature
    heads: int
    width: int


def heads_of(view):
    """(BATCH, heads, frames, width) or (BATCH, frames, width) as Heads. Raises Unfit."""
    numbers = view.numbers.unsqueeze(1) if view.numbers.dim() == 3 else view.numbers
    if isinstance(view.source, Output) and len(view.source.shape) == 2 and numbers.dim() == 4:
        _, heads, frames, width = numbers.shape
        own = own_numbers(view.source)
        first = int(numbers[0, 0, 0, 0])  # of the sequence's first frame
        if frames == view.source.shape[0] and first + heads * width <= view.source.shape[1]:
            part = own[..., first : first + heads * width]
            if same(numbers, part.unflatten(-1, (heads, width)).transpose(1, 2)):
                return Heads(view.source, first, heads, width)
    if isinstance(view.source, Parameter):
        _refuse(view)
    raise Misread(
        f"attention reads {tuple(view.numbers.shape[1:])} that is made of {view.source.shape}; "
        "lpsgd's reads sequences whose features have one head behind another"
    )


def by_head(output, heads, like):
    """The output of attention, ordered as the numbers `like` are."""
    numbers = own_numbers(output).unflatten(-1, (heads, -1)).transpose(1, 2)
    return View(output, numbers if like.dim() == 4 else numbers.squeeze(1))


def _broadcasts_to(numbers, wanted):
    try:
        return same(torch.broadcast_to(numbers, wanted.shape), wanted)
    except RuntimeError:
        return False
