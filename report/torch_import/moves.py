"""What only moves values: view, permute, chunk, indices and the like."""

from . import views
from .network import WITHOUT_LAYER, Output
from .views import BATCH, View, must, tensor

NAMES = (  # of functions of torch, of methods, or of both
    *("reshape", "reshape_as", "view", "view_as", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
    *("transpose", "swapaxes", "swapdims", "movedim", "t", "chunk", "split", "tensor_split", "unbind"),
    *("select", "narrow", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
)


def name_of(node):
    """The name of the function or method that it calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def move(to, node, x, *args, **keywords):
    """The same values in another shape or order, or some of them."""
    view = views.of(x)
    numbers = to.numbers(node, view.numbers, args, keywords)
    if isinstance(numbers, (tuple, list)):
        return tuple(view.moved(one, name_of(node)) for one in numbers)
    return settled(to, node, view.moved(numbers, name_of(node)))


def settled(to, node, view):
    """A view as the layer that gives it, if there is one."""
    source, numbers = view.source, view.numbers
    if not isinstance(source, Output) or numbers.shape[:1] != (BATCH,):
        return view
    own = views.own_numbers(source)
    if views.same(numbers, own):
        return source
    if len(source.shape) == 3 and views.same(numbers, own.flatten(1)):
        return to.emit(node, "flatten", [source])
    if len(source.shape) == 3 and views.same(numbers, own.flatten(2).transpose(1, 2)):
        return to.emit(node, "to_sequence", [source])
    if len(source.shape) == 2 and numbers.shape[1:] == source.shape[1:]:
        frame = int(numbers[0, 0]) // source.shape[1]
        if frame < source.shape[0] and views.same(numbers, own[:, frame]):
            return to.emit(node, "select_frame", [source], index=frame)
    return view


def item(to, node, x, index):
    """Of a tuple, such as what an LSTM gives. Or a part of a tensor."""
    if not isinstance(x, tuple):
        parts = index if isinstance(index, tuple) else (index,)
        depends = any(isinstance(one, (Output, View)) for one in parts)
        must(not depends, "takes a part of a tensor that depends on the input")
        return move(to, node, x, index)
    one = x[index]
    must(not isinstance(one, str), f"reads {one}")
    if isinstance(one, tuple):
        return one
    return settled(to, node, one) if isinstance(one, View) else tensor(one)


def attribute(to, node, x, name):
    must(name in ("T", "mT"), f"{name}: {WITHOUT_LAYER}")
    return move(to, node, x, name)


def nothing(to, node, x, *_, **__):
    return x if isinstance(x, views.BETWEEN) else tensor(x)


def copied(x):
    """The same values in memory of their own: what works in place there changes nothing here."""
    return Output(x.layer, x.shape)


def copy(to, node, x, memory_format=None):
    return x if isinstance(x, View) else copied(tensor(x))
