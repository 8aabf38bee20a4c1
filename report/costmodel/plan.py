"""The units of lpsgd's exchange (docs/exchange.md): packs of small tensors and chunks of large ones."""

from dataclasses import dataclass

import buckets
import yaml

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


def owners(tensor, number, ranks):
    return {(r + number) % ranks for r, n in enumerate(stripe_buckets(tensor, ranks)) if n}


def pack_bytes(config):
    """Of a run's configuration."""
    exchange, train = config.get("exchange") or {}, config.get("train") or {}
    staged = exchange.get("transport", "mpi") != "nccl" and exchange.get("device_pointers") not in (True, "true")
    return STAGED_PACK_BYTES if train.get("device") == "cuda" and staged else PACK_BYTES


def make_plan(tensors, ranks, pack_bytes=PACK_BYTES, numbers=None):
    """Units in the order in which backward announces tensors: the last one first. `numbers`: of these tensors
    only."""
    units, pack, packed_owners = [], Unit(), set()

    def close():
        nonlocal pack, packed_owners
        if pack.tensors:
            pack.messages = len(packed_owners)
            units.append(pack)
        pack, packed_owners = Unit(), set()

    for number in reversed(range(len(tensors)) if numbers is None else numbers):
        tensor = tensors[number]
        if not tensor.elements:
            continue
        if 4 * tensor.elements < pack_bytes:
            pack.elements += tensor.elements
            pack.wire_bytes += tensor.wire_bytes
            pack.tensors += (number,)
            packed_owners |= owners(tensor, number, ranks)
            if 4 * pack.elements >= pack_bytes:
                close()
            continue
        stripes = stripe_buckets(tensor, ranks)
        chunk_bytes = min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, UNIT_BYTES // ranks))
        a_chunk = max(1, chunk_bytes // (4 * tensor.bucket))
        chunks = 1 if tensor.has_table else -(-max(stripes) // a_chunk)
        for i in range(chunks):
            messages = sum(s * (i + 1) // chunks > s * i // chunks for s in stripes)
            units.append(Unit(tensor.elements // chunks, tensor.wire_bytes / chunks, messages, (number,)))
    close()
    return units


def messages(units, ranks):
    """Of all ranks in a step."""
    return 2 * (ranks - 1) * sum(unit.messages for unit in units)
