"""The converter of each module, function and method of PyTorch. It is called with the Converter, the node of
torch.fx's graph and the call's arguments, adds layers, and returns what the call gives. It raises Unfit where
no layer of lpsgd computes that."""

import operator

import torch
from torch import nn
from torch.nn import functional

from . import activations, arithmetic, attention, einsum, layers, moves, normalisation, pooling, transformers
from .network import WITHOUT_LAYER, Unfit


def _attributes(convert, *names):
    """For a module whose attributes are the function's arguments."""
    return lambda to, node, x, module: convert(to, node, x, **{name: getattr(module, name) for name in names})


MODULES = {
    nn.Conv2d: layers.conv,
    nn.Linear: layers.linear,
    nn.Embedding: layers.embedding,
    nn.LSTM: layers.lstm,
    nn.BatchNorm1d: normalisation.batch_norm,
    nn.BatchNorm2d: normalisation.batch_norm,
    nn.LayerNorm: normalisation.layer_norm_module,
    nn.GroupNorm: normalisation.group_norm_module,
    nn.InstanceNorm2d: normalisation.instance_norm,
    nn.LocalResponseNorm: _attributes(normalisation.local_response_norm, "size", "alpha", "beta", "k"),
    nn.GELU: _attributes(activations.gelu, "approximate"),
    nn.Dropout: _attributes(activations.dropout, "p"),
    nn.Softmax: _attributes(activations.ending(torch.softmax), "dim"),
    nn.LogSoftmax: _attributes(activations.ending(torch.log_softmax), "dim"),
    nn.MaxPool2d: _attributes(
        pooling.max_pool, "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"
    ),
    nn.AvgPool2d: _attributes(
        pooling.average_pool,
        *("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    nn.AdaptiveAvgPool2d: _attributes(pooling.adaptive("average_pool"), "output_size"),
    nn.AdaptiveMaxPool2d: _attributes(pooling.adaptive("max_pool"), "output_size", "return_indices"),
    nn.MultiheadAttention: transformers.multi_head,
    nn.TransformerEncoderLayer: transformers.encoder_layer,
    nn.TransformerEncoder: transformers.encoder,
}
CALLS = (  # of functions, of methods by their names, and of modules without attributes
    *((activations.activation(kind), calls) for kind, calls in activations.ALIKE.items()),
    (activations.gelu, (functional.gelu,)),
    (activations.dropout, (functional.dropout,)),
    (activations.ending(torch.softmax), (torch.softmax, functional.softmax, "softmax")),
    (activations.ending(torch.log_softmax), (torch.log_softmax, functional.log_softmax, "log_softmax")),
    (normalisation.layer_norm, (functional.layer_norm,)),
    (normalisation.group_norm, (functional.group_norm,)),
    (normalisation.local_response_norm, (functional.local_response_norm,)),
    (pooling.max_pool, (torch.max_pool2d, functional.max_pool2d)),
    (pooling.average_pool, (functional.avg_pool2d,)),
    (pooling.adaptive("average_pool"), (functional.adaptive_avg_pool2d,)),
    (pooling.adaptive("max_pool"), (functional.adaptive_max_pool2d,)),
    (pooling.mean, (torch.mean, "mean")),
    (arithmetic.add, (torch.add, operator.add, operator.iadd, "add", "add_")),
    (arithmetic.multiply, (torch.mul, operator.mul, operator.imul, "mul", "mul_")),
    (arithmetic.divide, (torch.div, operator.truediv, operator.itruediv, "div", "div_")),
    (arithmetic.concatenate, (torch.cat, torch.concat)),
    (attention.multiply_matrices, (torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm")),
    (einsum.einsum, (torch.einsum,)),
    (attention.masked_fill, (torch.masked_fill, "masked_fill", "masked_fill_")),
    (attention.where, (torch.where,)),
    (moves.move, (nn.Flatten, nn.Unflatten, *moves.NAMES)),
    (moves.move, tuple(getattr(torch, name) for name in moves.NAMES if hasattr(torch, name))),
    (moves.item, (operator.getitem,)),
    (moves.attribute, (getattr,)),
    (moves.nothing, (nn.Identity, "contiguous", "float", "to", "type_as")),
    (moves.copy, ("clone",)),
)
PAIRS = [(call, convert) for convert, calls in CALLS for call in calls]
MODULES.update({call: _attributes(convert) for call, convert in PAIRS if isinstance(call, type)})
METHODS = {call: convert for call, convert in PAIRS if isinstance(call, str)}
FUNCTIONS = {call: convert for call, convert in PAIRS if not isinstance(call, (type, str))}
BY_NAME = {  # functions of PyTorch 2, and of torchvision and timm, which need not be installed
    "scaled_dot_product_attention": attention.scaled_dot_product,
    "stochastic_depth": activations.stochastic_depth,
    "maybe_add_mask": attention.maybe_add_mask,
}


def _found(module):
    for kind, convert in MODULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return convert
    return None


def is_known(module):
    return _found(module) is not None


def of_module(module):
    """Raises Unfit."""
    convert = _found(module)
    if convert is None:
        raise Unfit(f"{type(module).__name__}: {WITHOUT_LAYER}")
    return convert


def of_call(node):
    """Of a function or a method. Raises Unfit."""
    name = moves.name_of(node)
    convert = (METHODS if node.op == "call_method" else FUNCTIONS).get(node.target) or BY_NAME.get(name)
    if convert is None:
        raise Unfit(f"{name}(): {WITHOUT_LAYER}")
    return convert
