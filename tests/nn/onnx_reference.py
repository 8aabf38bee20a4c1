"""Runs an ONNX model by the definitions of its operators (https://onnx.ai/onnx/operators), in float64. Slow, and
only for the operators that lpsgd writes."""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper


def padded(x, pads, value):
    """`pads`: of the last dimensions, all begins before all ends."""
    n = len(pads) // 2
    width = [(0, 0)] * (x.ndim - n) + list(zip(pads[:n], pads[n:]))
    return np.pad(x, width, constant_values=value)


def windows(x, kernel, strides):
    """(..., places in each dimension, window in each dimension) over the last dimensions."""
    n = len(kernel)
    view = sliding_window_view(x, kernel, axis=tuple(range(x.ndim - n, x.ndim)))
    return view[(Ellipsis, *(slice(None, None, s) for s in strides), *([slice(None)] * n))]


def conv(a, x, w, bias=None):
    view = windows(padded(x, a["pads"], 0), a["kernel_shape"], a["strides"])
    groups, outs = a.get("group", 1), w.shape[0] // a.get("group", 1)
    parts = []
    for g in range(groups):
        ins = w.shape[1]
        part = view[:, g * ins:(g + 1) * ins]
        parts.append(np.tensordot(part, w[g * outs:(g + 1) * outs], axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2))
    out = np.concatenate(parts, 1)
    return out if bias is None else out + bias[:, None, None]


def max_pool(a, x):
    n = len(a["kernel_shape"])
    return windows(padded(x, a["pads"], -np.inf), a["kernel_shape"], a["strides"]).max(axis=tuple(range(-n, 0)))


def average_pool(a, x):
    n = len(a["kernel_shape"])
    axes = tuple(range(-n, 0))
    pads = a.get("pads", [0] * 2 * n)
    total = windows(padded(x, pads, 0), a["kernel_shape"], a["strides"]).sum(axis=axes)
    inside = padded(np.ones_like(x), pads, 1 if a.get("count_include_pad", 0) else 0)
    return total / windows(inside, a["kernel_shape"], a["strides"]).sum(axis=axes)


def lrn(a, x):
    size, channels = a["size"], x.shape[1]
    sums = np.empty_like(x)
    for c in range(channels):
        begin, end = max(0, c - (size - 1) // 2), min(channels - 1, c + -(-(size - 1) // 2))
        sums[:, c] = (x[:, begin:end + 1]**2).sum(axis=1)
    return x / (a["bias"] + a["alpha"] / size * sums)**a["beta"]


def lstm(a, x, w, r, b=None, lengths=None, h=None, c=None):
    assert lengths is None
    cell = a["hidden_size"]
    b = np.zeros(8 * cell) if b is None else b[0]
    h = np.zeros((x.shape[1], cell)) if h is None else h[0]
    c = np.zeros((x.shape[1], cell)) if c is None else c[0]
    out = []
    sigmoid = lambda v: 1 / (1 + np.exp(-v))
    for frame in x:
        gates = frame @ w[0].T + h @ r[0].T + b[:4 * cell] + b[4 * cell:]
        i, o, f, g = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out)[:, None], h[None], c[None]


def pad(a, x, pads):
    return padded(x, list(pads), 0)


def batch_norm(a, x, weight, bias, mean, variance):
    shape = (-1, ) + (1, ) * (x.ndim - 2)
    scale = weight / np.sqrt(variance + a["epsilon"])
    return (x - mean.reshape(shape)) * scale.reshape(shape) + bias.reshape(shape)


def instance_norm(a, x, weight, bias):
    axes = tuple(range(2, x.ndim))
    shape = (-1, ) + (1, ) * (x.ndim - 2)
    scale = weight.reshape(shape) / np.sqrt(x.var(axis=axes, keepdims=True) + a["epsilon"])
    return (x - x.mean(axis=axes, keepdims=True)) * scale + bias.reshape(shape)


def gemm(a, x, w, bias=None):
    assert a == {"transB": 1}
    return x @ w.T if bias is None else x @ w.T + bias


def gather(a, x, indices):
    return np.take(x, indices.astype(int), a.get("axis", 0))


def part(a, x, starts, ends, axes=None, steps=None):
    """Slice. Ends behind the last value mean it, as in Python."""
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    index = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, starts, ends, steps):
        index[axis] = slice(*map(int, bounds))
    return x[tuple(index)]


def reshape(a, x, shape):
    """0 is the input's own size, -1 what is left."""
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])


def softmax(a, x):
    power = np.exp(x - x.max(axis=a.get("axis", -1), keepdims=True))
    return power / power.sum(axis=a.get("axis", -1), keepdims=True)


def split(a, x):
    return tuple(np.split(x, a["parts"], a.get("axis", 0)))


def squeeze(a, x, axes=None):
    return np.squeeze(x, None if axes is None else tuple(axes))


def unsqueeze(a, x, axes):
    return np.expand_dims(x, tuple(axes))


TYPES = {1: np.float64, 7: np.int64}  # of Cast: float is double here
OPERATORS = {
    "Add": lambda a, x, y: x + y,
    "AveragePool": average_pool,
    "BatchNormalization": batch_norm,
    "Cast": lambda a, x: x.astype(TYPES[a["to"]]),
    "Concat": lambda a, *x: np.concatenate(x, a["axis"]),
    "Conv": conv,
    "Erf": lambda a, x: np.vectorize(math.erf)(x),
    "Expand": lambda a, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "HardSigmoid": lambda a, x: np.clip(a["alpha"] * x + a["beta"], 0, 1),
    "Div": lambda a, x, y: x / y,
    "Flatten": lambda a, x: x.reshape(x.shape[0], -1),
    "Gather": gather,
    "Gemm": gemm,
    "Clip": lambda a, x, least, most: np.clip(x, least, most),
    "Identity": lambda a, x: x,
    "InstanceNormalization": instance_norm,
    "LessOrEqual": lambda a, x, y: x <= y,
    "LRN": lrn,
    "LSTM": lstm,
    "MatMul": lambda a, x, y: x @ y,
    "MaxPool": max_pool,
    "Mul": lambda a, x, y: x * y,
    "Pad": pad,
    "Pow": lambda a, x, y: x**y,
    "Range": lambda a, start, limit, delta: np.arange(start.item(), limit.item(), delta.item(), start.dtype),
    "ReduceMean": lambda a, x: x.mean(tuple(a["axes"]), keepdims=a.get("keepdims", 1) == 1),
    "Relu": lambda a, x: np.maximum(x, 0),
    "Reshape": reshape,
    "Shape": lambda a, x: np.array(x.shape, np.int64),
    "Sigmoid": lambda a, x: 1 / (1 + np.exp(-x)),
    "Slice": part,
    "Softmax": softmax,
    "Split": split,
    "Sqrt": lambda a, x: np.sqrt(x),
    "Squeeze": squeeze,
    "Sub": lambda a, x, y: x - y,
    "Sum": lambda a, *x: sum(x),
    "Tanh": lambda a, x: np.tanh(x),
    "Transpose": lambda a, x: np.transpose(x, a.get("perm")),
    "Unsqueeze": unsqueeze,
    "Where": lambda a, condition, x, y: np.where(condition, x, y),
}


def attribute(a):
    return {1: lambda: a.f, 2: lambda: a.i, 7: lambda: list(a.ints)}[a.type]()


def evaluate(model, inputs):
    """The model's outputs, by name."""
    values = {}
    for one in model.graph.initializer:
        array = numpy_helper.to_array(one)
        values[one.name] = array if array.dtype == np.int64 else array.astype(np.float64)
    values.update({name: np.asarray(v, np.float64) for name, v in inputs.items()})
    for node in model.graph.node:
        arguments = [values[i] if i else None for i in node.input]
        attributes = {a.name: attribute(a) for a in node.attribute}
        if node.op_type == "Split":
            attributes["parts"] = len(node.output)
        out = OPERATORS[node.op_type](attributes, *arguments)
        values.update(zip(node.output, out if isinstance(out, tuple) else [out]))
    return {o.name: values[o.name] for o in model.graph.output}
