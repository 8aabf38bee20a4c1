"""Batch, layer, group and local response normalisation."""

from torch import nn

from . import views
from .network import Misread, unlike
from .views import must, parameters_of, tensor

AFFINE = "without a weight; lpsgd's layer_norm trains one"
GROUPS_AFFINE = "without a weight and a bias; lpsgd's group_norm trains both"


def batch_norm(to, node, x, module):
    tensor(x, 1 if isinstance(module, nn.BatchNorm1d) else 3)
    stays = "stays in evaluation in training; without that it can be imported, and frozen by train.freeze"
    must(not to.is_evaluating(node), stays)
    must(module.affine, "affine=False; lpsgd's batch normalisation has a weight and a bias")
    must(module.track_running_stats, "track_running_stats=False; lpsgd's has running statistics")
    must(module.momentum is not None, "momentum=None; lpsgd's running statistics have a fixed momentum")
    keys = unlike({"eps": 1e-5, "momentum": 0.1}, eps=float(module.eps), momentum=float(module.momentum))
    names = ("weight", "bias", "running_mean", "running_var")
    return to.emit_with_parameters(node, "batch_norm", [x], module, names, **keys)


def layer_norm_module(to, node, x, module):
    must(module.weight is not None, AFFINE)
    tensors = parameters_of(module, node.target, "weight", "bias")
    return _layer_norm(to, node, x, module.normalized_shape, module.eps, node.target, tensors)


def layer_norm(to, node, x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """As a function: the layer has the name of the module whose weight and bias are given."""
    must(weight is not None, AFFINE)
    layer, tensors = _given(weight, bias)
    return _layer_norm(to, node, x, normalized_shape, eps, layer, tensors)


def _given(weight, bias):
    """The layer's name, and its tensors, of parameters that a function was called with."""
    given = {"weight": weight, **({} if bias is None else {"bias": bias})}
    for suffix, one in given.items():
        must(views.is_whole_parameter(one), f"a {suffix} that is no parameter of the module")
    tensors = {suffix: one.source for suffix, one in given.items()}
    names = [one.name for one in tensors.values()]
    layer = names[0].removesuffix(".weight")
    must(
        names == [f"{layer}.{suffix}" for suffix in tensors],
        f"a weight and a bias that are {' and '.join(names)}; lpsgd's are NAME.weight and NAME.bias",
    )
    return layer, tensors


def _layer_norm(to, node, x, normalized_shape, eps, layer, tensors):
    over = tuple(normalized_shape)
    what = f"normalises the last dimensions {over}"
    image = views.channels_last(x)
    if image is None and len(tensor(x).shape) == 3:
        raise Misread(f"{what} of an image; lpsgd's layer_norm is over its channels")
    must(len(over) == 1, f"{what}; lpsgd's layer_norm is over the last one")
    keys = unlike({"eps": 1e-5, "bias": True}, eps=float(eps), bias="bias" in tensors)
    read = image or x
    out = to.emit_with_tensors(node, "layer_norm", [read], layer, tensors, shape=read.shape, **keys)
    return views.ordered_as(out, x)


def group_norm_module(to, node, x, module):
    must(module.affine, GROUPS_AFFINE)
    tensors = parameters_of(module, node.target, "weight", "bias")
    return _group_norm(to, node, x, module.num_groups, module.eps, node.target, tensors)


def instance_norm(to, node, x, module):
    """The same with a group for each channel."""
    must(module.affine, GROUPS_AFFINE)
    must(not module.track_running_stats, "track_running_stats=True; lpsgd's group_norm has no running statistics")
    tensors = parameters_of(module, node.target, "weight", "bias")
    return _group_norm(to, node, x, module.num_features, module.eps, node.target, tensors)


def group_norm(to, node, x, num_groups, weight=None, bias=None, eps=1e-5):
    must(weight is not None and bias is not None, GROUPS_AFFINE)
    return _group_norm(to, node, x, num_groups, eps, *_given(weight, bias))


def _group_norm(to, node, x, groups, eps, layer, tensors):
    dimensions = len(tensor(x).shape)
    must(dimensions in (1, 3), f"groups of {dimensions} dimensions; lpsgd's group_norm takes images or features")
    keys = unlike({"groups": 32, "eps": 1e-5}, groups=groups, eps=float(eps))
    return to.emit_with_tensors(node, "group_norm", [x], layer, tensors, shape=x.shape, **keys)


def local_response_norm(to, node, x, size, alpha=1e-4, beta=0.75, k=1.0):
    defaults = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
    keys = unlike(defaults, size=size, alpha=float(alpha), beta=float(beta), k=float(k))
    return to.emit(node, "lrn", [tensor(x, 3)], **keys)
