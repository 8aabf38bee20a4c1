"""A run's epochs from metrics.jsonl, and when it reached a target."""

import json
import math
import os

from configuration import section

# A run's metrics that a target may name, and whether more is better.
TARGETS = {
    "val_top1": True,
    "val_top5": True,
    "train_top1": True,
    "val_loss": False,
    "train_loss": False,
    "val_perplexity": False,
    "train_perplexity": False,
}


def read_epochs(folder):
    """Records in order, one an epoch. A line that is not whole is left out; of an epoch run twice the last
    counts."""
    epochs = {}
    try:
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith("\n") else None
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict) and type(record.get("epoch")) is int:
                    epochs[record["epoch"]] = record
    except OSError:
        pass
    return [epochs[number] for number in sorted(epochs)]


def number(record, key):
    value = record.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def coding(record):
    """(mean relative error, the largest, norm of the residual) of the tensors in a record's codec_error; None
    without them. The mean is over the tensors whose coding loses something; of none it is 0."""
    tensors = [value for value in section(record, "codec_error").values() if isinstance(value, dict)]
    errors = [error for tensor in tensors if (error := number(tensor, "error")) is not None]
    if not errors:
        return None
    lossy = [error for error in errors if error > 0]
    residuals = [residual for tensor in tensors if (residual := number(tensor, "residual")) is not None]
    return sum(lossy) / len(lossy) if lossy else 0.0, max(errors), math.hypot(*residuals)


def training_seconds(record):
    """Of an epoch, without evaluation: what samples_per_s counts."""
    parts = number(record, "communication_s"), number(record, "computation_s")
    return None if None in parts else sum(parts)


def total_seconds(record):
    return number(section(record, "seconds"), "total") or training_seconds(record) or 0.0


def reached(value, metric, target):
    if value is None:
        return False
    return value >= target if TARGETS.get(metric, True) else value <= target


def to_target(records, metric, target):
    """(epoch, training seconds, bytes sent) at the end of the first epoch that reaches it, or None."""
    seconds, sent = 0.0, 0
    for record in records:
        seconds += training_seconds(record) or 0.0
        sent += number(record, "bytes_sent") or 0
        if reached(number(record, metric), metric, target):
            return record["epoch"], seconds, sent
    return None
