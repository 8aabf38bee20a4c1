#!/usr/bin/python3
"""Runs that differ in their codec: a Markdown table with one row a run, and a figure of accuracy against bytes.

    ablation.py RUN_FOLDER... [--out figure.png]
"""

import argparse
import math
import os
import sys
from dataclasses import dataclass

import modules

modules.require(__file__, "matplotlib", "pandas", "yaml")
import runs  # noqa: E402
import table  # noqa: E402

HEADER = (
    "run",
    "codec",
    "top-1 %",
    "train loss",
    "bytes an epoch",
    "less than float32",
    "encode + decode, s an epoch",
    "replicas equal",
)


@dataclass
class Row:
    name: str
    codec: str
    top1: float
    loss: float
    sent: float  # bytes an epoch
    ratio: float
    coding: float  # seconds
    equal: bool


def read_row(folder):
    run = runs.read_run(folder)
    records = runs.read_records(os.path.join(folder, "metrics.jsonl"))
    last = records[-1]
    sent = sum(r["bytes_sent"] for r in records)
    return Row(
        name=run.name,
        codec=run.codec,
        top1=last["val_top1"],
        loss=last["train_loss"],
        sent=sent / len(records),
        ratio=sum(r["bytes_fp32"] for r in records) / sent if sent else float("nan"),
        # Of the fastest epoch: other load on the machine only adds to it.
        coding=min(r["seconds"]["encode"] + r["seconds"]["decode"] for r in records),
        equal=all(r["replicas_equal"] for r in records),
    )


def markdown(rows):
    lines = [HEADER, ["---"] * len(HEADER)]
    for row in rows:
        lines.append(
            (
                row.name,
                row.codec,
                f"{row.top1:.2f}",
                f"{row.loss:.4f}",
                table.bytes_text(row.sent),
                f"{row.ratio:.1f}x",
                f"{row.coding:.2f}",
                "yes" if row.equal else "NO",
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(rows, path):
    """Top-1 against bytes. Runs far below the best are drawn at the lower edge, with their value."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    best = max(row.top1 for row in rows)
    low = max(min(row.top1 for row in rows), best - 14) - 1
    line = (best + 1 - low) / 32  # the height of a label
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    labels = []  # their positions: log2 of the ratio, height
    for row in sorted(rows, key=lambda row: -row.top1):
        inside = row.top1 >= low
        y = row.top1 if inside else low + line
        axes.plot(row.ratio, y, "o" if inside else "v", color="#0072b2" if inside else "#d55e00")
        x, height = math.log2(row.ratio), y + line / 2
        while any(abs(x - other) < 0.7 and abs(height - at) < line for other, at in labels):
            height -= line / 4
        labels.append((x, height))
        text = row.name if inside else f"{row.name} ({row.top1:.1f} %)"
        axes.text(row.ratio * 1.06, height, text, fontsize=9, verticalalignment="center")
    for row in rows:
        if row.name == "none":
            axes.axhline(row.top1, color="0.6", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.set_xlim(0.85, 2.5 * max(row.ratio for row in rows))
    axes.set_ylim(low, best + 1)
    axes.set_xlabel("bytes on the wire, times less than float32")
    axes.set_ylabel("top-1 accuracy after the last epoch (%)")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description="Accuracy, bytes and coding time of runs that differ in their codec.")
    parser.add_argument("folders", nargs="+", metavar="RUN_FOLDER", help="holds metrics.jsonl and config.yaml")
    parser.add_argument("--out", metavar="FIGURE", help="write the figure here: .png, .pdf or .svg")
    options = parser.parse_args()
    try:
        rows = [read_row(folder) for folder in options.folders]
        print(markdown(rows))
        if options.out:
            save(rows, options.out)
    except (runs.RunError, OSError) as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
