"""The runs of a report, from run folders and folders of `lpsgd study`; seeds pooled."""

import dataclasses
import os
import statistics
import sys

import buckets
import configuration
import files
import numpy as np
import runs
import synchronisation
import warmup
import words
from study import measures

from . import labelling
from .labelling import network_of


@dataclasses.dataclass
class Group:
    """Runs that differ in their seed only."""

    label: str
    runs: list  # of runs.Run
    network: str
    codec: str  # as the published tables name it: "none", "qsgd4", "onebit64", ...
    transport: str
    collective: str
    simulated: bool
    ranks: int

    @property
    def is_every_step(self):
        return synchronisation.kind_of(self.runs[0].config) == "every_step"

    @property
    def name(self):
        """The label, and how many seeds are pooled."""
        return f"{self.label} ({len(self.runs)} seeds)" if len(self.runs) > 1 else self.label

    def timed(self):
        """With the runs whose seconds count; None where there are none."""
        kept = [run for run in self.runs if run.is_timed]
        return dataclasses.replace(self, runs=kept) if kept else None

    def finals(self, metric):
        return [float(run.epochs[metric].iloc[-1]) for run in self.runs if metric in run.epochs]

    def mean(self, field):
        """Of an epoch, over all runs."""
        return float(np.mean([run.epochs[field].mean() for run in self.runs]))

    def curve(self, metric, by):
        """(x, mean, deviation) over epochs(); by "epoch", "seconds" or "bytes"."""
        common = self.epochs()
        kept = [(run, run.epochs["epoch"].isin(common).to_numpy()) for run in self.runs]
        kept = [(run, rows) for run, rows in kept if rows.sum() == len(common)]
        y = np.array([run.epochs[metric].to_numpy(float)[rows] for run, rows in kept])
        x = np.array([positions(run, by)[rows] for run, rows in kept]).mean(axis=0)
        spread = y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(len(common))
        return x, y.mean(axis=0), spread

    def epochs(self):
        """The numbers of those that all runs have; of the first run's if there are none."""
        of_each = [set(run.epochs["epoch"]) for run in self.runs]
        return sorted(set.intersection(*of_each) or of_each[0])

    def to_target(self, metric, target):
        """(epochs, seconds, bytes), each a list of the seeds that reach it; seconds of runs that are
        timed."""
        hits = [(run, measures.to_target(run.epochs.to_dict("records"), metric, target)) for run in self.runs]
        hits = [(run, hit) for run, hit in hits if hit]
        return [
            [epochs for _, (epochs, _, _) in hits],
            [seconds for run, (_, seconds, _) in hits if run.is_timed],
            [sent for _, (_, _, sent) in hits],
        ]


def is_same_machine(group, other):
    """Or one of the same kind, as far as their records say; else whether they are the same copy."""
    machines = [machine_of(one.runs[0]) for one in (group, other)]
    if all(machines):
        return machines[0] == machines[1]
    return group.runs[0].copy == other.runs[0].copy


def machine_of(run):
    """Processor, cores and kinds of devices; nothing where the run's record has none of them. Hosts of one cluster are
    alike."""
    about = run.environment
    devices = about.get("devices")
    parts = [about.get("cpu_info"), about.get("cpu_cores"), sorted(set(map(str, devices))) if devices else None]
    return parts if any(parts) else None


def timed(groups):
    return [kept for group in groups if (kept := group.timed())]


def positions(run, by):
    if by == "epoch":
        return run.epochs["epoch"].to_numpy(float)
    if by == "bytes":
        return np.cumsum(run.epochs["bytes_sent"].to_numpy(float))
    return np.cumsum((run.epochs["communication_s"] + run.epochs["computation_s"]).to_numpy(float))


def mean_and_deviation(values):
    """The deviation is the sample's (n - 1); None for one value, and where one is not finite: a perplexity that is too
    large for a number is NaN."""
    if not values:
        return None, None
    if not np.isfinite(values).all():
        return float(np.mean(values)), None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def read(paths, is_timed=True, tells_all=False):
    """Runs of folders in the order given, those of a study in the grid's order; the target of the first
    study; names of the runs that are left out. The seconds of a study that says `timed: false` do not count,
    and none do unless `is_timed`. A run without a finished epoch is left out with a warning, and so is with
    `tells_all` every other run of a study that is not finished."""
    found, target, unfinished, empty, places, known = [], None, [], [], set(), {}

    def keep(run):
        """Runs with the same settings and seed, of two machines for example, are of different groups."""
        key = labelling.identity(run), run.seed
        run.copy = known[key] = known.get(key, -1) + 1
        found.append(run)

    def add(folder, timed):
        place = os.path.realpath(folder)
        if place in places:  # given before
            return
        places.add(place)
        try:
            keep(read_run(folder, timed))
        except runs.NoEpoch as error:
            unfinished.append(os.path.basename(os.path.abspath(folder)))
            empty.append((folder, error))

    for path in paths:
        grid = files.read_json(os.path.join(path, "study.json"))
        if not isinstance(grid.get("runs"), list):
            add(path, is_timed)
            continue
        if isinstance(grid.get("target"), dict) and target is None:
            target = next(iter(grid["target"].items()), None)
        for name in grid["runs"]:
            folder = os.path.join(path, "runs", str(name))
            summary = files.read_json(os.path.join(folder, "summary.json"))
            is_begun = os.path.isdir(folder) and not measures.read_epochs(folder)
            if summary.get("finished", bool(summary)) or is_begun:
                add(folder, is_timed and grid.get("timed") is not False)
            else:
                unfinished.append(str(name))
                if tells_all:
                    tell(f"{folder}: is not finished; skipped")
    if not found and [folder for folder, _ in empty] == [paths[0]] == paths:
        raise empty[0][1]
    if not found:
        others = "; nor do the others" if len(paths) > 1 else ""
        raise runs.RunError(f"{paths[0]}: holds no finished run yet{others}")
    for folder, _ in empty:
        tell(f"{folder}: holds no finished epoch yet; skipped")
    return found, target, unfinished


def tell(text):
    print(f"lpsgd report: {text}", file=sys.stderr)


def read_run(folder, is_timed):
    run = runs.read_run(folder)
    if not is_timed:
        run.study["timed"] = False
    return run


def published_codec(exchange):
    """The name in report/published, or the codec in words. Rules, a warm-up and another error feedback make
    another codec."""
    codec = exchange.get("codec")
    if exchange.get("rules") or warmup.epochs({"exchange": exchange}):
        return words.exchange_text(exchange)
    if not isinstance(codec, dict):
        return str(codec or "none")
    kind, bucket = codec.get("kind"), codec.get("bucket")
    if kind == "none":
        return "none"
    is_usual = all(
        codec.get(key, usual) == usual
        for key, usual in (
            ("levels", "sign_magnitude"),
            ("norm", "max"),
            ("error_feedback", kind == "onebit"),
        )
    )
    if kind == "qsgd" and is_usual:
        if bucket in (None, buckets.QSGD.get(codec.get("bits"))):
            return f"qsgd{codec.get('bits')}"
    if kind == "onebit" and is_usual:
        return f"onebit_{bucket}" if bucket == "column" else f"onebit{bucket}"
    return words.codec_text(codec)


def groups(read_runs, omit=()):
    """Pools seeds. `omit`: what a figure's panels or axis say already: "network", "ranks", "transport"."""
    pooled = {}
    for run, label in zip(read_runs, labelling.labels(read_runs, omit)):
        exchange = configuration.section(run.config, "exchange")
        key = labelling.identity(run)
        if key not in pooled:
            pooled[key] = Group(
                label,
                [],
                network_of(run),
                published_codec(exchange),
                str(exchange.get("transport", "mpi")),
                str(exchange.get("collective", "reduce_broadcast")),
                run.simulated,
                run.ranks or 1,
            )
        pooled[key].runs.append(run)
    return list(pooled.values())
