"""Sums, products and concatenations: of layers' outputs, with constants, and with tensors of the module,
which become positions, factors of channels and class tokens."""

import torch

from . import attention, views
from .activations import elementwise
from .moves import copied
from .network import Misread, Output, Unfit
from .views import OF_NO_LAYER, Constant, Scores, View, is_parameter, must, tensor


def add(to, node, x, y, alpha=1):
    must(alpha == 1, f"alpha={alpha}; lpsgd adds without factors")
    if isinstance(x, Constant) or is_parameter(x):
        x, y = y, x
    if isinstance(x, Scores) and isinstance(y, Constant):
        return attention.masked(to, x, y, allowed=True)
    if isinstance(x, Output) and is_parameter(y):
        return _add_positions(to, node, x, y)
    if isinstance(x, Output) and isinstance(y, Constant):
        return _add_fixed_positions(to, node, x, y)
    for one in (x, y):
        must(isinstance(one, (Output, View)), "adds something that is not the output of a layer")
    return _of_two_views(to, node, "add", x, y) or to.emit(node, "add", _of_one_shape(tensor(x), tensor(y)))


def _of_one_shape(x, y):
    if x.shape != y.shape:
        raise Misread(f"adds {x.shape} and {y.shape}; lpsgd adds equal shapes")
    return [x, y]


def _of_two_views(to, node, kind, x, y):
    """The layer of two views that order their sources alike, or None."""
    is_alike = (
        views.is_of_layer(x)
        and views.is_of_layer(y)
        and x.source.shape == y.source.shape
        and views.same(x.numbers, y.numbers)
    )
    if not is_alike:
        return None
    return views.ordered_as(to.emit(node, kind, [x.source, y.source], shape=x.source.shape), x)


def _add_positions(to, node, x, y):
    """A trained vector for each frame."""
    table = views.frames_of(y, x.shape) if len(x.shape) == 2 else None
    what = f"adds {y.source.name}, {OF_NO_LAYER}; lpsgd adds one vector for each frame"
    must(table is not None, what)
    features = x.shape[1]
    frames = table.tensor.numel() // features
    shapes = {"weight": (frames, features)}
    keys = {"frames": frames, **({} if table.tensor.requires_grad else {"trained": False})}
    return to.emit_with_tensors(node, "position", [x], _layer_of(table), {"weight": table}, shapes, **keys)


def _add_fixed_positions(to, node, x, constant):
    """A vector for each frame that is not trained, of a buffer."""
    what = f"adds {constant}; lpsgd adds one vector for each frame, of a parameter or a buffer"
    must(len(x.shape) == 2 and len(constant.buffers) == 1, what)
    frames, features = x.shape
    (name,) = constant.buffers
    must(not name.startswith("_tensor_constant"), f"adds {OF_NO_LAYER}, made in forward; lpsgd adds parameters and buffers")
    table = to.buffer(name)
    must(table.is_floating_point(), f"adds {name}, which is of {table.dtype}; lpsgd adds numbers of floating point")
    must(table.is_contiguous() and table.numel() % features == 0 and table.numel() >= frames * features, what)
    own = table.reshape(-1, features)
    try:
        shown = torch.broadcast_to(constant.value, (views.BATCH, frames, features))
    except RuntimeError:
        raise Unfit(what) from None
    must(bool((shown == own[:frames]).all()), what)
    weight, shapes = views.Parameter(name, table), {"weight": tuple(own.shape)}
    keys = {"frames": len(own), "trained": False}
    return to.emit_with_tensors(node, "position", [x], _layer_of(weight), {"weight": weight}, shapes, **keys)


def _layer_of(parameter):
    """The layer whose only tensor it is, its weight."""
    return parameter.name.removesuffix(".weight")


def multiply(to, node, x, y):
    if not isinstance(x, (Output, View, Scores)) or is_parameter(x):
        x, y = y, x
    factor = views.number(to, y)
    if factor is not None and isinstance(x, Scores):
        return attention.scaled(x, factor)
    if factor is not None:
        return elementwise(to, node, "scale", x, factor=float(factor))
    for one in (x, y):
        must(not isinstance(one, Constant), f"multiplies by {one}")
    is_known = isinstance(x, (Output, View)) and isinstance(y, (Output, View))
    must(is_known, "multiplies by something that is neither a layer's output nor a constant")
    return _scale_channels(to, node, x, y) if is_parameter(y) else _product(to, node, x, y)


def _scale_channels(to, node, x, y):
    """A trained factor for each channel: a convolution of each channel by itself with one weight."""
    image = views.channels_last(x) if isinstance(x, View) else x
    scale = None
    if image is not None and len(image.shape) == 3:
        scale = views.by_channel(y, image.shape, channels_last=image is not x)
    what = f"multiplies by {y.source.name}, {OF_NO_LAYER}; lpsgd's factors are of an image's channels"
    must(scale is not None, what)
    channels = image.shape[0]
    out = to.emit_with_tensors(
        node,
        "conv",
        [image],
        _layer_of(scale),
        {"weight": scale},
        {"weight": (channels, 1, 1, 1)},
        image.shape,
        filters=channels,
        kernel=1,
        groups=channels,
        bias=False,
    )
    return views.ordered_as(out, x)


def _product(to, node, x, y):
    if isinstance(x, Output) and isinstance(y, Output) and x.shape == y.shape:
        return to.emit(node, "multiply", [x, y])
    both = _of_two_views(to, node, "multiply", x, y)
    if both is not None:
        return both
    for image, gate in ((x, y), (y, x)):
        if isinstance(image, Output) and len(image.shape) == 3:
            own = views.by_channel(views.of(gate), image.shape)
            if own is not None:
                inputs = [own if one is gate else one for one in (x, y)]
                return to.emit(node, "multiply", inputs, shape=image.shape)
    x, y = tensor(x), tensor(y)
    lpsgd = "lpsgd multiplies equal shapes, or an image by one value for each channel"
    raise Misread(f"multiplies {x.shape} and {y.shape}; {lpsgd}")


def divide(to, node, x, y, rounding_mode=None):
    y = views.number(to, y)
    must(y is not None and y != 0 and rounding_mode is None, "divides by something that is no constant")
    return multiply(to, node, x, 1 / y)


def concatenate(to, node, tensors, dim=0):
    if any(is_parameter(one) for one in tensors):
        *tokens, last = tensors
        return _put_tokens_before(to, node, tokens, last, dim)
    parts = [tensor(one) for one in tensors]
    dimensions = len(parts[0].shape) + 1
    is_joined = dim % dimensions == 1 and dimensions in (2, 4)
    must(is_joined, f"joins the dimension {dim}; lpsgd joins channels or features")
    return copied(parts[0]) if len(parts) == 1 else to.emit(node, "concat", parts)


def _put_tokens_before(to, node, tokens, x, dim):
    """A sequence with trained frames in front of it."""
    is_sequence = isinstance(x, Output) and len(x.shape) == 2 and dim in (1, -2)
    frames, features = x.shape if is_sequence else (0, 0)
    is_before = is_sequence and all(views.is_token(one, features) for one in tokens)
    must(is_before, f"joins {OF_NO_LAYER}; lpsgd's are frames in front of a sequence")
    for one in reversed(tokens):
        frames += 1
        tensors, shapes = {"weight": one.source}, {"weight": (features,)}
        layer = _layer_of(one.source)
        x = to.emit_with_tensors(node, "class_token", [x], layer, tensors, shapes, (frames, features))
    return x
