"""Networks as the cost model sees them: layers, tensors, and the exact bytes that a codec makes of them."""

import functools
import math
import os
from dataclasses import dataclass

import buckets
import program

from costmodel.errors import CostModelError

NETWORKS = os.path.join(program.ROOT, "configs", "networks")
# Where a study's network is a variant of its file.
STUDY_SETTINGS = {"resnet50": ("network.parameters.stride_in=1",)}


@dataclass(frozen=True)
class Codec:
    kind: str  # none, qsgd, onebit
    bits: int = 32
    bucket: int | str = 0
    all_tensors: bool = False  # min_elements: 0

    @property
    def config(self):
        """As in a configuration."""
        if self.kind == "none":
            return "{kind: none}"
        bits = f"bits: {self.bits}, " if self.kind == "qsgd" else ""
        return f"{{kind: {self.kind}, {bits}bucket: {self.bucket}}}"


CODECS = {
    "none": Codec("none"),
    **{f"qsgd{bits}": Codec("qsgd", bits, bucket) for bits, bucket in buckets.QSGD.items()},
    "onebit64": Codec("onebit", 1, 64),
    "onebit_column": Codec("onebit", 1, "column", all_tensors=True),
}


@dataclass(frozen=True)
class Tensor:
    name: str
    kind: str
    shape: tuple
    elements: int


@dataclass(frozen=True)
class Coded:
    """What a codec makes of a network's gradient; one encoded copy."""

    wire_bytes: int
    coded_elements: int  # values that are encoded, not sent as float32
    coded_tensors: tuple  # their numbers of values
    buckets: int  # of the coded tensors


@dataclass(frozen=True)
class Network:
    name: str
    parameters: int
    flops: int  # forward, one sample, multiply-add = 2
    layers: int
    threshold: int  # tensors with fewer values are sent as float32
    tensors: tuple

    @functools.lru_cache(maxsize=None)
    def coded(self, name):
        """The codec `name` of CODECS on this network."""
        codec = CODECS[name]
        wire = number = 0
        sizes = []
        for tensor in self.tensors:
            lengths = bucket_lengths(tensor, codec, self.threshold)
            if lengths is None:
                wire += 4 * tensor.elements
                continue
            wire += sum(n * bucket_bytes(codec, length) for length, n in lengths)
            number += sum(n for _, n in lengths)
            sizes.append(tensor.elements)
        return Coded(wire, sum(sizes), tuple(sizes), number)


def bucket_lengths(tensor, codec, threshold):
    """Pairs of a bucket's length and how many buckets have it; None for a tensor that is sent as float32."""
    if codec.kind == "none" or (tensor.elements < threshold and not codec.all_tensors):
        return None
    length = buckets.length(codec.bucket, tensor.kind, tensor.shape, tensor.elements)
    full, rest = divmod(tensor.elements, length)
    return [(length, full)] + ([(rest, 1)] if rest else [])


def bucket_bytes(codec, values):
    scales = 8 if codec.kind == "onebit" else 4
    return scales + 4 * math.ceil(values * codec.bits / 32)


def stripes(sizes, ranks):
    """How many stripes tensors of these sizes have in all: small tensors have fewer than there are ranks."""
    return sum(min(ranks, -(-size // buckets.UNIT)) for size in sizes)


def from_show(shown):
    tensors = tuple(Tensor(t["name"], t["kind"], tuple(t["shape"]), t["elements"]) for t in shown["tensors"])
    return Network(
        shown["network"],
        shown["parameters"],
        shown["flops"],
        len(shown["layers"]),
        shown["threshold"],
        tensors,
    )


@functools.lru_cache(maxsize=None)
def study_network(name):
    """A network of configs/networks, with the study's settings."""
    path = os.path.join(NETWORKS, name + ".yaml")
    if os.sep in name or not os.path.isfile(path):
        known = sorted(file[:-5] for file in os.listdir(NETWORKS) if file.endswith(".yaml"))
        raise CostModelError(f"no network '{name}'; there are {', '.join(known)}")
    return from_show(program.show(path, STUDY_SETTINGS.get(name, ())))
