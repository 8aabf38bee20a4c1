#!/usr/bin/python3
"""Checks the cost model's collective hierarchical with what link.py blocks has measured over real links.

    bench/link/link.py blocks --out FOLDER --batch 16 --steps 20 --rounds 5
    bench/link/predict_blocks.py FOLDER [--lpsgd PROGRAM]

Computing, coding and waiting are those of the rows on one host, without a link. Of each row over a link it prints the
step that the model says, beside the measured one, and both as a ratio to the step of reduce_broadcast.
"""

import argparse
import json
import os
import statistics
import sys
from types import SimpleNamespace

from hosts import BURST
from jobs import CODECS, ROOT, network_file
from predict_check import BITS, LATENCY

sys.path.insert(0, os.path.join(ROOT, "report"))
import program  # noqa: E402
from costmodel import pipeline, run_folder, scaling  # noqa: E402
from errors import UserError  # noqa: E402


def measured(row):
    """A row of link.py as a measured run."""
    seconds = {part: seconds / row.steps for part, seconds in row.seconds.items()}
    return run_folder.Measured("", row.ranks, row.batch * row.ranks, {}, seconds)


class Model:
    def __init__(self, rows):
        self.alone = {row.codec: measured(row) for row in rows if row.over == "local"}
        row = next(row for row in rows if row.over == "local" and row.codec == "none")
        self.computing = scaling.from_runs([self.alone["none"]])
        without = self.step(row, pipeline.NO_LINK, pipeline.SINGLE)
        self.computing = scaling.with_waiting(self.computing, [(row.step_s, without)])

    def step(self, row, link, machines):
        shown = program.show(network_file(row), (f"exchange.codec={CODECS[row.codec]}",))
        coding = scaling.measured_host(self.alone[row.codec], shown["parameters"])
        divide, add = scaling.measured_host(self.alone["none"], shown["parameters"])
        host = pipeline.Host(*coding, share=scaling.CODING_SHARE, divide=divide, add=add)
        return scaling.predict(
            shown, row.codec, row.ranks, row.batch, self.computing, link, host, machines=machines
        )

    def over_the_cable(self, row):
        part = 1 / row.per_host  # of the host's cable
        link = pipeline.Link(BITS[row.rate] * part, LATENCY, BURST[row.rate] * part)
        return self.step(row, link, pipeline.Machines(row.per_host, add=row.hierarchical)).seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of link.py blocks")
    parser.add_argument("--lpsgd", default=os.path.join(ROOT, "build/release/lpsgd"))
    options = parser.parse_args()
    os.environ["LPSGD_PROGRAM"] = options.lpsgd
    try:
        with open(os.path.join(options.folder, "blocks.json"), encoding="utf-8") as file:
            rows = [SimpleNamespace(**row) for row in json.load(file)["rows"]]
        model = Model(rows)
        rows = [row for row in rows if row.over == "cable"]
        predicted = [model.over_the_cable(row) for row in rows]
    except (UserError, OSError, ValueError, KeyError, AttributeError, StopIteration) as error:
        print(f"predict_blocks: {options.folder}: {error!r}", file=sys.stderr)
        return 1
    print("| link | codec | collective | measured ms | predicted ms | predicted / measured | measured / flat | predicted / flat |")
    print("|---|---|---|---|---|---|---|---|")
    errors, flat = [], {}
    for row, seconds in zip(rows, predicted):
        errors.append(abs(seconds / row.step_s - 1))
        cells = [row.rate, row.codec, "hierarchical" if row.hierarchical else "reduce_broadcast"]
        cells += [f"{1000 * row.step_s:.1f}", f"{1000 * seconds:.1f}", f"{seconds / row.step_s:.3f}"]
        if row.hierarchical:
            steps, plain = flat[row.rate, row.codec]
            ratios = [row.steps_s[i] / steps[i] for i in row.steps_s if i in steps]
            cells += [f"{statistics.median(ratios):.3f}", f"{seconds / plain:.3f}"]
        else:
            flat[row.rate, row.codec] = row.steps_s, seconds
            cells += ["", ""]
        print("| " + " | ".join(cells) + " |")
    print(f"steps: median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
