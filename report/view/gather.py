"""The runs of a report, from run folders and folders of `lpsgd study`; seeds pooled."""

import dataclasses
import os
import statistics

import numpy as np
import runs
import words
from study import labels as axis_labels
from study import measures


@dataclasses.dataclass
class Group:
    """Runs that differ in their seed only."""

    label: str
    runs: list  # of runs.Run
    network: str
    codec: str  # as the published tables name it: "none", "qsgd4", "onebit64", ...
    transport: str
    ranks: int

    @property
    def name(self):
        """The label, and how many seeds are pooled."""
        return f"{self.label} ({len(self.runs)} seeds)" if len(self.runs) > 1 else self.label

    def finals(self, metric):
        return [float(run.epochs[metric].iloc[-1]) for run in self.runs if metric in run.epochs]

    def mean(self, field):
        """Of an epoch, over all runs."""
        return float(np.mean([run.epochs[field].mean() for run in self.runs]))

    def curve(self, metric, by):
        """(x, mean, deviation) over the epochs that all runs have; by "epoch", "seconds" or "bytes"."""
        length = min(len(run.epochs) for run in self.runs)
        y = np.array([run.epochs[metric].to_numpy(float)[:length] for run in self.runs])
        x = np.array([positions(run, by)[:length] for run in self.runs]).mean(axis=0)
        spread = y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(length)
        return x, y.mean(axis=0), spread

    def to_target(self, metric, target):
        """(epochs, seconds, bytes), each a list of the seeds that reach it."""
        hits = [measures.to_target(run.epochs.to_dict("records"), metric, target) for run in self.runs]
        return [list(column) for column in zip(*(hit for hit in hits if hit))] or [[], [], []]


def positions(run, by):
    if by == "epoch":
        return run.epochs["epoch"].to_numpy(float)
    if by == "bytes":
        return np.cumsum(run.epochs["bytes_sent"].to_numpy(float))
    return np.cumsum((run.epochs["communication_s"] + run.epochs["computation_s"]).to_numpy(float))


def mean_and_deviation(values):
    """The deviation is the sample's (n - 1); None for one value."""
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def read(paths):
    """Runs of folders in the order given, those of a study in the grid's order; the target of the first study."""
    found, target, unfinished = [], None, []
    for path in paths:
        grid = runs.read_json(os.path.join(path, "study.json"))
        if not isinstance(grid.get("runs"), list):
            found.append(runs.read_run(path))
            continue
        if isinstance(grid.get("target"), dict) and target is None:
            target = next(iter(grid["target"].items()), None)
        for name in grid["runs"]:
            folder = os.path.join(path, "runs", str(name))
            summary = runs.read_json(os.path.join(folder, "summary.json"))
            if summary:
                found.append(runs.read_run(folder))
            else:
                unfinished.append(str(name))
    if not found:
        raise runs.RunError(f"{paths[0]}: holds no finished run yet")
    return found, target, unfinished


def network_of(run):
    return str(words.section(run.config, "network").get("name") or "network")


def published_codec(codec):
    """The name in report/published, or the codec in words."""
    if not isinstance(codec, dict):
        return str(codec or "none")
    kind, bucket = codec.get("kind"), codec.get("bucket")
    if (
        kind == "qsgd"
        and codec.get("levels", "sign_magnitude") == "sign_magnitude"
        and codec.get("norm", "max") == "max"
    ):
        usual = {2: 128, 4: 512, 8: 512, 16: 8192}.get(codec.get("bits"))
        if bucket in (None, usual):
            return f"qsgd{codec.get('bits')}"
    if kind == "onebit":
        return f"onebit_{bucket}" if bucket == "column" else f"onebit{bucket}"
    return "none" if kind == "none" else words.codec_text(codec)


def groups(read_runs, omit=()):
    """Pools seeds. `omit`: what a figure's panels or axis say already: "network", "ranks", "transport"."""
    names = group_labels(read_runs, omit)
    pooled = {}
    for run, label in zip(read_runs, names):
        exchange = words.section(run.config, "exchange")
        settings = words.flat(run.config)
        settings.pop("train.seed", None)
        key = (
            label,
            network_of(run),
            run.ranks,
            exchange.get("transport"),
            exchange.get("collective"),
            str(
                sorted(
                    (k, str(v)) for k, v in settings.items() if k.startswith(("exchange", "sync", "train", "schedule"))
                )
            ),
        )
        if key not in pooled:
            pooled[key] = Group(
                label,
                [],
                network_of(run),
                published_codec(exchange.get("codec")),
                str(exchange.get("transport", "mpi")),
                run.ranks or 1,
            )
        pooled[key].runs.append(run)
    return list(pooled.values())


def group_labels(read_runs, omit):
    """A study's own names of its variants; else what differs in the runs' settings."""
    studies = {run.study.get("study") for run in read_runs}
    axes = [run.study.get("axes") for run in read_runs]
    if len(studies) == 1 and all(isinstance(axis, dict) for axis in axes) and len({tuple(axis) for axis in axes}) == 1:
        hidden = {"seed", "train.seed", *omit, *(["config"] if "network" in omit else [])}
        told = [name for name in axes[0] if name not in hidden and len({str(axis[name]) for axis in axes}) > 1]
        if told:
            return [", ".join(axis_labels.of_choice(name, str(axis[name])) for name in told) for axis in axes]
    hidden = {"ranks"} & set(omit) | {f"exchange.{name}" for name in omit} | ({"network"} & set(omit))
    if "network" in omit:  # what belongs to a network's recipe
        hidden |= {"train.batch_size", "train.epochs"}
    return words.labels([run.config for run in read_runs], [run.ranks for run in read_runs], hidden)
