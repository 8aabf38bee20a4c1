"""Forward and backward of one rank's step, measured on this machine by `lpsgd bench layers`."""

import math
import os
import sys
import time

import program
from configuration import micro_batches, section

from costmodel import devices, scaling
from costmodel.errors import CostModelError

SECONDS = 120.0  # for all of it, where fewer steps or smaller batches allow that
LONG = 60.0  # of one batch's measurement, after which the other ways are named
STEPS = (3, 3)  # to warm up, and whose median counts
FEWER = (1, 1)
OTHERWISE = "--run RUN takes a run's steps, and --step-seconds S a number"


def say(text):
    print(f"lpsgd predict: {text}", file=sys.stderr, flush=True)


class Bench:
    def __init__(self, path, overrides, config, frames=None):
        train, device = section(config, "train"), devices.configured(config)
        self.is_on_gpu = device == devices.GPU
        threads = train.get("threads") or len(os.sched_getaffinity(0))
        words = [path, *(word for one in overrides for word in ("--set", one))]
        words += ["--frames", str(frames)] if frames else []
        for key in ("compute", "recompute"):
            if key in train:
                words += [f"--{key}", str(train[key])]
        words += ["--device", device, *([] if self.is_on_gpu else ["--threads", str(threads)])]
        self.words = [*words, "--copied", "1000000", "--side", "64"]  # nothing of the roofline is read
        self.where = "this GPU" if self.is_on_gpu else f"{threads} thread{'s' if threads > 1 else ''} of this machine"

    def step(self, batch, counts):
        """Seconds of forward and backward of a step."""
        sizes = ["--batch", str(batch), "--warm-up", str(counts[0]), "--repeats", str(counts[1])]
        rows = program.ask("bench", "layers", *self.words, *sizes, "--json")
        return [sum(row["seconds"] for row in rows if row["pass"] == name) for name in ("forward", "backward")]


def has_open_frames(path, overrides, config):
    """Whether neither the network nor data.truncate says how many frames a sequence has."""
    if section(config, "data").get("truncate"):
        return False
    try:
        usual, longer = (program.show(path, (*overrides, *more))["layers"] for more in ((), ("data.truncate=2",)))
    except program.Refused:  # data that cannot be cut
        return False
    return [layer["shape"] for layer in usual] != [layer["shape"] for layer in longer]


def check_frames(path, overrides, config, frames):
    """Steps of one frame, which the program would measure, take much less time than those of sequences."""
    is_open = has_open_frames(path, overrides, config)
    if is_open and not frames:
        raise CostModelError(
            f"{path}: the network leaves the number of frames open: --frames N says how many are measured here; "
            f"{OTHERWISE}"
        )
    if frames and not is_open:
        raise CostModelError(
            f"{path}: --frames {frames}: the network's input or data.truncate gives the number of frames"
        )


def computing(path, overrides, config, batches, frames=None):
    """A scaling.Computing, of the smallest and the largest of these local batches. On a CPU, where both would take
    longer than SECONDS, of fewer steps, and of a smaller batch than the largest. Of several micro-batches one is
    measured. `frames`: of each sequence, for check_frames()."""
    bench, start = Bench(path, overrides, config, frames), time.monotonic()
    parts = micro_batches(config)
    name = "local batch" if parts == 1 else "micro-batch"
    wanted = sorted({max(1, batch // parts) for batch in (min(batches), max(batches))})
    one, a_sample = None, 0.0
    if not bench.is_on_gpu:
        say("trying a step of one sample here")
        one = bench.step(1, FEWER)
        a_sample = sum(one)
    points, is_told = [], False
    for asked in wanted:
        left = math.inf if bench.is_on_gpu else SECONDS - (time.monotonic() - start)
        batch, counts = affordable(asked, a_sample, left, points[-1][0] if points else 0)
        if (batch, counts) != (asked, STEPS) and not is_told:
            slow = f"forward and backward take about {a_sample * asked:.0f} s at a {name} of {asked}"
            say(f"{slow}, so less is measured; {OTHERWISE}")
            is_told = True
        if batch == 0:
            continue
        say(f"measuring the steps of one rank here, {name} {batch}: {sum(counts)} steps")
        began = time.monotonic()
        seconds = one if one and (batch, counts) == (1, FEWER) else bench.step(batch, counts)
        took = time.monotonic() - began
        points.append((batch, *seconds, 0.0))
        a_sample = sum(seconds) / batch
        say(f"{name} {batch}: {sum(seconds):.3g} s, forward and backward")
        if took > LONG and not is_told:
            say(f"that took {took:.0f} s; {OTHERWISE}")
            is_told = True
    source = f"lpsgd bench layers on {bench.where}, without update and data"
    if points[-1][0] < wanted[-1]:
        source += f"; {name}es above {points[-1][0]} were not measured"
    if frames:
        source += f"; sequences of {frames} frames"
    if parts > 1:
        source += f"; {parts} micro-batches a step"
    return scaling.Computing(tuple(tuple(parts * value for value in point) for point in points), 0.0, source)


def affordable(batch, a_sample, left, known):
    """(local batch, counts of steps) to measure in the seconds that are left; a batch of 0 where one of `known`
    samples, which is measured, is nearly as good."""
    if a_sample * batch * sum(STEPS) <= left:
        return batch, STEPS
    if a_sample * batch * sum(FEWER) <= left:
        return batch, FEWER
    smaller = int(left / (a_sample * sum(FEWER)))
    if known and smaller < 2 * known:
        return 0, FEWER
    return max(1, smaller), FEWER
