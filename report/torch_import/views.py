"""Values that are no layer's output as it stands: views of one, tensors of the module, and what attention
computes on its way. A view is the numbers of the values that it consists of, so that what it is shows in its
numbers alone, whichever calls made it: view and transpose, or reshape and permute, or chunk."""

import functools
from dataclasses import dataclass

import torch

from .network import WITHOUT_LAYER, Misread, Output, Unfit

BATCH = 2  # samples of the batch that shapes and views are found with
FORMS = {1: "one dimension", 2: "two, a sequence", 3: "three, an image"}
OF_NO_LAYER = "a tensor that belongs to no layer"
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
        return f"{''.join(f'{name}, ' for name in sorted(self.buffers))}{OF_NO_LAYER}"


@dataclass(frozen=True, eq=False)
class View:
    """Some of the values of a layer or of a parameter, in some order."""

    source: object  # an Output or a Parameter
    numbers: torch.Tensor  # of the source's values, in a batch of BATCH samples if it is an Output
    moves: tuple = ()  # names of the calls that made it

    def moved(self, numbers, name):
        return View(self.source, numbers, (*self.moves, name))


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
    dropped: float = 0.0  # the probability that one becomes 0 in training


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
        raise Misread(
            f"a sample of its input has the shape {value.shape}; such a layer takes {FORMS[dimensions]}"
        )
    return value


def number(to, value):
    """A plain number, or the only value of a Constant; or None."""
    if isinstance(value, Constant) and value.value.numel() == 1:
        to.network.implied |= value.buffers
        return value.value.item()
    return value if isinstance(value, (int, float)) else None


def same(numbers, wanted):
    return numbers.shape == wanted.shape and torch.equal(numbers, wanted)


def is_of_layer(value):
    """Whether it is a view of a layer's output."""
    return isinstance(value, View) and isinstance(value.source, Output)


def is_parameter(value):
    """Whether it is a view of a tensor of the module."""
    return isinstance(value, View) and isinstance(value.source, Parameter)


def is_whole_parameter(value):
    return is_parameter(value) and same(value.numbers, own_numbers(value.source))


def of_parameter(parameter):
    return View(parameter, own_numbers(parameter))


def parameters_of(module, path, *names):
    """The module's tensors of these names that are not None, by their names. `path`: of the module."""
    found = {name: getattr(module, name) for name in names}
    return {name: Parameter(f"{path}.{name}", one) for name, one in found.items() if one is not None}


def ordered_as(output, like):
    """The output of a layer that read `like`, an Output, or the source of `like`, a View."""
    return View(output, like.numbers, like.moves) if isinstance(like, View) else output


def _refuse(view):
    """Why no layer can read it."""
    if isinstance(view.source, Parameter):
        raise Unfit(f"reads {view.source.name}, {OF_NO_LAYER}")
    if channels_last(view) is not None:
        readers = "a linear layer, layer_norm and activations"
        raise Misread(f"reads an image whose channels are last; in lpsgd {readers} do")
    raise Misread(f"reads what {', '.join(view.moves)} made of the output of a layer; {WITHOUT_LAYER}")


def channels_last(value):
    """The image that it is, with its channels last, or None."""
    if not is_of_layer(value) or len(value.source.shape) != 3:
        return None
    return value.source if same(value.numbers, own_numbers(value.source).permute(0, 2, 3, 1)) else None


def with_channels_last(image):
    return View(image, own_numbers(image).permute(0, 2, 3, 1), ("permute",))


def by_channel(value, shape, channels_last=False):
    """The source of a view that has one value for each channel, and gives it to all pixels of an image; or
    None. `shape`: of the image, before its channels were put last."""
    channels = shape[0]
    count = own_numbers(value.source).numel()
    samples = 1 if is_parameter(value) else BATCH
    if count != samples * channels:
        return None
    if samples == BATCH and any(size != 1 for size in value.source.shape[1:]):
        return None
    wanted = _counted((samples, channels, 1, 1)).expand(BATCH, *shape)
    wanted = wanted.permute(0, 2, 3, 1) if channels_last else wanted
    return value.source if _broadcasts_to(value.numbers, wanted) else None


def frames_of(view, shape):
    """The Parameter, if it has a vector for each frame of a sequence of this shape, or None."""
    frames, features = shape
    if not is_parameter(view):
        return None
    own = own_numbers(view.source)
    if own.numel() % features != 0 or own.numel() < frames * features:
        return None
    wanted = own.reshape(-1, features)[:frames].expand(BATCH, *shape)
    return view.source if _broadcasts_to(view.numbers, wanted) else None


def is_token(value, features):
    """Whether it is a Parameter of one frame, the same for each sample."""
    if not is_parameter(value) or value.source.tensor.numel() != features:
        return False
    return same(value.numbers, _counted((1, 1, features)).expand(BATCH, 1, features))


def _broadcasts_to(numbers, wanted):
    try:
        return same(torch.broadcast_to(numbers, wanted.shape), wanted)
    except RuntimeError:
        return False
