"""Pooling, and the mean over an image."""

from . import views
from .moves import copied
from .network import pair, short, unlike
from .views import must, tensor

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
    dimensions = sorted(d % 4 for d in ([dim] if isinstance(dim, int) else dim or ()))
    image = views.channels_last(x)
    if image is not None and not keepdim:
        x, dimensions = image, [2, 3] if dimensions == [1, 2] else []
    is_global = dimensions == [2, 3] and len(tensor(x).shape) == 3
    must(is_global, f"a mean over the dimensions {dim}; lpsgd's is over the image")
    pooled = to.emit(node, "average_pool", [x], shape=(x.shape[0], 1, 1))
    return pooled if keepdim else to.emit(node, "flatten", [pooled])
