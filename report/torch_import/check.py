"""Compares what is written with the module, with other weights than the module's: those may hide much, such
as normalisations whose scale is 0. The network file's layers are computed in PyTorch (replica.py), in
evaluation and in training, with gradients; and by lpsgd: shapes by `lpsgd show`, scores by `lpsgd infer`."""

import contextlib
import copy
import json
import math
import os
import random
import tempfile

import program
import torch
from errors import UserError
from torch.nn import functional

from . import network as networks
from . import replica, weights_file
from .source import cause

MEAN, DEVIATION = 0.45, 0.25  # how images are scaled here
IMAGES = 4
STATISTICS_SAMPLES = 8  # of the batch that running statistics are taken from
BATCHES = 3  # of training, each with other random numbers
SAMPLES = 3  # of a batch; not traced.BATCH
DIFFERS = "the layers of lpsgd would not compute what the module does"
FURTHEST = 1e-3  # of the largest value; they are computed alike, in float32
FURTHEST_SCORE = 3e-2  # of a score's deviation between images; float32 rounds to 1e-6 of the scores


@contextlib.contextmanager
def other_weights(module, network, shape=None):
    """Lends the module weights and running statistics that hide nothing. `shape`: of an image, to which the
    statistics then fit about: through many gates a signal that nothing normalises would fade."""
    own = [*module.parameters(), *module.buffers(), *network.parameters.values()]  # some may be twice
    kept = [(tensor, tensor.detach().clone()) for tensor in own]
    generator = torch.Generator().manual_seed(1)
    try:
        with torch.no_grad():
            for name, tensor in network.parameters.items():
                if name.endswith("running_var"):
                    tensor.uniform_(0.5, 2, generator=generator)
                elif tensor.dim() > 1:
                    fan_in = tensor[0].numel()
                    tensor.normal_(0, math.sqrt(2 / fan_in), generator=generator)
                elif name.endswith(".weight"):
                    tensor.uniform_(0.5, 1, generator=generator)
                else:
                    tensor.normal_(0, 0.2, generator=generator)
            if shape is not None:
                _measure_statistics(module, shape, generator)
        yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
        module.zero_grad(set_to_none=True)
        module.eval()


def _measure_statistics(module, shape, generator):
    norms = [m for m in module.modules() if getattr(m, "running_var", None) is not None]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    module.train()
    try:
        for norm in norms:
            norm.momentum = 1.0  # this batch's alone
        module(torch.randn(STATISTICS_SAMPLES, *shape, generator=generator))
    except Exception as error:
        many = f"{STATISTICS_SAMPLES} samples"
        raise UserError(f"in training the module does not take {many}: {cause(error)}") from error
    finally:
        module.eval()
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
    for norm in norms:
        deviation = norm.running_var.sqrt()
        norm.running_mean += 0.2 * deviation * torch.randn(deviation.shape, generator=generator)
        norm.running_var *= 0.5 + 1.5 * torch.rand(deviation.shape, generator=generator)
        norm.running_var.clamp_(min=1e-3)


@contextlib.contextmanager
def _dropped_in_order():
    """PyTorch 2 draws dropout's random numbers in the order of memory, here in that of the dimensions."""
    dropout = functional.dropout

    def contiguous(input, p=0.5, training=True, inplace=False):
        return dropout(input if inplace else input.contiguous(), p, training, inplace)

    functional.dropout = contiguous
    try:
        yield
    finally:
        functional.dropout = dropout


def functions(module, network, shape, vocabulary):
    """Scores of a batch in evaluation; scores, gradients and running statistics of a few in training.
    `vocabulary`: None, or how many tokens there are. Raises UserError. In float32, and where that differs in
    float64: rounding errors may grow in a deep network that normalises small batches."""
    with _dropped_in_order():
        try:
            _functions(module, network.parameters, network, shape, vocabulary)
        except UserError:
            if not _same_in_double(module, network, shape, vocabulary):
                raise


def _same_in_double(module, network, shape, vocabulary):
    try:
        double = copy.deepcopy(module).double()
        parameters = {n: network.tensor_of(double, n).view(one.shape) for n, one in network.parameters.items()}
        _functions(double, parameters, network, shape, vocabulary)
    except Exception:  # it may differ there, too, or not compute in float64 at all
        return False
    return True


def _functions(module, parameters, network, shape, vocabulary):
    for seed in range(BATCHES + 1):
        generator = torch.Generator().manual_seed(seed)
        if vocabulary:
            x = torch.randint(0, vocabulary, (SAMPLES, *shape), generator=generator)
        else:
            x = torch.randn(SAMPLES, *shape, generator=generator, dtype=next(iter(parameters.values())).dtype)
        _compare(module, parameters, network, x, seed > 0, seed)


def _compare(module, parameters, network, x, training, seed):
    copies = {name: tensor.detach().clone() for name, tensor in parameters.items()}
    theirs_of = {name: network.tensor_of(module, name) for name in copies}
    for name, tensor in copies.items():
        tensor.requires_grad_(training and theirs_of[name].requires_grad)
    module.zero_grad(set_to_none=True)
    module.train(training)
    when = "in training" if training else "in evaluation"
    _seed(seed)
    try:
        theirs = module(x)
    except Exception as error:
        raise UserError(f"{when} the module does not take {len(x)} samples: {cause(error)}") from error
    _seed(seed)
    ours = replica.run(network, copies, x, training)
    _close(ours, theirs, f"{when} the scores")
    if not training:
        return
    if theirs.requires_grad:
        _compare_gradients(theirs_of, copies, network, ours, theirs, seed)
    for name, tensor in theirs_of.items():
        if not isinstance(tensor, torch.nn.Parameter):
            what = f"after a step the values of {network.origins[name]}"
            _close(copies[name].view_as(tensor), tensor, what)


def _compare_gradients(theirs_of, copies, network, ours, theirs, seed):
    origins = network.origins
    weights = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(seed))
    try:
        (theirs * weights).sum().backward()
    except RuntimeError as error:
        raise UserError(f"PyTorch cannot train the module: {cause(error)}") from error
    (ours * weights).sum().backward()
    gradients = {name: theirs_of[name].grad for name, tensor in copies.items() if tensor.requires_grad}
    for name, gradient in gradients.items():
        if gradient is None:
            what = "gets no gradient in the module, without requires_grad=False"
            raise UserError(f"{DIFFERS}: {origins[name]} {what}")
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():  # some are 0, such as that of a bias in front of a normalisation
        own = copies[name].grad.view_as(gradient)
        _close(own, gradient, f"the gradients of {origins[name]}", largest / 100)


def _close(ours, theirs, what, least=1e-6):
    if ours.shape != theirs.shape:
        raise UserError(f"{DIFFERS}: {what} have the shape {tuple(theirs.shape)}, not {tuple(ours.shape)}")
    distance = ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(least)).item()
    if not distance <= FURTHEST:
        where = "docs/from-pytorch.md says why"
        raise UserError(f"{DIFFERS}: {what} differ by {distance:.1e} of the largest; {where}")


def _seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def shapes(path, network):
    """Returns what `lpsgd show` says of the network file. Raises UserError."""
    try:
        shown = program.ask("show", path, "--json")
    except program.Refused as error:
        said = str(error).replace(path, "network.yaml")
        raise UserError(f"lpsgd refuses the network file: {said}") from None
    found = {layer["name"]: layer["shape"] for layer in shown["layers"]}
    for layer in network.layers:
        wanted = networks.reordered(layer.output.shape)
        if found[layer.name] != wanted:
            raise UserError(f"{layer.name}: the module gives {wanted}, lpsgd {found[layer.name]}")
    for one in shown["tensors"]:
        wanted = list(network.parameters[one["name"]].shape)
        if one["shape"] != wanted:
            raise UserError(f"{one['name']}: {wanted} in the module, {one['shape']} in lpsgd")
    return shown


def can_infer(shape):
    return len(shape) == 3 and shape[0] in (1, 3)


def scores(path, module, shape, network):
    """Of random images: the largest difference between the class scores that the module and `lpsgd infer`
    give, over a score's standard deviation between the images. `path`: of the network file."""
    pixels = _images(*shape)
    ours = _inferred(path, network, pixels)
    if network.ending:
        ours = network.ending(ours, dim=1)
    x = (pixels.permute(0, 3, 1, 2).contiguous() / 255.0 - MEAN) / DEVIATION
    with torch.no_grad():
        theirs = module.eval()(x).double()
    deviation = theirs.std(dim=0).square().mean().sqrt().clamp_min(1e-30)
    distance = ((ours - theirs).abs().max() / deviation).item()
    if not distance <= FURTHEST_SCORE:
        by = f"{distance:.1e} of their deviation"
        raise UserError(f"lpsgd's scores of images differ from PyTorch's by {by}")
    return distance


def _images(channels, height, width):
    """Random, and different as a whole, too: noise alone has the same mean everywhere, which is all that is
    left of it after a global pooling. (IMAGES, H, W, C), bytes."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.rand(IMAGES, channels, 3, 3, generator=generator)
    coarse = functional.interpolate(coarse, (height, width)).permute(0, 2, 3, 1)
    contrast = torch.rand(IMAGES, 1, 1, 1, generator=generator)
    noise = torch.rand(IMAGES, height, width, channels, generator=generator) - 0.5
    return ((coarse + contrast * noise).clamp(0, 1) * 255).to(torch.int64)


def _inferred(path, network, pixels):
    """(IMAGES, classes), the scores before any softmax."""
    (classes,) = network.layers[-1].output.shape
    channels = pixels.shape[-1]
    config = {
        "network": os.path.abspath(path),
        "data": {"dataset": "noise", "mean": [MEAN] * channels, "std": [DEVIATION] * channels},
        "train": {"batch_size": 2, "device": "cpu"},
        "schedule": {"lr": 0.1},
    }
    with tempfile.TemporaryDirectory() as scratch:
        names = [os.path.join(scratch, f"{number}.pnm") for number in range(IMAGES)]
        images = [_written(image, name) for image, name in zip(pixels, names)]
        with open(os.path.join(scratch, "config.yaml"), "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        weights = os.path.join(scratch, "weights.safetensors")
        weights_file.save(weights, network.parameters)
        options = ("--checkpoint", weights, "--top", str(classes), "--json")
        said = program.ask("infer", scratch, *images, *options)
    found = torch.zeros(len(images), classes, dtype=torch.float64)
    for row, image in enumerate(said["images"]):
        if "error" in image:
            raise UserError(f"lpsgd infer: {image['error']}")
        for one in image["classes"]:
            found[row, one["class"]] = one["score"]
    return found


def _written(image, path):
    """The path of the image, in a format that needs no library."""
    height, width, channels = image.shape
    with open(path, "wb") as file:
        file.write(b"P%d %d %d 255\n" % (6 if channels == 3 else 5, width, height))
        file.write(image.to(torch.uint8).numpy().tobytes())
    return path
