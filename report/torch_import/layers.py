"""Which layer of a network file computes what a module or a function of PyTorch computes."""

import operator

import torch
from torch import nn
from torch.nn import functional

from .network import Gate, Output, Unfit

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


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def short(value):
    """As the network file writes a pair: one number where both are equal."""
    first, second = pair(value)
    return first if first == second else [first, second]


def unlike(defaults, **keys):
    """The keys that differ from a layer's defaults."""
    return {key: value for key, value in keys.items() if value != defaults[key]}


def tensor(value, dimensions=None):
    """The output of a layer, of so many dimensions a sample."""
    if not isinstance(value, Output):
        raise Unfit(f"an input that is not the output of a layer: {type(value).__name__}")
    if isinstance(value, Gate):
        raise Unfit("reads one value for each channel as an image; in lpsgd only a product of two layers does")
    if dimensions is not None and len(value.shape) != dimensions:
        raise Unfit(f"a sample of its input has the shape {value.shape}; such a layer takes {dimensions} dimensions")
    return value


def must(holds, what):
    if not holds:
        raise Unfit(what)


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
    must(len(tensor(x).shape) in (1, 2), f"a linear layer over the last of the dimensions {x.shape}; flatten comes first")
    keys = unlike({"bias": True}, bias=module.bias is not None)
    return to.emit_with_parameters(node, "dense", [x], module, ("weight", "bias"), units=module.out_features, **keys)


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


def activation(kind):
    def convert(to, node, x, inplace=False):
        return to.emit(node, kind, [tensor(x)])

    return convert


def gelu(to, node, x, approximate="none"):
    must(approximate == "none", f"approximate='{approximate}'; lpsgd's gelu is the exact one")
    return to.emit(node, "gelu", [tensor(x)])


def stochastic_depth(to, node, x, p, mode, training=True):
    must(p == 0 or not training, f"stochastic depth with p={p}: {WITHOUT_LAYER}; torchvision's take --with stochastic_depth_prob=0")
    return tensor(x)


def dropout(to, node, x, p=0.5, training=True, inplace=False):
    if p == 0 or not training or to.is_evaluating(node):
        return tensor(x)
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


def reshape(to, node, x, *_, **__):
    """view, reshape, flatten: by the shapes alone, as the order of the values stays."""
    after = to.shape(node)
    if isinstance(x, Gate) and after == x.own:
        return Output(x.layer, after)
    if _is_one_pixel(x) and _is_one_pixel(Output("", after)) and len(after) > 1:
        return _gate(x, after)
    if isinstance(x, Gate) and _is_one_pixel(x):
        x = Output(x.layer, x.own)
    before = tensor(x).shape
    if before == after:
        return x
    must(len(before) == 3 and len(after) == 1, f"reshapes {before} to {after}; lpsgd only flattens images to features")
    return to.emit(node, "flatten", [x])


def _is_one_pixel(x):
    """One value for each channel."""
    return isinstance(x, Output) and len(x.shape) > 0 and all(size == 1 for size in x.shape[1:])


def _gate(x, shape):
    own = x.own if isinstance(x, Gate) else x.shape
    return Output(x.layer, shape) if shape == own else Gate(x.layer, shape, own)


def mean(to, node, x, dim=None, keepdim=False):
    """Over height and width: global average pooling."""
    dimensions = sorted(d % 4 for d in ([dim] if isinstance(dim, int) else dim or ()))
    must(dimensions == [2, 3] and len(tensor(x).shape) == 3, f"a mean over the dimensions {dim}; lpsgd's is over the image")
    pooled = to.emit(node, "average_pool", [x], shape=(x.shape[0], 1, 1))
    return pooled if keepdim else to.emit(node, "flatten", [pooled])


def add(to, node, x, y, alpha=1):
    must(alpha == 1, f"alpha={alpha}; lpsgd adds without factors")
    for one in (x, y):
        must(isinstance(one, Output), "adds something that is not the output of a layer")
        tensor(one)
    must(x.shape == y.shape, f"adds {x.shape} and {y.shape}; lpsgd adds equal shapes")
    return to.emit(node, "add", [x, y])


def expand(to, node, x, *_):
    """To an image of more pixels, as a product does by itself."""
    after = to.shape(node)
    must(_is_one_pixel(x) and len(after) == 3 and after[0] == x.shape[0], "repeats values; lpsgd does so in a product with one pixel")
    return _gate(x, after)


def multiply(to, node, x, y):
    if isinstance(x, Output) and isinstance(y, Output):
        return _product(to, node, x, y)
    if isinstance(y, Output):
        x, y = y, x
    must(isinstance(y, (int, float)), "multiplies by something that is neither a layer's output nor a constant")
    return to.emit(node, "scale", [tensor(x)], factor=float(y))


def _product(to, node, x, y):
    def gates(gate, image):
        fits = gate.shape[:1] == image.shape[:1] and gate.shape[1:] in ((1, 1), image.shape[1:])
        return len(image.shape) == 3 and not isinstance(image, Gate) and fits

    same = x.shape == y.shape and not isinstance(x, Gate) and not isinstance(y, Gate)
    must(same or gates(x, y) or gates(y, x),
         f"multiplies {x.shape} and {y.shape}; lpsgd multiplies equal shapes, or an image by one value for each channel")
    return to.emit(node, "multiply", [x, y])


def divide(to, node, x, y, rounding_mode=None):
    must(isinstance(y, (int, float)) and y != 0 and rounding_mode is None, "divides by something that is no constant")
    return multiply(to, node, x, 1 / y)


def concatenate(to, node, tensors, dim=0):
    parts = [tensor(one) for one in tensors]
    dimensions = len(parts[0].shape) + 1
    must(dim % dimensions == 1 and dimensions in (2, 4), f"joins the dimension {dim}; lpsgd joins channels or features")
    return copied(parts[0]) if len(parts) == 1 else to.emit(node, "concat", parts)


def ending(function):
    def convert(to, node, x, dim=None, _stacklevel=3, dtype=None):
        must(to.is_last(node), "a softmax inside the network; lpsgd has one only in the loss")
        last = len(tensor(x).shape)
        must(dim in (-1, last) or (dim is None and last == 1), f"dim={dim}; lpsgd's loss is over the last dimension")
        to.network.ending = function
        to.network.notes.append(
            "the softmax at the end is left out: lpsgd's loss has it, as torch.nn.CrossEntropyLoss has"
        )
        return tensor(x)

    return convert


def item(to, node, x, index):
    """Of a tuple, such as what an LSTM gives. Or x[:, :, None, None] of features."""
    if _is_one_pixel(x) and isinstance(index, tuple) and all(i is None or i == slice(None) for i in index):
        return reshape(to, node, x)
    must(isinstance(x, tuple) and index == 0, "takes a part of a tensor or of a list of tensors")
    return tensor(x[0])


def nothing(to, node, x, *_, **__):
    return tensor(x)


def copied(x):
    """The same values in memory of their own: what works in place there changes nothing here."""
    return Output(x.layer, x.shape)


def copy(to, node, x, memory_format=None):
    return copied(tensor(x))


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
    nn.Flatten: attributes(reshape),
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
    torch.flatten: reshape,
    torch.reshape: reshape,
    torch.squeeze: reshape,
    torch.unsqueeze: reshape,
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
    **dict.fromkeys(("view", "reshape", "flatten", "squeeze", "unsqueeze"), reshape),
    **dict.fromkeys(("contiguous", "float"), nothing),
    "clone": copy,
    **dict.fromkeys(("expand", "expand_as"), expand),
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
BY_NAME = {"stochastic_depth": stochastic_depth}  # functions of torchvision, which need not be installed


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
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    handler = (METHODS if node.op == "call_method" else FUNCTIONS).get(node.target) or BY_NAME.get(name)
    if handler is None:
        raise Unfit(f"{name}(): {WITHOUT_LAYER}")
    return handler


def is_sequence_layer(module):
    """It gives a tuple: its output, and its state."""
    return isinstance(module, nn.LSTM)
