"""Pooling, and the mean over an image."""

from . import views
from .moves import copied, settled
from .network import Misread, pair, short, unlike
from .views import View, must, tensor

FRAMES = "a mean over the frames of a sequence; lpsgd has no layer for it, but for one frame: x[:, 0]"
NO_INDICES = "return_indices=True; lpsgd's pooling gives only values"


def _window(kernel, stride, padding, ceil_mode):
    stride = kernel if stride is None or stride == [] else stride
    keys = unlike(
        {"stride": short(kernel), "pad": 0, "ceil_mode": False},
        stride=short(stride),
        pad=short(padding),
        ceil_mode=bool(ceil_mode),
    )
    return {"kernel": short(kernel), **keys}


def max_pool(
    to, node, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    must(pair(dilation) == (1, 1), f"dilation={dilation}; lpsgd's pooling has none")
    must(not return_indices, NO_INDICES)
    return to.emit(node, "max_pool", [tensor(x, 3)], **_window(kernel_size, stride, padding, ceil_mode))


def average_pool(
    to,
    node,
    x,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    must(divisor_override is None, f"divisor_override={divisor_override}; lpsgd divides by the window's size")
    counted = unlike({"count_pad": True}, count_pad=bool(count_include_pad))
    keys = _window(kernel_size, stride, padding, ceil_mode)
    return to.emit(node, "average_pool", [tensor(x, 3)], **keys, **counted)


def adaptive(kind):
    def convert(to, node, x, output_size, return_indices=False):
        must(not return_indices, NO_INDICES)
        size = tensor(x, 3).shape[1:]
        wanted = tuple(s if o is None else o for s, o in zip(size, pair(output_size)))
        if wanted == size:
            return copied(x)
        if wanted == (1, 1):
            return to.emit(node, kind, [x])
        must(
            all(s % w == 0 for s, w in zip(size, wanted)),
            f"pools {size} to {wanted} with windows of several sizes; lpsgd's have one size",
        )
        return to.emit(node, kind, [x], kernel=short([s // w for s, w in zip(size, wanted)]))

    return convert


def mean(to, node, x, dim=None, keepdim=False):
    """Over height and width: global average pooling."""
    view = views.of(tensor(x) if views.is_parameter(x) else x)
    sizes, own = view.numbers.shape, views.own_numbers(view.source)
    over = {d % len(sizes) for d in ([dim] if isinstance(dim, int) else dim or range(len(sizes)))}
    rest = [d for d in range(len(sizes)) if d not in over]
    averaged = view.numbers.permute(*rest, *over).flatten(len(rest)).sort().values
    must(0 in over or not _is_of_frames(view.source, averaged), FRAMES)
    if own.dim() != 4 or not views.same(averaged, own.flatten(2)):
        dimensions = "all dimensions" if dim is None else f"the dimensions {dim}"
        raise Misread(f"a mean over {dimensions}; lpsgd's is over the image")
    pooled = to.emit(node, "average_pool", [view.source], shape=(own.shape[1], 1, 1))
    shape = [1 if d in over else size for d, size in enumerate(sizes) if keepdim or d not in over]
    return settled(to, node, View(pooled, views.own_numbers(pooled).reshape(shape), ("mean",)))


def _is_of_frames(source, averaged):
    """Whether the source is a sequence, and the values of each mean are of one feature."""
    if len(source.shape) != 2:
        return False
    features = averaged % source.shape[1]
    return bool((features == features[..., :1]).all())
