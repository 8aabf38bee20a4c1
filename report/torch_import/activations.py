"""Activations, dropout and the softmax: what keeps the shape and has no parameters."""

import torch
from torch import nn
from torch.nn import functional

from . import attention, views
from .moves import nothing
from .network import WITHOUT_LAYER, Misread, unlike
from .views import Probabilities, Scores, must, tensor

ALIKE = {  # modules, functions and methods of each kind of layer
    "relu": (nn.ReLU, torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"),
    "sigmoid": (nn.Sigmoid, torch.sigmoid, functional.sigmoid, "sigmoid", "sigmoid_"),
    "tanh": (nn.Tanh, torch.tanh, functional.tanh, "tanh", "tanh_"),
    "relu6": (nn.ReLU6, functional.relu6),
    "hardsigmoid": (nn.Hardsigmoid, functional.hardsigmoid),
    "hardswish": (nn.Hardswish, functional.hardswish),
    "silu": (nn.SiLU, functional.silu),
}


def elementwise(to, node, kind, x, **keys):
    """A layer that computes each value by itself. So of a view it is one of what the view shows."""
    read = x.source if views.is_of_layer(x) else tensor(x)
    return views.ordered_as(to.emit(node, kind, [read], shape=read.shape, **keys), x)


def activation(kind):
    def convert(to, node, x, inplace=False):
        return elementwise(to, node, kind, x)

    return convert


def gelu(to, node, x, approximate="none"):
    must(approximate == "none", f"approximate='{approximate}'; lpsgd's gelu is the exact one")
    return elementwise(to, node, "gelu", x)


def dropout(to, node, x, p=0.5, training=True, inplace=False):
    if p == 0 or not training or to.is_evaluating(node):
        return nothing(to, node, x)
    p = attention.probability(p)
    if isinstance(x, Probabilities):
        must(x.dropped == 0, "a second dropout of attention's probabilities; lpsgd's attention has one")
        return Probabilities(x.scores, p)
    return to.emit(node, "dropout", [tensor(x)], **unlike({"probability": 0.5}, probability=p))


def stochastic_depth(to, node, x, p, mode, training=True):
    hint = "torchvision's take --with stochastic_depth_prob=0"
    must(p == 0 or not training, f"stochastic depth: {WITHOUT_LAYER}; {hint}")
    return nothing(to, node, x)


def ending(function):
    """Of a softmax: that of attention, or the one behind the last layer."""

    def convert(to, node, x, dim=None, _stacklevel=3, dtype=None):
        if isinstance(x, Scores):
            return attention.softmax(x, dim, dtype)
        if not to.is_last(node):
            raise Misread("a softmax inside the network; lpsgd has one only in attention and in the loss")
        last = len(tensor(x).shape)
        is_last = dim in (-1, last) or (dim is None and last == 1)
        must(is_last, f"dim={dim}; lpsgd's loss is over the last dimension")
        to.network.ending = function
        to.network.notes.append(
            "the softmax at the end is left out: lpsgd's loss has it, as torch.nn.CrossEntropyLoss has"
        )
        return tensor(x)

    return convert
