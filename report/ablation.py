#!/usr/bin/env python3
"""A Markdown table of runs that differ in their codec: one row a run.

    ablation.py RUN_FOLDER...
"""

import json
import os
import sys

import runs
import table


def row(folder):
    run = runs.read_run(folder)
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        records = [json.loads(line) for line in file if line.endswith("\n") and line.strip()]
    # Of the quietest epoch: whatever else ran on the machine only adds to it.
    coding = min(r["seconds"]["encode"] + r["seconds"]["decode"] for r in records)
    sent = sum(r["bytes_sent"] for r in records)
    ratio = sum(r["bytes_fp32"] for r in records) / sent if sent else float("nan")
    last = records[-1]
    cells = [
        run.name,
        run.codec,
        f"{last['val_top1']:.2f}",
        f"{last['train_loss']:.4f}",
        table.bytes_text(sent / len(records)),
        f"{ratio:.1f}x",
        f"{coding:.2f}",
        f"{max(r['samples_per_s'] for r in records):.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    if len(sys.argv) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    print("| run | codec | top-1 % | train loss | bytes an epoch | less than float32 | encode + decode, s in the quietest epoch | samples/s there |")
    print("|---|---|---|---|---|---|---|---|")
    try:
        for folder in sys.argv[1:]:
            print(row(folder))
    except (runs.RunError, OSError) as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
