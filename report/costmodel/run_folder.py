"""What a measured run says of computing and coding: seconds of a step of one rank."""

import json
import math
import os
from dataclasses import dataclass

import configuration
import synchronisation
from files import read_text, read_yaml

from costmodel.errors import CostModelError

PARTS = (
    "data",
    "forward",
    "backward",
    "update",
    "other",
    "encode",
    "decode",
    "transfer",
    "exposed_comm",
    "total",
    "eval",
)


# A synchronisation's differences and their mean move 28 bytes of each weight; an update by SGD with momentum
# moves 20.
UPDATES = 1.4


@dataclass(frozen=True)
class Measured:
    where: str
    ranks: int
    batch: int  # global
    config: dict
    seconds: dict  # of a step, by part; update: without that of synchronisations
    exchanges: synchronisation.Exchanges = synchronisation.EVERY_STEP  # in the steps that were measured
    block: int | None = None  # ranks of a block of hierarchical_local_sgd

    @property
    def local_batch(self):
        return self.batch / self.ranks

    @property
    def step(self):
        return self.seconds["total"] - self.seconds["eval"]

    def values_coded(self, elements):
        """In a step, that each rank encodes and decodes: in an exchange of K ranks n(1 + 1/K) and 2n."""
        found, block = self.exchanges, self.block or self.ranks
        encoded = (found.gradients + found.everywhere) * (1 + 1 / self.ranks) + found.within * (1 + 1 / block)
        return elements * encoded / found.steps, 2 * elements * found.total / found.steps


def batch_size(config, ranks, path):
    size = configuration.batch_size(config, ranks)
    if size is None:
        raise CostModelError(f"{path}: train.batch_size gives no positive whole number for {ranks} ranks")
    return size


def environment_of(folder):
    """(ranks, how many of them each machine has)."""
    path = os.path.join(folder, "environment.json")
    try:
        environment = json.loads(read_text(path))
        ranks, hosts = environment.get("ranks"), environment.get("hosts")
    except (ValueError, AttributeError):
        raise CostModelError(f"{path}: not a JSON object") from None
    if not isinstance(ranks, int) or ranks < 1:
        raise CostModelError(f"{path}: 'ranks' is not a positive whole number")
    known = isinstance(hosts, list) and len(hosts) == ranks
    return ranks, synchronisation.machines_of(map(str, hosts)) if known else [ranks]


def epoch_seconds(line, where):
    """samples and seconds by part of one epoch."""
    try:
        record = json.loads(line)
        samples, seconds = record["samples"], {part: record["seconds"][part] for part in PARTS}
    except (ValueError, TypeError, KeyError):
        raise CostModelError(
            f"{where}: not an epoch with samples and seconds of {', '.join(PARTS)}"
        ) from None
    for value in (samples, *seconds.values()):
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or value < -1e-3
        ):
            raise CostModelError(f"{where}: '{value}' is not a number of seconds or samples")
    if samples < 1 or seconds["total"] <= 0 or seconds["forward"] + seconds["backward"] <= 0:
        raise CostModelError(f"{where}: an epoch without samples or seconds")
    return samples, seconds


def read(folder):
    """The mean over the run's epochs; the first one, which also warms up, counts only if it is alone."""
    path = os.path.join(folder, "metrics.jsonl")
    lines = [(n, line) for n, line in enumerate(read_text(path).split("\n")[:-1], start=1) if line.strip()]
    if not lines:
        raise CostModelError(f"{path}: holds no finished epoch")
    epochs = [epoch_seconds(line, f"{path}:{n}") for n, line in lines]
    config_path = os.path.join(folder, "config.yaml")
    config, (ranks, machines) = read_yaml(config_path), environment_of(folder)
    batch = batch_size(config, ranks, config_path)
    first = 1 if len(epochs) > 1 else 0
    per_epoch = max(1, round(epochs[-1][0] / batch))
    exchanges = synchronisation.exchanges(config, len(epochs), per_epoch) - synchronisation.exchanges(
        config, first, per_epoch
    )
    steps = sum(samples for samples, _ in epochs[first:]) / batch
    seconds = {part: max(0.0, sum(s[part] for _, s in epochs[first:])) / steps for part in PARTS}
    seconds["update"] /= 1 + UPDATES * (exchanges.within + exchanges.everywhere) / exchanges.steps
    block = synchronisation.block_size(config, ranks, machines)
    if exchanges.within and not block:
        raise CostModelError(f"{config_path}: sync.ranks_per_block does not divide {ranks} ranks")
    return Measured(folder, ranks, batch, config, seconds, exchanges, block)
