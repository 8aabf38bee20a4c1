"""Compares what was written with the module: shapes by `lpsgd show`, class scores by `lpsgd infer`."""

import json
import os
import tempfile

import program
import torch
from errors import UserError

from .network import reordered

MEAN, DEVIATION = 0.45, 0.25  # how images are scaled here
IMAGES = 4
FURTHEST = 1e-2  # of a score's deviation between images; float32 rounds to 1e-6 of the scores
ALIKE = 1e-3  # of the deviation of all scores: where images' scores are closer, they hardly depend on the image


class Differs(UserError):
    """lpsgd computes something else than the module."""


def shapes(path, network):
    """Returns what `lpsgd show` says of the network file."""
    shown = program.ask("show", path, "--json")
    found = {layer["name"]: layer["shape"] for layer in shown["layers"]}
    for layer in network.layers:
        wanted = reordered(layer.output.shape)
        if found[layer.name] != wanted:
            raise Differs(f"{layer.name}: the module gives {wanted}, lpsgd {found[layer.name]}")
    for one in shown["tensors"]:
        wanted = list(network.parameters[one["name"]].shape)
        if one["shape"] != wanted:
            raise Differs(f"{one['name']}: {wanted} in the module, {one['shape']} in lpsgd")
    return shown


def can_compare_scores(shape):
    return len(shape) == 3 and shape[0] in (1, 3)


def scores(folder, module, shape, network):
    """Of random images: the largest difference between the class scores that the module and `lpsgd infer` give, over a
    score's standard deviation between the images; and whether the scores hardly depend on the image. Then the
    difference is over the deviation of all scores."""
    channels, height, width = shape
    (classes,) = network.layers[-1].output.shape
    pixels = torch.randint(0, 256, (IMAGES, height, width, channels), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as scratch:
        images = []
        for number, image in enumerate(pixels):  # a format that needs no library
            images.append(os.path.join(scratch, f"{number}.pnm"))
            with open(images[-1], "wb") as file:
                file.write(b"P%d %d %d 255\n" % (6 if channels == 3 else 5, width, height))
                file.write(image.to(torch.uint8).numpy().tobytes())
        numbers = {"mean": [MEAN] * channels, "std": [DEVIATION] * channels}
        config = {
            "network": os.path.abspath(os.path.join(folder, "network.yaml")),
            "data": {"dataset": "noise", **numbers},
            "train": {"batch_size": 2, "device": "cpu"},
            "schedule": {"lr": 0.1},
        }
        with open(os.path.join(scratch, "config.yaml"), "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML
        weights = os.path.abspath(os.path.join(folder, "weights.safetensors"))
        said = program.ask("infer", scratch, *images, "--checkpoint", weights, "--top", str(classes), "--json")
    ours = torch.zeros(IMAGES, classes, dtype=torch.float64)
    for row, image in enumerate(said["images"]):
        if "error" in image:
            raise UserError(f"lpsgd infer: {image['error']}")
        for one in image["classes"]:
            ours[row, one["class"]] = one["score"]
    if network.ending:
        ours = network.ending(ours, dim=1)
    with torch.no_grad():
        x = (pixels.permute(0, 3, 1, 2) / 255.0 - MEAN) / DEVIATION
        theirs = module(x).double()
    between_images, of_all = theirs.std(dim=0).square().mean().sqrt(), theirs.std()
    alike = bool(between_images <= ALIKE * of_all)
    unit = (of_all if alike else between_images).clamp_min(1e-30)
    return ((ours - theirs).abs().max() / unit).item(), alike
