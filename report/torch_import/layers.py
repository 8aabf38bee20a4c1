"""Which layer of a network file computes what a module or a function of PyTorch computes."""

import operator

import torch
from torch import nn
from torch.nn import functional

from . import attention, views
from .network import Misread, Output, Unfit
from .views import BATCH, Constant, Parameter, Probabilities, Scores, View, must, tensor

WITHOUT_LAYER = "no layer of lpsgd computes it"
ACTIVATIONS = {
    "relu": (nn.ReLU, torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"),
    "sigmoid": (nn.Sigmoid, torch.sigmoid, functional.sigmoid, "sigmoid", "sigmoid_"),
    "tanh": (nn.Tanh, torch.tanh, functional.tanh, "tanh", "tanh_"),
    "relu6": (nn.ReLU6, functional.relu6),
    "hardsigmoid": (nn.Hardsigmoid, functional.hardsigmoid),
    "hardswish": (nn.Hardswish, functional.hardswish),
    "silu": (nn.SiLU, functional.silu),
}
MOST_DROPPED = 0.999
AFFINE = "without a weight or a bias; lpsgd's layer_norm trains both"
MOVES = (  # what only moves values, as functions and methods
    *("reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "swapaxes", "swapdims", "movedim"),
    *("chunk", "split", "tensor_split", "unbind", "select", "narrow", "t", "broadcast_to", "reshape_as"),
)


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def short(value):
    """As the network file writes a pair: one number where both are equal."""
    first, second = pair(value)
    return first if first == second else [first, second]


def unlike(defaults, **keys):
    """The keys that differ from a layer's defaults."""
    return {key: value for key, value in keys.items() if value != defaults[key]}


# Modules with parameters.


def conv(to, node, x, module):
    must(pair(module.dilation) == (1, 1), f"dilation={module.dilation}; lpsgd's convolutions have none")
    must(module.padding_mode == "zeros", f"padding_mode='{module.padding_mode}'; lpsgd pads with zeros")
    keys = unlike(
        {"stride": 1, "pad": 0, "groups": 1, "bias": True},
        stride=short(module.stride),
        pad=short(_padding(module)),
        groups=module.groups,
        bias=module.bias is not None,
    )
    return to.emit_with_parameters(
        node,
        "conv",
        [tensor(x, 3)],
        module,
        ("weight", "bias"),
        filters=module.out_channels,
        kernel=short(module.kernel_size),
        **keys,
    )


def _padding(module):
    if module.padding == "valid":
        return 0
    if module.padding != "same":
        return module.padding
    must(all(k % 2 for k in module.kernel_size), f"padding='same' of an even kernel, {module.kernel_size}: its two sides differ")
    return tuple(k // 2 for k in module.kernel_size)


def linear(to, node, x, module):
    image = views.channels_last(x)
    if image is not None:
        return _linear_of_pixels(to, node, image, module)
    if len(tensor(x).shape) not in (1, 2):
        raise Misread(f"a linear layer over the last of the dimensions {x.shape}; flatten comes first")
    keys = unlike({"bias": True}, bias=module.bias is not None)
    return to.emit_with_parameters(node, "dense", [x], module, ("weight", "bias"), units=module.out_features, **keys)


def _linear_of_pixels(to, node, image, module):
    """Of an image whose channels are last: a convolution, whose weights have two more dimensions."""
    units, channels = module.weight.shape
    keys = {"filters": units, "kernel": 1, **unlike({"bias": True}, bias=module.bias is not None)}
    shapes = {"weight": (units, channels, 1, 1)}
    shape = (units, *image.shape[1:])
    return _channels_last(
        to.emit_with_parameters(node, "conv", [image], module, ("weight", "bias"), shapes, shape, **keys)
    )


def _channels_last(image):
    return View(image, views.own_numbers(image).permute(0, 2, 3, 1))


def layer_norm(to, node, x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """As a function: the layer has the name of the module whose weight and bias are given."""
    must(weight is not None and bias is not None, AFFINE)
    names = []
    for one, suffix in ((weight, "weight"), (bias, "bias")):
        is_whole = isinstance(one, View) and isinstance(one.source, Parameter) and views.same(one.numbers, views.own_numbers(one.source))
        must(is_whole, f"a {suffix} that is no parameter of the module")
        names.append(one.source.name)
    layer = names[0].removesuffix(".weight")
    must(names == [f"{layer}.weight", f"{layer}.bias"], f"a weight and a bias that are {names[0]} and {names[1]}, not of one module")
    return _normalised(to, node, x, normalized_shape, eps, layer, {"weight": weight.source, "bias": bias.source})


def layer_norm_module(to, node, x, module):
    must(module.weight is not None and module.bias is not None, AFFINE)
    tensors = {key: Parameter(f"{node.target}.{key}", getattr(module, key)) for key in ("weight", "bias")}
    return _normalised(to, node, x, module.normalized_shape, module.eps, node.target, tensors)


def _normalised(to, node, x, normalized_shape, eps, layer, tensors):
    image = views.channels_last(x)
    over = tuple(normalized_shape)
    if image is None:
        if len(tensor(x).shape) == 3:
            raise Misread(f"normalises the last dimensions {over} of an image; lpsgd's layer_norm is over its channels")
    must(len(over) == 1, f"normalises the last dimensions {over}; lpsgd's layer_norm is over the last one")
    keys = unlike({"eps": 1e-5}, eps=float(eps))
    out = to.emit_with_tensors(node, "layer_norm", [x if image is None else image], layer, tensors, shape=(image or x).shape, **keys)
    return out if image is None else _channels_last(out)


def batch_norm(to, node, x, module):
    tensor(x, 1 if isinstance(module, nn.BatchNorm1d) else 3)
    must(
        not to.is_evaluating(node),
        "stays in evaluation in training; without that it can be imported, and frozen by train.freeze",
    )
    must(module.affine, "affine=False; lpsgd's batch normalisation has a weight and a bias")
    must(module.track_running_stats, "track_running_stats=False; lpsgd's has running statistics")
    must(module.momentum is not None, "momentum=None; lpsgd's running statistics have a fixed momentum")
    keys = unlike({"eps": 1e-5, "momentum": 0.1}, eps=float(module.eps), momentum=float(module.momentum))
    return to.emit_with_parameters(
        node, "batch_norm", [x], module, ("weight", "bias", "running_mean", "running_var"), **keys
    )


def embedding(to, node, x, module):
    must(module.padding_idx is None and module.max_norm is None, "padding_idx or max_norm; lpsgd's embedding has neither")
    must(not module.scale_grad_by_freq and not module.sparse, "scale_grad_by_freq or sparse; lpsgd's embedding has neither")
    if isinstance(x, Constant):  # vectors of positions
        table = Parameter(f"{node.target}.weight", module.weight)
        return View(table, views.own_numbers(table)[x.value])
    return to.emit_with_parameters(
        node, "embedding", [tensor(x, 1)], module, ("weight",), vocabulary=module.num_embeddings, dimension=module.embedding_dim
    )


def lstm(to, node, x, module):
    must(module.num_layers == 1, f"num_layers={module.num_layers}; one nn.LSTM for each layer can be imported")
    must(not module.bidirectional, "bidirectional=True; lpsgd's LSTM runs forward")
    must(module.batch_first, "batch_first=False; here the samples come first")
    keys = unlike({"projection": 0, "bias": True}, projection=module.proj_size, bias=module.bias)
    names = ["weight_ih_l0", "weight_hh_l0"]
    names += ["bias_ih_l0", "bias_hh_l0"] if module.bias else []
    names += ["weight_hr_l0"] if module.proj_size else []
    x = tensor(x, 2)
    shape = (x.shape[0], module.proj_size or module.hidden_size)
    output = to.emit_with_parameters(node, "lstm", [x], module, names, shape=shape, cell=module.hidden_size, **keys)
    return (output, "the state of an LSTM")


# Without parameters; of modules and of functions.


def value_by_value(to, node, kind, x, **keys):
    """A layer that computes each value by itself. So of a view it is one of what the view shows."""
    if not isinstance(x, View) or not isinstance(x.source, Output) or x.factor != 1:
        return to.emit(node, kind, [tensor(x)], **keys)
    return View(to.emit(node, kind, [x.source], shape=x.source.shape, **keys), x.numbers, moves=x.moves)


def activation(kind):
    def convert(to, node, x, inplace=False):
        return value_by_value(to, node, kind, x)

    return convert


def gelu(to, node, x, approximate="none"):
    must(approximate == "none", f"approximate='{approximate}'; lpsgd's gelu is the exact one")
    return value_by_value(to, node, "gelu", x)


def stochastic_depth(to, node, x, p, mode, training=True):
    must(p == 0 or not training, f"stochastic depth: {WITHOUT_LAYER}; torchvision's take --with stochastic_depth_prob=0")
    return nothing(to, node, x)


def dropout(to, node, x, p=0.5, training=True, inplace=False):
    if p == 0 or not training or to.is_evaluating(node):
        return nothing(to, node, x)
    if isinstance(x, Probabilities):
        attention.no_dropout(p)
    must(p <= MOST_DROPPED, f"p={p}; lpsgd drops at most {MOST_DROPPED}")
    return to.emit(node, "dropout", [tensor(x)], **unlike({"probability": 0.5}, probability=float(p)))


def lrn(to, node, x, size, alpha=1e-4, beta=0.75, k=1.0):
    keys = unlike(
        {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}, size=size, alpha=float(alpha), beta=float(beta), k=float(k)
    )
    return to.emit(node, "lrn", [tensor(x, 3)], **keys)


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
    must(not return_indices, "return_indices=True; lpsgd's pooling gives only values")
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
        must(not return_indices, "return_indices=True; lpsgd's pooling gives only values")
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


def move(to, node, x, *args, **keywords):
    """What gives the same values in another shape or order, or some of them: view, permute, chunk and the like."""
    view = views.of(x)
    numbers = to.numbers(node, view.numbers, args, keywords)
    if isinstance(numbers, (tuple, list)):
        return tuple(view.moved(one, _name(node)) for one in numbers)
    return settled(to, node, view.moved(numbers, _name(node)))


def _name(node):
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def settled(to, node, view):
    """A view as the layer that gives it, if there is one."""
    source, numbers = view.source, view.numbers
    if not isinstance(source, Output) or view.factor != 1 or numbers.shape[:1] != (BATCH,):
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


def mean(to, node, x, dim=None, keepdim=False):
    """Over height and width: global average pooling."""
    dimensions = sorted(d % 4 for d in ([dim] if isinstance(dim, int) else dim or ()))
    image = views.channels_last(x)
    if image is not None and not keepdim:
        x, dimensions = image, [2, 3] if dimensions == [1, 2] else []
    must(dimensions == [2, 3] and len(tensor(x).shape) == 3, f"a mean over the dimensions {dim}; lpsgd's is over the image")
    pooled = to.emit(node, "average_pool", [x], shape=(x.shape[0], 1, 1))
    return pooled if keepdim else to.emit(node, "flatten", [pooled])


def add(to, node, x, y, alpha=1):
    must(alpha == 1, f"alpha={alpha}; lpsgd adds without factors")
    if isinstance(x, Constant) or _is_parameter(x):
        x, y = y, x
    if isinstance(x, Scores) and isinstance(y, Constant):
        return attention.masked(to, x, y, allowed=True)
    if isinstance(x, Output) and _is_parameter(y):
        return _positions(to, node, x, y)
    must(not isinstance(y, Constant), f"adds {y}; lpsgd's position layer trains what it adds")
    for one in (x, y):
        must(isinstance(one, (Output, View)), "adds something that is not the output of a layer")
    return _together(to, node, "add", x, y) or to.emit(node, "add", _alike(tensor(x), tensor(y)))


def _alike(x, y):
    if x.shape != y.shape:
        raise Misread(f"adds {x.shape} and {y.shape}; lpsgd adds equal shapes")
    return [x, y]


def _together(to, node, kind, x, y):
    """Of two views of the same kind, or None."""
    alike = (
        isinstance(x, View)
        and isinstance(y, View)
        and isinstance(x.source, Output)
        and isinstance(y.source, Output)
        and x.source.shape == y.source.shape
        and (x.factor, y.factor) == (1, 1)
        and views.same(x.numbers, y.numbers)
    )
    return View(to.emit(node, kind, [x.source, y.source], shape=x.source.shape), x.numbers, moves=x.moves) if alike else None


def _is_parameter(x):
    return isinstance(x, View) and isinstance(x.source, Parameter)


def _positions(to, node, x, y):
    """A trained vector for each frame."""
    table = views.frames_of(y, x.shape) if len(x.shape) == 2 else None
    must(table is not None, f"adds {y.source.name}, a tensor that belongs to no layer; lpsgd adds one vector for each frame")
    features = x.shape[1]
    shape = (table.tensor.numel() // features, features)
    return to.emit_with_tensors(
        node, "position", [x], _layer_of(table), {"weight": table}, {"weight": shape}, frames=shape[0]
    )


def _layer_of(parameter):
    """The layer whose only tensor it is, its weight."""
    return parameter.name.removesuffix(".weight")


def multiply(to, node, x, y):
    if not isinstance(x, (Output, View, Scores)) or _is_parameter(x):
        x, y = y, x
    factor = views.number(to, y)
    if isinstance(x, Scores) and factor is not None:
        return attention.scaled(x, factor)
    if factor is not None:
        return _scaled(to, node, x, float(factor))
    for one in (x, y):
        must(not isinstance(one, Constant), f"multiplies by {one}")
    must(isinstance(x, (Output, View)) and isinstance(y, (Output, View)) and not _is_parameter(x),
         "multiplies by something that is neither a layer's output nor a constant")
    return _scaled_by_channel(to, node, x, y) if _is_parameter(y) else _product(to, node, x, y)


def _scaled(to, node, x, factor):
    if isinstance(x, View) and isinstance(x.source, Output) and views.channels_last(x) is None:
        return View(x.source, x.numbers, x.factor * factor, x.moves)  # such as queries
    return value_by_value(to, node, "scale", x, factor=factor)


def _scaled_by_channel(to, node, x, y):
    """A trained factor for each channel: a convolution of each channel by itself with one weight."""
    image = views.channels_last(x)
    numbers = y.numbers
    if image is not None:  # their order becomes that of the image
        numbers = torch.broadcast_to(numbers, x.numbers.shape).permute(0, 3, 1, 2)
    shape = x.shape if isinstance(x, Output) else image.shape if image is not None else ()
    scale = views.by_channel(View(y.source, numbers, y.factor), shape) if len(shape) == 3 else None
    must(scale is not None, f"multiplies by {y.source.name}, a tensor that belongs to no layer; lpsgd's factors are of an image's channels")
    channels = shape[0]
    out = to.emit_with_tensors(
        node,
        "conv",
        [x if image is None else image],
        _layer_of(scale),
        {"weight": scale},
        {"weight": (channels, 1, 1, 1)},
        shape,
        filters=channels,
        kernel=1,
        groups=channels,
        bias=False,
    )
    return out if image is None else _channels_last(out)


def _product(to, node, x, y):
    if isinstance(x, Output) and isinstance(y, Output) and x.shape == y.shape:
        return to.emit(node, "multiply", [x, y])
    both = _together(to, node, "multiply", x, y)
    if both is not None:
        return both
    for image, gate in ((x, y), (y, x)):
        if isinstance(image, Output) and len(image.shape) == 3:
            own = views.by_channel(views.of(gate), image.shape)
            if own is not None:
                return to.emit(node, "multiply", [own if one is gate else one for one in (x, y)], shape=image.shape)
    x, y = tensor(x), tensor(y)
    raise Misread(f"multiplies {x.shape} and {y.shape}; lpsgd multiplies equal shapes, or an image by one value for each channel")


def divide(to, node, x, y, rounding_mode=None):
    y = views.number(to, y)
    must(y is not None and y != 0 and rounding_mode is None, "divides by something that is no constant")
    return multiply(to, node, x, 1 / y)


def concatenate(to, node, tensors, dim=0):
    *tokens, last = tensors
    if any(_is_parameter(one) for one in tensors):
        return _behind_tokens(to, node, tokens, last, dim)
    parts = [tensor(one) for one in tensors]
    dimensions = len(parts[0].shape) + 1
    must(dim % dimensions == 1 and dimensions in (2, 4), f"joins the dimension {dim}; lpsgd joins channels or features")
    return copied(parts[0]) if len(parts) == 1 else to.emit(node, "concat", parts)


def _behind_tokens(to, node, tokens, x, dim):
    """A sequence with trained frames in front of it."""
    is_sequence = isinstance(x, Output) and len(x.shape) == 2 and dim in (1, -2)
    frames, features = x.shape if is_sequence else (0, 0)
    must(is_sequence and all(views.is_token(one, features) for one in tokens),
         "joins a tensor that belongs to no layer; lpsgd's are frames in front of a sequence")
    for one in reversed(tokens):
        frames += 1
        x = to.emit_with_tensors(
            node, "class_token", [x], _layer_of(one.source), {"weight": one.source}, {"weight": (features,)}, (frames, features)
        )
    return x


def ending(function):
    def convert(to, node, x, dim=None, _stacklevel=3, dtype=None):
        if isinstance(x, Scores):
            return attention.softmax(x, dim, dtype)
        if not to.is_last(node):
            raise Misread("a softmax inside the network; lpsgd has one only in attention and in the loss")
        last = len(tensor(x).shape)
        must(dim in (-1, last) or (dim is None and last == 1), f"dim={dim}; lpsgd's loss is over the last dimension")
        to.network.ending = function
        to.network.notes.append(
            "the softmax at the end is left out: lpsgd's loss has it, as torch.nn.CrossEntropyLoss has"
        )
        return tensor(x)

    return convert


def item(to, node, x, index):
    """Of a tuple, such as what an LSTM gives. Or a part of a tensor."""
    if not isinstance(x, tuple):
        parts = index if isinstance(index, tuple) else (index,)
        must(not any(isinstance(one, (Output, View)) for one in parts), "takes a part of a tensor that depends on the input")
        return move(to, node, x, index)
    one = x[index]
    must(not isinstance(one, str), f"reads {one}")
    return settled(to, node, one) if isinstance(one, View) else tensor(one)


def nothing(to, node, x, *_, **__):
    return x if isinstance(x, views.BETWEEN) else tensor(x)


def copied(x):
    """The same values in memory of their own: what works in place there changes nothing here."""
    return Output(x.layer, x.shape)


def copy(to, node, x, memory_format=None):
    return x if isinstance(x, View) else copied(tensor(x))


def attributes(convert, *names):
    """A module whose attributes are the function's arguments."""
    return lambda to, node, x, module: convert(to, node, x, **{name: getattr(module, name) for name in names})


MODULES = {
    nn.Conv2d: conv,
    nn.Linear: linear,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.Embedding: embedding,
    nn.LSTM: lstm,
    nn.GELU: attributes(gelu, "approximate"),
    nn.Dropout: attributes(dropout, "p"),
    nn.LocalResponseNorm: attributes(lrn, "size", "alpha", "beta", "k"),
    nn.MaxPool2d: attributes(
        max_pool, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"
    ),
    nn.AvgPool2d: attributes(
        average_pool, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
    ),
    nn.AdaptiveAvgPool2d: attributes(adaptive("average_pool"), "output_size"),
    nn.AdaptiveMaxPool2d: attributes(adaptive("max_pool"), "output_size", "return_indices"),
    nn.Flatten: attributes(move),
    nn.Unflatten: attributes(move),
    nn.LayerNorm: layer_norm_module,
    nn.MultiheadAttention: attention.multi_head,
    nn.TransformerEncoderLayer: attention.encoder_layer,
    nn.TransformerEncoder: attention.encoder,
    nn.Identity: attributes(nothing),
    nn.Softmax: attributes(ending(torch.softmax), "dim"),
    nn.LogSoftmax: attributes(ending(torch.log_softmax), "dim"),
}
FUNCTIONS = {
    functional.gelu: gelu,
    functional.dropout: dropout,
    functional.local_response_norm: lrn,
    functional.max_pool2d: max_pool,
    torch.max_pool2d: max_pool,
    functional.avg_pool2d: average_pool,
    functional.adaptive_avg_pool2d: adaptive("average_pool"),
    functional.adaptive_max_pool2d: adaptive("max_pool"),
    functional.layer_norm: layer_norm,
    **dict.fromkeys((torch.matmul, torch.bmm, operator.matmul), attention.multiply_matrices),
    torch.masked_fill: attention.masked_fill,
    torch.where: attention.where,
    **{getattr(torch, name): move for name in MOVES if hasattr(torch, name)},
    torch.mean: mean,
    torch.add: add,
    operator.add: add,
    operator.iadd: add,
    torch.mul: multiply,
    operator.mul: multiply,
    operator.imul: multiply,
    torch.div: divide,
    operator.truediv: divide,
    operator.itruediv: divide,
    torch.cat: concatenate,
    torch.concat: concatenate,
    functional.softmax: ending(torch.softmax),
    functional.log_softmax: ending(torch.log_softmax),
    torch.softmax: ending(torch.softmax),
    torch.log_softmax: ending(torch.log_softmax),
    operator.getitem: item,
}
METHODS = {
    **dict.fromkeys((*MOVES, "view", "view_as", "expand", "expand_as"), move),
    **dict.fromkeys(("contiguous", "float", "to", "type_as"), nothing),
    "clone": copy,
    **dict.fromkeys(("matmul", "bmm"), attention.multiply_matrices),
    **dict.fromkeys(("masked_fill", "masked_fill_"), attention.masked_fill),
    **dict.fromkeys(("add", "add_"), add),
    **dict.fromkeys(("mul", "mul_"), multiply),
    **dict.fromkeys(("div", "div_"), divide),
    "softmax": ending(torch.softmax),
    "log_softmax": ending(torch.log_softmax),
    "mean": mean,
}
for _kind, _same in ACTIVATIONS.items():
    for _one in _same:
        if isinstance(_one, type):
            MODULES[_one] = attributes(activation(_kind))
        else:
            (METHODS if isinstance(_one, str) else FUNCTIONS)[_one] = activation(_kind)


IN_PLACE = {torch.relu_, functional.relu_, operator.iadd, operator.imul, operator.itruediv}
INPLACE_ARGUMENT = {  # where it stands without its name
    **dict.fromkeys((functional.relu, functional.relu6, functional.hardsigmoid, functional.hardswish, functional.silu), 1),
    functional.dropout: 3,
}
BY_NAME = {  # functions of torchvision, which need not be installed, and of PyTorch 2
    "stochastic_depth": stochastic_depth,
    "scaled_dot_product_attention": attention.scaled_dot_product,
}


def module_of(node, root):
    """That the node calls, or None."""
    return root.get_submodule(node.target) if node.op == "call_module" else None


def changed_by(node, root):
    """The node whose result this one changes in place, or None."""
    if node.op == "call_module":
        changes = getattr(module_of(node, root), "inplace", False)
    elif node.op == "call_method":
        changes = node.target.endswith("_") and not node.target.endswith("__")
    elif node.op == "call_function":
        at = INPLACE_ARGUMENT.get(node.target)
        given = at is not None and len(node.args) > at and node.args[at] is True
        changes = node.target in IN_PLACE or given or node.kwargs.get("inplace") is True
    else:
        changes = False
    return (node.args[0] if node.args else node.kwargs["input"]) if changes else None


def has_hooks(module):
    """Whether it computes something else than its kind says."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names) or hasattr(module, "parametrizations")


def has_layer(module):
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in MODULES)


def of_module(module):
    """Raises Unfit."""
    for kind, handler in MODULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return handler
    raise Unfit(f"{type(module).__name__}: {WITHOUT_LAYER}")


def of_function(node):
    """Raises Unfit."""
    name = _name(node)
    handler = (METHODS if node.op == "call_method" else FUNCTIONS).get(node.target) or BY_NAME.get(name)
    if handler is None:
        raise Unfit(f"{name}(): {WITHOUT_LAYER}")
    return handler


def gives_tuple(module):
    """Its output, and what else there is."""
    return isinstance(module, (nn.LSTM, nn.MultiheadAttention))
