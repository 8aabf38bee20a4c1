"""Run folders: metrics.jsonl (one object an epoch), config.yaml and, where present, summary.json."""

import json
import math
import os
import sys
from dataclasses import dataclass

import pandas
import yaml
from words import codec_text, section

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


class RunError(Exception):
    """A run folder that cannot be used; the message names the file, and the line if there is one."""


@dataclass
class Run:
    name: str  # the folder's
    codec: str  # "qsgd 4 bit, bucket 512"
    ranks: int | None
    simulated: bool  # moved as many bytes as the codec would, without encoding
    epochs: pandas.DataFrame  # FIELDS, and TEXT_FIELDS if it has them; a row an epoch, in order
    label: str = ""  # distinguishes it from the other runs: set by label_runs


def read_run(folder):
    path = os.path.join(folder, "metrics.jsonl")
    epochs = read_metrics(path)
    config = read_config(os.path.join(folder, "config.yaml"))
    exchange = section(config, "exchange")
    return Run(
        name=os.path.basename(os.path.abspath(folder)),
        codec=codec_text(exchange.get("codec")),
        ranks=ranks_of(folder, exchange),
        simulated=exchange.get("collective") == "simulated",
        epochs=epochs,
    )


def read_metrics(path):
    epochs = pandas.DataFrame(read_records(path))
    return epochs[[*FIELDS, *(field for field in TEXT_FIELDS if field in epochs)]]


def read_records(path):
    """Whole lines as dictionaries, an epoch each, in order."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None

    # A line counts once its newline is there: a running (or killed) job's last line may be half written.
    unfinished = lines.pop()
    if unfinished.strip():
        print(f"lpsgd_report: {path}:{len(lines) + 1}: unfinished last line ignored", file=sys.stderr)

    epochs = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            record = read_record(line, f"{path}:{number}")
            epochs[record["epoch"]] = record  # an epoch run again after a resume replaces the first
    if not epochs:
        raise RunError(f"{path}: holds no finished epoch yet")
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


def read_config(path):
    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RunError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(config, dict):
        raise RunError(f"{path}: not a map")
    return config


def ranks_of(folder, exchange):
    """The number of ranks: from summary.json, else environment.json, else the thread transport's option."""
    for name in ("summary.json", "environment.json"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                ranks = json.load(file).get("ranks")
        except (OSError, ValueError, AttributeError):
            continue  # written at the run's end
        if isinstance(ranks, int):
            return ranks
    return exchange.get("ranks") if exchange.get("transport") == "threads" else None


def label_runs(read):
    """Labels runs by codec, adding ranks, then folder names, only if that is not enough."""
    labels = [run.codec + (" (simulated)" if run.simulated else "") for run in read]
    for part in (lambda run: f"{run.ranks} ranks" if run.ranks else "", lambda run: run.name):
        if len({part(run) for run in read}) > 1:
            labels = [
                f"{label}, {part(run)}" if labels.count(label) > 1 and part(run) else label
                for label, run in zip(labels, read)
            ]
    for label, run in zip(labels, read):
        run.label = label
