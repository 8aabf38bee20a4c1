"""runs.csv and epochs.csv, and the same as Parquet: a row a run and a row an epoch, in the grid's order."""

import csv
import io
import os

import files
from configuration import section

from . import measures, parquet

# What differs when a run is repeated; everything else is the same bit for bit.
TIME_COLUMNS = (
    "jobs",
    "timed",
    "seconds",
    "training_s",
    "communication_s",
    "computation_s",
    "samples_per_s",
    "seconds_to_target",
)
PARTS = (
    "total",
    "data",
    "forward",
    "backward",
    "encode",
    "transfer",
    "decode",
    "exposed_comm",
    "update",
    "eval",
    "other",
)
# Of metrics.jsonl: {column: (object, key)}; only the mean has `other`.
TIME_PARTS = {
    f"{name}_{part}": (name, part)
    for name in ("seconds", "seconds_min", "seconds_max")
    for part in PARTS
    if name == "seconds" or part != "other"
}
RESULTS = (
    "train_loss",
    "val_loss",
    "train_top1",
    "val_top1",
    "val_top5",
    "train_perplexity",
    "val_perplexity",
)
# Of local steps; empty where every step exchanges gradients.
LOCAL = ("synchronisations", "bytes_average", "replica_distance")
BETWEEN = "bytes_between_blocks"  # of the collective hierarchical alone
SAMPLES = ("samples", "frames", "padding")
CODING = ("codec_error", "codec_error_max", "codec_residual")
EPOCH_TIMES = ("samples_per_s", "communication_s", "computation_s")
# Numbers of an epoch's record that are the same in every repetition.
EPOCH_FIELDS = (
    "step",
    "lr",
    *RESULTS,
    *SAMPLES,
    "bytes_sent",
    "bytes_fp32",
    BETWEEN,
    *LOCAL,
    "bytes_per_synchronisation",
    "bad_samples",
)
ABOUT = (
    "label",
    "status",
    "config_file",
    "network",
    "ranks",
    "rank_count",
    "transport",
    "collective",
    "codec_settings",
    "simulated",
    "batch_size",
    "seed",
    "digest",
    "revision",
)


def is_done(folder, digest):
    """Whether the run ended: its summary is whole, and its settings are these."""
    summary = files.read_json(os.path.join(folder, "summary.json"))
    about = files.read_json(os.path.join(folder, "study.json"))
    is_whole = isinstance(summary.get("epochs"), int) and "bytes_fp32" in summary and summary.get("finished", True)
    return is_whole and about.get("digest") == digest


class Tables:
    """Keeps the rows of finished runs, which are read once."""

    def __init__(self, study, runs, folder_of):
        self.study = study
        self.runs = runs
        self.folder_of = folder_of
        self.finished = {}  # digest -> (row, epoch rows)
        self.failed = set()

    def write(self, out):
        rows, epochs = [], []
        for run in self.runs:
            row, records = self._of(run)
            rows.append(row)
            epochs += records
        axes = [axis.name for axis in self.study.axes]
        about = [name for name in ABOUT if name not in axes]
        target = ["target", "epochs_to_target", "bytes_to_target"] if self.study.target else []
        times = [name for name in TIME_COLUMNS if self.study.target or name != "seconds_to_target"]
        write_both(
            out,
            "runs",
            [
                "run",
                *axes,
                *about,
                "epochs",
                "steps",
                *RESULTS,
                "best_val_top1",
                "best_epoch",
                "bytes_sent",
                "bytes_fp32",
                BETWEEN,
                *LOCAL,
                "replicas_equal",
                *target,
                *times,
            ],
            rows,
        )
        write_both(
            out,
            "epochs",
            [
                "run",
                *axes,
                "label",
                "digest",
                "epoch",
                *EPOCH_FIELDS,
                "replicas_equal",
                "simulated",
                *CODING,
                *EPOCH_TIMES,
                *TIME_PARTS,
            ],
            epochs,
        )

    def _of(self, run):
        if run.digest in self.finished:
            return self.finished[run.digest]
        folder = self.folder_of(run)
        if is_done(folder, run.digest):
            records = measures.read_epochs(folder)
            epochs = [self._epoch_row(run, record) for record in records]
            self.finished[run.digest] = self._run_row(run, folder, records), epochs
            return self.finished[run.digest]
        status = "failed" if run.digest in self.failed else "pending"
        return {**self._about(run), "status": status}, []

    def _about(self, run):
        return {
            **settings_of(run.settings),
            "batch_size": run.batch_size,
            "ranks": run.ranks,
            **self._identity(run),
            "config_file": self.study.relative(run.config),
            "rank_count": run.ranks,
        }

    def _identity(self, run):
        """The columns in which a run's row and those of its epochs agree."""
        return {
            "run": os.path.basename(self.folder_of(run)),
            **run.values,
            "label": run.label,
            "digest": run.digest[:16],
        }

    def _run_row(self, run, folder, records):
        summary = files.read_json(os.path.join(folder, "summary.json"))
        environment = files.read_json(os.path.join(folder, "environment.json"))
        about = files.read_json(os.path.join(folder, "study.json"))
        last = records[-1] if records else {}
        row = {
            **self._about(run),
            "status": "done",
            "codec_settings": summary.get("codec"),
            "revision": environment.get("git_hash"),
            "epochs": summary["epochs"],
            "steps": summary.get("step"),
        }
        row.update({key: measures.number(last, key) for key in RESULTS})
        row.update(
            {
                key: measures.number(summary, key)
                for key in (
                    "best_val_top1",
                    "best_epoch",
                    "bytes_sent",
                    "bytes_fp32",
                    "seconds",
                    "communication_s",
                    "computation_s",
                    "samples_per_s",
                )
            }
        )
        row["jobs"] = measures.number(about, "jobs")
        row["timed"] = self.study.is_timed and about.get("timed") is not False and (row["jobs"] or 1) <= 1
        row["training_s"] = sum(measures.training_seconds(record) or 0.0 for record in records)
        for key in (BETWEEN, *LOCAL):
            known = [v for record in records if (v := measures.number(record, key)) is not None]
            if known:
                row[key] = sum(known) / len(known) if key == "replica_distance" else sum(known)
        checks = [record.get("replicas_equal") for record in records]
        row["replicas_equal"] = None if None in checks or not checks else all(checks)
        if self.study.target:
            metric, value = self.study.target
            row["target"] = f"{metric} {value:g}"
            at = measures.to_target(records, metric, value)
            columns = ("epochs_to_target", "seconds_to_target", "bytes_to_target")
            row.update(zip(columns, at or (None, None, None)))
        return row

    def _epoch_row(self, run, record):
        row = {**self._identity(run), "epoch": record["epoch"]}
        row.update({key: measures.number(record, key) for key in (*EPOCH_FIELDS, *EPOCH_TIMES)})
        row["replicas_equal"] = record.get("replicas_equal")
        row["simulated"] = record.get("simulated") is True
        row.update(zip(CODING, measures.coding(record) or ()))
        for column, (name, part) in TIME_PARTS.items():
            row[column] = measures.number(section(record, name), part)
        return row


def settings_of(settings):
    """What the tables say of a configuration."""
    exchange, train = section(settings, "exchange"), section(settings, "train")
    return {
        "network": section(settings, "network").get("name"),
        "transport": exchange.get("transport", "mpi"),
        "collective": exchange.get("collective", "reduce_broadcast"),
        "simulated": exchange.get("collective") == "simulated",
        "seed": train.get("seed", 1),
    }


def write_both(out, name, columns, rows):
    files.replace(os.path.join(out, name + ".csv"), csv_text(columns, rows).encode())
    files.replace(os.path.join(out, name + ".parquet"), parquet.table(columns, rows))


def csv_text(columns, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(column)) for column in columns])
    return text.getvalue()


def cell(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)
