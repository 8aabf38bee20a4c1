"""Pooling, and means over an image or a sequence."""

from . import views
from .moves import copied, settled
from .network import Misread, pair, short, unlike
from .views import View, must, tensor

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
    """Over an image, its height and width, or over the frames of a sequence."""
    view = views.of(tensor(x) if views.is_parameter(x) else x)
    sizes, own = view.numbers.shape, views.own_numbers(view.source)
    over = {d % len(sizes) for d in ([dim] if isinstance(dim, int) else dim or range(len(sizes)))}
    rest = [d for d in range(len(sizes)) if d not in over]
    averaged = view.numbers.permute(*rest, *over).flatten(len(rest)).sort().values
    is_image = own.dim() == 4
    if own.dim() not in (3, 4) or not views.same(averaged, own.flatten(2) if is_image else own.mT):
        dimensions = "all dimensions" if dim is None else f"the dimensions {dim}"
        known = "lpsgd's are over an image, or over all frames of a sequence"
        raise Misread(f"a mean over {dimensions}; {known}")
    kind, shape = ("average_pool", (own.shape[1], 1, 1)) if is_image else ("mean_frames", own.shape[2:])
    out = to.emit(node, kind, [view.source], shape=shape)
    sizes = [1 if d in over else size for d, size in enumerate(sizes) if keepdim or d not in over]
    return settled(to, node, View(out, views.own_numbers(out).reshape(sizes), ("mean",)))
