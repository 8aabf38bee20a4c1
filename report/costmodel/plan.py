"""The units of lpsgd's exchange (docs/exchange.md): packs of small tensors and chunks of large ones."""

import itertools
from dataclasses import dataclass

import buckets
import synchronisation
import yaml

from costmodel import devices, pipeline

PACK_BYTES = 256 << 10  # of float32
STAGED_PACK_BYTES = 2 << 20  # on a GPU, where messages travel through the host's memory
CHUNK_BYTES = 1 << 20  # of a rank's stripe
UNIT_BYTES, LEAST_CHUNK_BYTES = 16 << 20, 1 << 16  # of all stripes; of one, whatever the number of ranks


@dataclass
class Unit:
    elements: int = 0
    wire_bytes: float = 0.0  # of one encoded copy
    messages: int = 0  # that one rank would send in round 1 if it also sent its own part
    tensors: tuple = ()  # numbers, in the network's order
    owners: frozenset = frozenset()  # ranks to which these go; known of a plan's units


@dataclass(frozen=True)
class PlannedTensor:
    name: str
    elements: int
    wire_bytes: int
    bucket: int
    has_table: bool


def planned(shown):
    """Tensors of `lpsgd show --json`, with the bucket of each one's codec in values."""
    tensors = []
    for t in shown["tensors"]:
        codec = yaml.safe_load(t["codec_options"])
        bucket = buckets.length(codec.get("bucket", buckets.UNIT), t["kind"], t["shape"], t["elements"])
        has_table = codec.get("levels") == "optimal"
        tensors.append(PlannedTensor(t["name"], t["elements"], t["wire_bytes"], bucket, has_table))
    return tensors


def stripe_buckets(tensor, ranks):
    """Buckets of each stripe."""
    count = -(-tensor.elements // tensor.bucket)
    return [count * (r + 1) // ranks - count * r // ranks for r in range(ranks)]


def owners_of(buckets_of_stripes, number):
    """Of stripes that are not empty, of the tensor with this number."""
    ranks = len(buckets_of_stripes)
    return frozenset((r + number) % ranks for r, n in enumerate(buckets_of_stripes) if n)


def pack_bytes(config, device):
    """Of a run with this configuration on this device."""
    return STAGED_PACK_BYTES if devices.is_staged(config, device) else PACK_BYTES


def announced(tensors, numbers):
    """Layers backwards, and the tensors of each forwards."""
    layers = itertools.groupby(numbers, lambda number: tensors[number].name.rpartition(".")[0])
    return [number for layer in reversed([list(group) for _, group in layers]) for number in layer]


def make_plan(tensors, ranks, pack_bytes=PACK_BYTES, numbers=None):
    """Units in the order in which backward announces tensors: those of the last layer first. `numbers`: of these
    tensors only."""
    units, pack = [], Unit()

    def close():
        nonlocal pack
        if pack.tensors:
            pack.messages = len(pack.owners)
            units.append(pack)
        pack = Unit()

    for number in announced(tensors, range(len(tensors)) if numbers is None else numbers):
        tensor = tensors[number]
        if not tensor.elements:
            continue
        if 4 * tensor.elements < pack_bytes:
            pack.elements += tensor.elements
            pack.wire_bytes += tensor.wire_bytes
            pack.tensors += (number,)
            pack.owners |= owners_of(stripe_buckets(tensor, ranks), number)
            if 4 * pack.elements >= pack_bytes:
                close()
            continue
        stripes = stripe_buckets(tensor, ranks)
        chunk_bytes = min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, UNIT_BYTES // ranks))
        a_chunk = max(1, chunk_bytes // (4 * tensor.bucket))
        chunks = 1 if tensor.has_table else -(-max(stripes) // a_chunk)
        for i in range(chunks):
            to = owners_of([s * (i + 1) // chunks - s * i // chunks for s in stripes], number)
            units.append(Unit(tensor.elements // chunks, tensor.wire_bytes / chunks, len(to), (number,), to))
    close()
    return units


def messages(units, ranks, machines=pipeline.SINGLE):
    """Of all ranks in a step."""
    if not machines.add:
        return 2 * (ranks - 1) * sum(unit.messages for unit in units)
    count = ranks // machines.size
    between = sum(2 * (count - 1) * unit.messages for unit in units)
    # In each block: the shares of each place, and its means that are handed on.
    places = sum(len({rank % machines.size for rank in unit.owners}) for unit in units)
    return between + 2 * count * (machines.size - 1) * places


def bytes_of_a_rank(wire, elements, ranks, machines=pipeline.SINGLE):
    """(what it sends in an exchange, the part of it that goes to other machines), from the bytes of an encoded copy."""
    adding = machines.size if machines.add else 1
    copies = synchronisation.copies(ranks, synchronisation.EVERY_STEP, adding=adding)
    float32 = synchronisation.float32_copies(ranks, synchronisation.EVERY_STEP, adding=adding)
    to_others = 2 * (ranks // machines.size - 1) * machines.size // adding  # copies
    return (copies * wire + float32 * 4 * elements) / ranks, to_others * wire / ranks
