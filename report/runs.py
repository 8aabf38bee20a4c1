"""Run folders: metrics.jsonl (one object an epoch), config.yaml and, where present, summary.json."""

import json
import math
import os
import sys
from dataclasses import dataclass, field

import pandas
import words
from configuration import section
from errors import UserError
from files import read_json, read_text, read_yaml
from study import measures

# What a line of metrics.jsonl must have for the figure and the table.
FIELDS = (
    "epoch",
    "train_top1",
    "val_top1",
    "samples_per_s",
    "communication_s",
    "computation_s",
    "bytes_sent",
    "bytes_fp32",
)
# What it has for text only.
TEXT_FIELDS = ("train_perplexity", "val_perplexity")
# What the report uses where it is there.
MORE_FIELDS = ("step", "lr", "train_loss", "val_loss", "val_top5")


class RunError(UserError):
    """A run folder that cannot be used; the message names the file, and the line if there is one."""


class NoEpoch(RunError):
    """A run that has not finished an epoch yet."""


@dataclass
class Run:
    name: str  # the folder's
    codec: str  # "qsgd 4 bit, bucket 512", and its rules
    ranks: int | None
    simulated: bool  # all-reduced as many bytes as the codec's; its accuracy has no meaning
    epochs: pandas.DataFrame  # FIELDS, and TEXT_FIELDS if it has them; a row an epoch, in order
    label: str = ""  # distinguishes it from the other runs: set by label_runs
    folder: str = ""
    config: dict = field(default_factory=dict)  # config.yaml: every key with the value in force
    environment: dict = field(default_factory=dict)  # environment.json, where it is there
    study: dict = field(default_factory=dict)  # study.json: what the run is in the grid of `lpsgd study`
    copy: int = 0  # how many runs before it have the same settings and seed

    @property
    def seed(self):
        return section(self.config, "train").get("seed")

    @property
    def progress(self):
        """"3 of 10 epochs" of a run that is not finished, else empty."""
        done, asked = int(self.epochs["epoch"].iloc[-1]), section(self.config, "train").get("epochs")
        return f"{done} of {asked} epochs" if type(asked) is int and done < asked else ""

    @property
    def is_timed(self):
        """Whether it had the machine to itself: seconds of runs beside other work, or of several at once, are
        not comparable."""
        jobs = self.study.get("jobs")
        return self.study.get("timed") is not False and (not isinstance(jobs, int) or jobs <= 1)


def read_run(folder):
    path = os.path.join(folder, "metrics.jsonl")
    is_run = any(os.path.exists(os.path.join(folder, name)) for name in ("config.yaml", "study.json"))
    if is_run and not os.path.exists(path):
        raise NoEpoch(f"{path}: is not there yet, so no epoch is finished")
    epochs = read_metrics(path)
    config = read_yaml(os.path.join(folder, "config.yaml"))
    exchange = section(config, "exchange")
    environment = read_json(os.path.join(folder, "environment.json"))
    study = read_json(os.path.join(folder, "study.json"))
    return Run(
        name=os.path.basename(os.path.abspath(folder)),
        codec=words.exchange_text(exchange),
        ranks=ranks_of(folder, exchange),
        simulated=exchange.get("collective") == "simulated",
        epochs=epochs,
        folder=folder,
        config=config,
        environment={**environment, "command": words_of(environment.get("command"))},
        study={**study, "study": str(study.get("study", "")), "command": words_of(study.get("command"))},
    )


def read_metrics(path):
    records = read_records(path)
    epochs = pandas.DataFrame(records)
    kept = epochs[list(FIELDS)].copy()
    for name in (*TEXT_FIELDS, *MORE_FIELDS):
        if name in epochs:
            kept[name] = pandas.to_numeric(epochs[name], errors="coerce")
    errors = [measures.coding(record) for record in records]
    if any(errors):
        kept["codec_error"] = [error[0] if error else math.nan for error in errors]
    return kept


def read_records(path):
    """Whole lines as dictionaries, an epoch each, in order."""
    lines = read_text(path).split("\n")
    # A line counts once its newline is there: a running (or killed) job's last line may be half written.
    unfinished = lines.pop()
    epochs = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            record = read_record(line, f"{path}:{number}")
            epochs[record["epoch"]] = record  # an epoch run again after a resume replaces the first
    if not epochs:
        raise NoEpoch(f"{path}: holds no finished epoch yet")
    if unfinished.strip():
        print(f"lpsgd report: {path}:{len(lines) + 1}: unfinished last line ignored", file=sys.stderr)
    return [epochs[epoch] for epoch in sorted(epochs)]


def read_record(line, where):
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RunError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict):
        raise RunError(f"{where}: not an object")
    for field in FIELDS:
        if field not in record:
            raise RunError(f"{where}: '{field}' is missing")
        value = record[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RunError(f"{where}: '{field}' is {json.dumps(value)}, not a finite number")
    return record


def ranks_of(folder, exchange):
    """The number of ranks: from summary.json, else environment.json, else the thread transport's option."""
    for name in ("summary.json", "environment.json"):
        ranks = read_json(os.path.join(folder, name)).get("ranks")
        if type(ranks) is int:
            return ranks
    return exchange.get("ranks") if exchange.get("transport") == "threads" else None


def words_of(command):
    """A command line as a list of words."""
    return [str(word) for word in command] if isinstance(command, list) else []


def label_runs(read):
    """Labels each run by its codec and by what else differs among them; by its folder's name if that is not
    enough."""
    labels = words.labels([run.config for run in read], [run.ranks for run in read])
    for run, label in zip(read, labels):
        run.label = f"{label}, {run.name}" if labels.count(label) > 1 else label
