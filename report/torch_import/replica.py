"""Computes a network file's layers in PyTorch, by what docs/networks.md says of them."""

import math

import torch
from torch.nn import functional


def run(network, parameters, x, training):
    """Class scores of `x`, in PyTorch's order. In training, running statistics among `parameters` change."""
    found = {"in": x}
    for layer in network.layers:
        inputs = [found[one.layer] for one in layer.inputs]
        parts = {name: name.rpartition(".") for name in parameters}
        own = {last: parameters[name] for name, (path, _, last) in parts.items() if path == layer.name}
        keys = dict(layer.keys)
        if owner := keys.pop("weight_of", None):
            own["weight"] = parameters[f"{owner}.weight"]
        found[layer.name] = LAYERS[layer.kind](inputs, own, training, **keys)
    scores = found[network.layers[-1].name]
    return network.ending(scores, dim=-1) if network.ending else scores


def _conv(inputs, own, training, filters, kernel, stride=1, pad=0, groups=1, bias=True):
    return functional.conv2d(inputs[0], own["weight"], own.get("bias"), stride, pad, 1, groups)


def _dense(inputs, own, training, units, bias=True):
    return functional.linear(inputs[0], own["weight"], own.get("bias"))


def _batch_norm(inputs, own, training, eps=1e-5, momentum=0.1):
    statistics = own["running_mean"], own["running_var"]
    return functional.batch_norm(inputs[0], *statistics, own["weight"], own["bias"], training, momentum, eps)


def _layer_norm(inputs, own, training, eps=1e-5, bias=True):
    x = inputs[0].permute(0, 2, 3, 1) if inputs[0].dim() == 4 else inputs[0]
    x = functional.layer_norm(x, x.shape[-1:], own["weight"], own.get("bias"), eps)
    return x.permute(0, 3, 1, 2) if inputs[0].dim() == 4 else x


def _group_norm(inputs, own, training, groups=32, eps=1e-5):
    return functional.group_norm(inputs[0], groups, own["weight"], own["bias"], eps)


def _attention(inputs, own, training, heads, causal=False, dropout=0.0):
    parts = inputs if len(inputs) == 3 else inputs[0].chunk(3, dim=-1)
    width = parts[0].shape[-1] // heads
    queries, keys, values = (part.unflatten(-1, (heads, width)).transpose(1, 2) for part in parts)
    scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    weights = functional.dropout(scores.softmax(dim=-1), dropout, training)
    return (weights @ values).transpose(1, 2).flatten(2)


def _class_token(inputs, own, training):
    return torch.cat([own["weight"].expand(len(inputs[0]), 1, -1), inputs[0]], dim=1)


def _lstm(inputs, own, training, cell, projection=0, bias=True):
    weights = [p for _, p in sorted(own.items(), key=lambda item: ORDER.index(item[0]))]
    zeros = [inputs[0].new_zeros(1, len(inputs[0]), features) for features in (projection or cell, cell)]
    return torch.lstm(inputs[0], zeros, weights, bias, 1, 0.0, training, False, True)[0]


def _max_pool(inputs, own, training, kernel=0, stride=0, pad=0, ceil_mode=False):
    kernel = kernel or inputs[0].shape[2:]
    return functional.max_pool2d(inputs[0], kernel, stride or kernel, pad, 1, ceil_mode)


def _average_pool(inputs, own, training, kernel=0, stride=0, pad=0, ceil_mode=False, count_pad=True):
    kernel = kernel or inputs[0].shape[2:]
    return functional.avg_pool2d(inputs[0], kernel, stride or kernel, pad, ceil_mode, count_pad)


def _lrn(inputs, own, training, size=5, alpha=1e-4, beta=0.75, k=1.0):
    return functional.local_response_norm(inputs[0], size, alpha, beta, k)


def _add(inputs, own, training):
    total = inputs[0]
    for one in inputs[1:]:
        total = total + one
    return total


def _multiply(inputs, own, training):
    dimensions = max(one.dim() for one in inputs)
    a, b = (one[:, :, None, None] if one.dim() == 2 and dimensions == 4 else one for one in inputs)
    return a * b


ORDER = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0")  # torch.lstm's
LAYERS = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "lstm": _lstm,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "attention": _attention,
    "class_token": _class_token,
    "position": lambda i, own, training, frames, trained=True: i[0] + own["weight"][: i[0].shape[1]],
    "mean_frames": lambda i, own, training: i[0].mean(1),
    "select_frame": lambda i, own, training, index: i[0][:, index],
    "to_sequence": lambda i, own, training: i[0].flatten(2).transpose(1, 2),
    "embedding": lambda i, own, training, vocabulary, dimension: functional.embedding(i[0], own["weight"]),
    "relu": lambda i, own, training: functional.relu(i[0]),
    "relu6": lambda i, own, training: functional.relu6(i[0]),
    "hardsigmoid": lambda i, own, training: functional.hardsigmoid(i[0]),
    "hardswish": lambda i, own, training: functional.hardswish(i[0]),
    "silu": lambda i, own, training: functional.silu(i[0]),
    "gelu": lambda i, own, training: functional.gelu(i[0]),
    "sigmoid": lambda i, own, training: torch.sigmoid(i[0]),
    "tanh": lambda i, own, training: torch.tanh(i[0]),
    "dropout": lambda i, own, training, probability=0.5: functional.dropout(i[0], probability, training),
    "lrn": _lrn,
    "scale": lambda i, own, training, factor: i[0] * factor,
    "add": _add,
    "multiply": _multiply,
    "concat": lambda i, own, training: torch.cat(i, dim=1),
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "flatten": lambda i, own, training: i[0].flatten(1),
}
