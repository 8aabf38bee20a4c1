"""What a measured run says of computing and coding: seconds of a step of one rank."""

import json
import math
import os
from dataclasses import dataclass

import configuration
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


@dataclass(frozen=True)
class Measured:
    where: str
    ranks: int
    batch: int  # global
    config: dict
    seconds: dict  # of a step, by part

    @property
    def local_batch(self):
        return self.batch / self.ranks

    @property
    def step(self):
        return self.seconds["total"] - self.seconds["eval"]


def batch_size(config, ranks, path):
    size = configuration.batch_size(config, ranks)
    if size is None:
        raise CostModelError(f"{path}: train.batch_size gives no positive whole number for {ranks} ranks")
    return size


def ranks_of(folder):
    path = os.path.join(folder, "environment.json")
    try:
        ranks = json.loads(read_text(path)).get("ranks")
    except (ValueError, AttributeError):
        raise CostModelError(f"{path}: not a JSON object") from None
    if not isinstance(ranks, int) or ranks < 1:
        raise CostModelError(f"{path}: 'ranks' is not a positive whole number")
    return ranks


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
    epochs = epochs[1:] or epochs
    config_path = os.path.join(folder, "config.yaml")
    config, ranks = read_yaml(config_path), ranks_of(folder)
    batch = batch_size(config, ranks, config_path)
    steps = sum(samples for samples, _ in epochs) / batch
    seconds = {part: max(0.0, sum(s[part] for _, s in epochs)) / steps for part in PARTS}
    return Measured(folder, ranks, batch, config, seconds)
