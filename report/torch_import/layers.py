"""Convolutions, linear layers, embeddings and LSTMs."""

from . import views
from .network import Misread, pair, short, unlike
from .views import Constant, Parameter, View, must, tensor


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
    keys = {"filters": module.out_channels, "kernel": short(module.kernel_size), **keys}
    return to.emit_with_parameters(node, "conv", [tensor(x, 3)], module, ("weight", "bias"), **keys)


def _padding(module):
    if module.padding == "valid":
        return 0
    if module.padding != "same":
        return module.padding
    is_odd = all(k % 2 for k in module.kernel_size)
    must(is_odd, f"padding='same' of an even kernel, {module.kernel_size}: its two sides differ")
    return tuple(k // 2 for k in module.kernel_size)


def linear(to, node, x, module):
    keys = unlike({"bias": True}, bias=module.bias is not None)
    image = views.channels_last(x)
    if image is not None:
        return _linear_of_pixels(to, node, image, module, keys)
    if len(tensor(x).shape) not in (1, 2):
        raise Misread(f"a linear layer over the last of the dimensions {x.shape}; flatten comes first")
    keys = {"units": module.out_features, **keys}
    return to.emit_with_parameters(node, "dense", [x], module, ("weight", "bias"), **keys)


def _linear_of_pixels(to, node, image, module, keys):
    """Of an image whose channels are last: a convolution, whose weights have two more dimensions."""
    units, channels = module.weight.shape
    out = to.emit_with_parameters(
        node,
        "conv",
        [image],
        module,
        ("weight", "bias"),
        shapes={"weight": (units, channels, 1, 1)},
        shape=(units, *image.shape[1:]),
        filters=units,
        kernel=1,
        **keys,
    )
    return views.with_channels_last(out)


def embedding(to, node, x, module):
    is_plain = module.padding_idx is None and module.max_norm is None
    must(is_plain, "padding_idx or max_norm; lpsgd's embedding has neither")
    is_dense = not module.scale_grad_by_freq and not module.sparse
    must(is_dense, "scale_grad_by_freq or sparse; lpsgd's embedding has neither")
    if isinstance(x, Constant):  # vectors of positions
        to.network.implied |= x.buffers
        table = Parameter(f"{node.target}.weight", module.weight)
        return View(table, views.own_numbers(table)[x.value])
    keys = {"vocabulary": module.num_embeddings, "dimension": module.embedding_dim}
    return to.emit_with_parameters(node, "embedding", [tensor(x, 1)], module, ("weight",), **keys)


def lstm(to, node, x, module):
    layers = module.num_layers
    must(layers == 1, f"num_layers={layers}; one nn.LSTM for each layer can be imported")
    must(not module.bidirectional, "bidirectional=True; lpsgd's LSTM runs forward")
    must(module.batch_first, "batch_first=False; here the samples come first")
    keys = unlike({"projection": 0, "bias": True}, projection=module.proj_size, bias=module.bias)
    names = ["weight_ih_l0", "weight_hh_l0"]
    names += ["bias_ih_l0", "bias_hh_l0"] if module.bias else []
    names += ["weight_hr_l0"] if module.proj_size else []
    x = tensor(x, 2)
    shape = (x.shape[0], module.proj_size or module.hidden_size)
    keys = {"cell": module.hidden_size, **keys}
    output = to.emit_with_parameters(node, "lstm", [x], module, names, shape=shape, **keys)
    return (output, "the state of an LSTM")
