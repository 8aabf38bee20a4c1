"""What a measured run says of computing and coding: seconds of a step of one rank."""

import glob
import json
import math
import os
from dataclasses import dataclass

import configuration
import program
import synchronisation
import warmup
import words
from configuration import section
from errors import UserError
from files import read_json, read_text, read_yaml

from costmodel import devices
from costmodel.errors import CostModelError

# The first step of a run may take half as long again: of so many it adds 6 %, of fewer more.
LEAST_STEPS = 8
# On a GPU the first step searches for algorithms, and graphs are launched about eleven steps later.
LEAST_STEPS_FROM_THE_FIRST = 200

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
MAIN_THREAD = ("data", "forward", "backward", "exposed_comm", "update", "eval")

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
    exchanges: synchronisation.Exchanges = synchronisation.EVERY_STEP  # in these steps
    block: int | None = None  # ranks of a block of hierarchical_local_sgd
    adding: int = 1  # ranks of a block of the collective hierarchical
    steps: int = 1  # that were measured
    is_cold: bool = False  # the run's first step is one of them
    device: str = devices.CPU

    @property
    def local_batch(self):
        return self.batch / self.ranks

    @property
    def said(self):
        """The folder, and what its seconds rest on."""
        first = ", the run's first among them" if self.is_cold else ""
        return f"{self.where} ({words.counted(self.steps, 'step')}{first})"

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


def environment_of(folder, config):
    """(ranks, how many of them each machine has, their device)."""
    path = os.path.join(folder, "environment.json")
    try:
        environment = json.loads(read_text(path))
        ranks, hosts = environment.get("ranks"), environment.get("hosts")
    except (ValueError, AttributeError):
        raise CostModelError(f"{path}: not a JSON object") from None
    if not isinstance(ranks, int) or ranks < 1:
        raise CostModelError(f"{path}: 'ranks' is not a positive whole number")
    known = isinstance(hosts, list) and len(hosts) == ranks
    machines = synchronisation.machines_of(map(str, hosts)) if known else [ranks]
    return ranks, machines, devices.of_environment(environment, config, path)


def epoch_seconds(line, where):
    """samples and seconds by part of one epoch."""
    try:
        record = json.loads(line)
        samples, seconds = record["samples"], {part: record["seconds"][part] for part in PARTS}
    except (ValueError, TypeError, KeyError):
        raise CostModelError(
            f"{where}: not an epoch with samples and seconds of {', '.join(PARTS)}"
        ) from None
    check_seconds(where, samples, seconds)
    return samples, seconds


def check_seconds(where, samples, seconds):
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


def epoch_lines(folder):
    """(where, line) of each finished epoch."""
    path = os.path.join(folder, "metrics.jsonl")
    lines = enumerate(read_text(path).split("\n")[:-1], start=1)
    return [(f"{path}:{number}", line) for number, line in lines if line.strip()]


def finished_epochs(folder, batch):
    """(steps, seconds by part) of each."""
    epochs = [epoch_seconds(line, where) for where, line in epoch_lines(folder)]
    return [(samples / batch, seconds) for samples, seconds in epochs]


def epochs_of_others(folder, ranks):
    """How many finished epochs end with the last one on another number of ranks: a run may be resumed with another.
    bytes_fp32, what float32 would have sent, tells their number in each epoch."""
    records = [json.loads(line) for _, line in epoch_lines(folder)]
    known = [(record.get("step"), record.get("bytes_fp32")) for record in records]
    if not all(type(value) is int for pair in known for value in pair):
        return 0
    try:
        parameters = program.show(f"{folder}/config.yaml")["parameters"]
    except UserError:  # of an earlier revision
        return 0
    steps = [step - before for (step, _), before in zip(known, [0, *(step for step, _ in known)])]
    others = [sent != 8 * (ranks - 1) * parameters * count for (_, sent), count in zip(known, steps)]
    return max((number for number, is_other in enumerate(others, start=1) if is_other), default=0)


def unfinished_epoch(folder, finished, ranks, batch):
    """(steps, seconds by part, steps of a whole epoch) of the epoch in which the run stopped: its newest checkpoint
    has the sums. None without one."""
    newest = None
    for path in glob.glob(os.path.join(glob.escape(folder), "checkpoints", "*", "manifest.json")):
        manifest = read_json(path)
        data, epoch = section(manifest, "data"), manifest.get("epoch")
        if (manifest.get("ranks"), data.get("batch_size")) != (ranks, batch) or epoch not in range(finished, 1 << 30):
            continue  # of an epoch that is finished by now, or from before a resume with other ranks
        if newest is None or manifest.get("step", 0) > newest[1].get("step", 0):
            newest = path, manifest
    if newest is None or section(newest[1], "data").get("batch") == 0:
        return None
    path, manifest = newest
    try:
        mean, data = manifest["epoch_so_far"]["seconds"]["mean"], manifest["data"]
        seconds = {part: mean[part] for part in PARTS if part != "other"}
        seconds["other"] = seconds["total"] - sum(seconds[part] for part in MAIN_THREAD)
        steps, whole = data["batch"], data["batches"]
    except (TypeError, KeyError):
        raise CostModelError(f"{path}: not a checkpoint's manifest with seconds of an epoch") from None
    check_seconds(path, steps, seconds)
    return steps, seconds, whole


def read_enough(folder):
    """As read(). CostModelError where the steps are too few for a prediction."""
    run = read(folder)
    if run.steps < LEAST_STEPS:
        raise CostModelError(
            f"{folder}: {words.counted(run.steps, 'step')} measured, and a prediction needs {LEAST_STEPS} or more; "
            f"train longer, such as with --steps {4 * LEAST_STEPS}"
        )
    if run.device == devices.GPU and run.is_cold and run.steps < LEAST_STEPS_FROM_THE_FIRST:
        raise CostModelError(
            f"{folder}: {words.counted(run.steps, 'step')} measured, the run's first among them, which take longer on a "
            "GPU; train two epochs, of which the second counts"
        )
    return run


def read(folder):
    """The mean over the run's steps on its present number of ranks; the first epoch, which also warms up, counts only
    if those after it are too few."""
    config_path = os.path.join(folder, "config.yaml")
    epochs_path = os.path.join(folder, "metrics.jsonl")
    read_text(epochs_path)
    config = read_yaml(config_path)
    ranks, machines, device = environment_of(folder, config)
    batch = batch_size(config, ranks, config_path)
    epochs = finished_epochs(folder, batch)
    rest = unfinished_epoch(folder, len(epochs), ranks, batch)
    parts = epochs + ([rest[:2]] if rest else [])
    if not parts:
        raise CostModelError(f"{epochs_path}: holds no finished epoch, and no checkpoint has the sums of steps")
    start = epochs_of_others(folder, ranks)
    if start == len(parts):
        raise CostModelError(
            f"{folder}: was resumed with {words.counted(ranks, 'rank')}, but no epoch is finished with so many yet"
        )
    first = start + 1 if round(sum(steps for steps, _ in parts[start + 1 :])) >= LEAST_STEPS else start
    per_epoch = max(1, round(epochs[-1][0]) if epochs else rest[2])
    if warm := warmup.steps(config, per_epoch):
        first = max(first, -(-warm // per_epoch))
        if round(sum(steps for steps, _ in parts[first:])) < LEAST_STEPS:
            raise CostModelError(
                f"{folder}: fewer than {LEAST_STEPS} steps are measured behind the epochs of exchange.warmup_epochs"
            )
    steps = sum(count for count, _ in parts[first:])

    def exchanges(count):
        more = rest[0] if rest and count > len(epochs) else 0
        return synchronisation.exchanges(config, min(count, len(epochs)), per_epoch, more)

    found = exchanges(len(parts)) - exchanges(first)
    seconds = {part: max(0.0, sum(s[part] for _, s in parts[first:])) / steps for part in PARTS}
    seconds["update"] /= 1 + UPDATES * (found.within + found.everywhere) / found.steps
    block = synchronisation.block_size(config, ranks, machines)
    if found.within and not block:
        raise CostModelError(f"{config_path}: sync.ranks_per_block does not divide {ranks} ranks")
    adding = synchronisation.size_that_adds(config, ranks, machines)
    if not adding:
        raise CostModelError(
            f"{folder}/environment.json: the hosts do not tell the blocks of the collective hierarchical: the ranks of a "
            "machine are not consecutive, or machines have different numbers of them"
        )
    return Measured(folder, ranks, batch, config, seconds, found, block, adding, round(steps), first == start, device)
