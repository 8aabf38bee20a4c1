"""Predicts the steps of a configuration for other ranks, links and codecs.
docs/cost-model.md has the equations.
"""

import functools
import math
from dataclasses import dataclass, replace

import program
from configuration import section

from costmodel import devices, pipeline, plan
from costmodel.errors import CostModelError

# Of coding beside computing, that computing waits for; bench/link/predict_check.py calibrates it.
CODING_SHARE = 0.5
# Of forward and backward, that does not shrink with the batch, where one batch was measured.
FIXED_SHARE = 0.05
BENCH_ELEMENTS = 4 << 20
BENCH_ELEMENTS_OF_A_GPU = 16 << 20  # more than its cache holds
ON_A_CPU = "benchmarked on a CPU"  # the source of a GPU's coding, without a GPU on this machine


@dataclass(frozen=True)
class Computing:
    """Seconds of one rank at some local batches, ascending: (batch, forward, backward, data and the rest)."""

    points: tuple
    update: float
    source: str
    waiting: tuple = ()  # (ranks, share of computing): how long ranks wait for each other, without a link

    def waits(self, ranks):
        """The share at the measured number of ranks that is nearest."""
        if ranks == 1 or not self.waiting:
            return 0.0
        return min(self.waiting, key=lambda known: abs(math.log(known[0] / ranks)))[1]

    def at(self, batch):
        """forward, backward, rest at a local batch: on the line through the two nearest points,
        never below a part.
        """
        if len(self.points) == 1:
            known, *seconds = self.points[0]
            scale = FIXED_SHARE + (1 - FIXED_SHARE) * batch / known
            return [s * scale for s in seconds]
        above = next((i for i, p in enumerate(self.points) if p[0] >= batch), len(self.points) - 1)
        low, high = self.points[max(0, above - 1)], self.points[max(1, above)]
        part = (batch - low[0]) / (high[0] - low[0])
        nearest = low if batch < low[0] else high
        return [
            max(a + (b - a) * part, 0.1 * n * batch / nearest[0])
            for a, b, n in zip(low[1:], high[1:], nearest[1:])
        ]


def from_runs(runs):
    """Several runs of one local batch are averaged."""
    batches = {}
    for run in runs:
        batches.setdefault(run.local_batch, []).append(run)
    points = []
    for batch, group in sorted(batches.items()):
        def mean(*parts, group=group):
            return sum(r.seconds[p] for r in group for p in parts) / len(group)

        points.append((batch, mean("forward"), mean("backward"), mean("data", "other")))
    update = sum(r.seconds["update"] for r in runs) / len(runs)
    return Computing(tuple(points), update, ", ".join(r.said for r in runs))


def from_seconds(seconds, batch):
    """A third of a step is taken for forward."""
    return Computing(
        ((batch, seconds / 3, 2 * seconds / 3, 0.0),), 0.0, f"--step-seconds at a local batch of {batch}"
    )


@functools.lru_cache(maxsize=None)
def bench(codec, device=devices.CPU):
    """Seconds per value of encoding, and of decoding and adding, on this machine: on a GPU, or on one core."""
    elements = BENCH_ELEMENTS if device == devices.CPU else BENCH_ELEMENTS_OF_A_GPU
    words = ["--device", device, "--elements", str(elements), "--codec", codec]
    rows = program.ask("bench", "codec", "--json", *words)
    seconds = {row["operation"]: row["seconds_min"] / row["elements"] for row in rows}
    return seconds["encode"], seconds["decode_add"]


def measured_host(run, elements):
    """Rates of a run's own codec."""
    encoded, decoded = run.values_coded(elements)
    return run.seconds["encode"] / encoded, run.seconds["decode"] / decoded


def host_for(codec, runs, elements, base, add=False, device=devices.CPU):
    """Coding rates of a codec (as text) on a device, and their source: of the runs that used it, else of the bench,
    scaled by what runs took over it. `add`: also those of blocks that add their gradients.
    """
    if add:
        float32, _ = host_for("{kind: none}", runs, elements, base, device=device)
        base = replace(base, divide=float32.encode, add=float32.decode)
    rates = {}
    for run in runs:
        # The seconds of the others are of other numbers of values, or also of copies and sums.
        collective = section(run.config, "exchange").get("collective")
        if run.ranks > 1 and run.exchanges.total and run.adding == 1 and collective not in ("allreduce", "simulated"):
            rates.setdefault(codec_of(program.show(f"{run.where}/config.yaml")), []).append(
                measured_host(run, elements)
            )
    if codec in rates:
        mine = rates[codec]
        encode, decode = (sum(r[i] for r in mine) / len(mine) for i in (0, 1))
        return replace(base, encode=encode, decode=decode), "measured"
    where = device if device == devices.CPU or devices.has_gpu() else devices.CPU
    if where != device and not rates:
        raise CostModelError(
            "the coding of a GPU cannot be benchmarked here, where there is none, and no run of several ranks on GPUs is given"
        )
    encode, decode = bench(codec, where)
    scales = [sum(own) / sum(bench(other, where)) for other, found in rates.items() for own in found if sum(own) > 0]
    scale = math.exp(sum(map(math.log, scales)) / len(scales)) if scales else 1.0
    return replace(base, encode=encode * scale, decode=decode * scale), "benchmarked" if where == device else ON_A_CPU


def codec_of(shown):
    """The codec of most values, with all its options, as `show` prints it."""
    values = {}
    for t in shown["tensors"]:
        values[t["codec_options"]] = values.get(t["codec_options"], 0) + t["elements"]
    return max(values, key=values.get)


def ready_times(shown, units, forward, backward, overlap):
    """When each unit's last tensor is final: backward passes the layers in turn,
    each as long as its share of FLOPs. Of several micro-batches it is that of the last one.
    """
    trained = {tensor["name"].rpartition(".")[0] for tensor in shown["tensors"]}
    names = [layer["name"] for layer in shown["layers"]]
    first = next((i for i, name in enumerate(names) if name in trained), 0)  # nothing in front has a backward
    layers = [layer for layer in shown["layers"][first:] if not layer["frozen"]]
    total = sum(layer["flops"] for layer in layers) or 1
    after, done = {}, 0
    for layer in reversed(layers):
        done += layer["flops"]
        after[layer["name"]] = done / total
    final = []
    for tensor in shown["tensors"]:
        name = tensor["name"].rpartition(".")[0]
        final.append(after.get(name, 1.0))
    if not overlap:
        return [forward + backward] * len(units)
    last = backward / shown["micro_batches"]
    times = [forward + backward - last + last * max(final[t] for t in unit.tensors) for unit in units]
    for i in range(1, len(times)):
        times[i] = max(times[i], times[i - 1])  # units start in order
    return times


@dataclass(frozen=True)
class Step:
    ranks: int
    codec: str
    local_batch: float
    computation: float
    coding: float
    link_busy: float
    exposed: float
    waiting: float  # for other ranks, and for cores that code
    messages: int
    bytes_per_rank: float
    bytes_to_others: float  # of them, to other machines
    exchanges: float = 1.0

    @property
    def seconds(self):
        return self.computation + self.exposed + self.waiting

    @property
    def samples_per_s(self):
        return self.ranks * self.local_batch / self.seconds


def predict(
    shown, codec, ranks, local_batch, computing, link, host, overlap=True, pack_bytes=plan.PACK_BYTES,
    machines=pipeline.SINGLE,
):
    """A Step. `shown`: `lpsgd show --json` with this codec; `link`: of each rank, to ranks of other machines."""
    forward, backward, rest = computing.at(local_batch)
    computation = forward + backward + rest + computing.update
    tensors = plan.planned(shown)
    units = plan.make_plan(tensors, ranks, pack_bytes)
    wire = sum(t.wire_bytes for t in tensors)
    if ranks == 1 and codec == "{kind: none}":
        return Step(1, codec, local_batch, computation, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)
    ready = ready_times(shown, units, forward, backward, overlap)
    times = pipeline.simulate(units, ready, ranks, link, host, machines)
    exposed = max(0.0, times.end - forward - backward)
    hidden = max(0.0, times.coding - exposed)
    waiting = computing.waits(ranks) * computation + host.share * hidden
    sent = plan.bytes_of_a_rank(wire, shown["parameters"], ranks, machines)
    return Step(ranks, codec, local_batch, computation, times.coding, times.sending, exposed, waiting,
                plan.messages(units, ranks, machines), *sent)


def with_waiting(computing, measured):
    """`measured`: (seconds of a measured step, the Step that is predicted for it); what is missing is
    waiting, once in an exchange.
    """
    shares = {}
    for seconds, step in measured:
        if step.exchanges:
            missing = max(0.0, seconds - step.seconds) / step.exchanges
            shares.setdefault(step.ranks, []).append(missing / step.computation)
    return replace(computing, waiting=tuple((ranks, sum(s) / len(s)) for ranks, s in sorted(shares.items())))
