#!/usr/bin/python3
"""A picture of some steps of a trace that `lpsgd train --trace DIR` wrote: per rank, what the main thread
does, what the communication thread codes, and each tensor, pack or chunk in flight. Exposed communication is
shaded.

    trace_picture.py DIR --out figure.png [--steps 5,6] [--ranks 0,1]

Needs Debian's python3-matplotlib. Ends with 2 and one line on standard error when it is missing or the
trace cannot be read.
"""

import argparse
import json
import os
import sys

import command
import modules
from errors import UserError

modules.require(__file__, "matplotlib")
import style  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402

# Okabe and Ito's colours, but for a lighter update: within a row they differ as greys too.
COLORS = {
    "data": "#000000",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "update": "#F3D3E4",
    "encode": "#E69F00",
    "reduce": "#D55E00",
    "decode": "#F0E442",
    "on its way": "#009E73",
}
EXPOSED = "exposed communication"
SHADE = "#D5888855"


class TraceError(UserError):
    """In the trace, or in what is asked of it."""


class Rank:
    """Spans of one file in milliseconds: (start, duration, kind) by row, and steps by number."""

    def __init__(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                trace = json.load(file)
            events = trace["traceEvents"]
            self.rank = trace["distributedInfo"]["rank"]
            names = {
                e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
            }
            self.rows, self.steps, self.exposed = {}, {}, []
            for e in events:
                if e["ph"] != "X":
                    continue
                start, length, name = e["ts"] / 1e3, e["dur"] / 1e3, e["name"]
                if name.startswith("ProfilerStep#"):
                    self.steps[int(name.split("#")[1])] = (start, start + length)
                    continue
                kind = (
                    "on its way"
                    if name.startswith("nccl:")
                    else name.split(" ")[0] if name != EXPOSED else EXPOSED
                )
                if kind == EXPOSED:
                    self.exposed.append((start, length))
                elif kind in COLORS:
                    self.rows.setdefault(names[e["tid"]], []).append((start, length, kind))
            places = ("main thread", "communication thread: coding")
            order = sorted(
                self.rows, key=lambda row: (places.index(row) if row in places else len(places), row)
            )
            self.rows = {row: self.rows[row] for row in order}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TraceError(f"{path}: {type(error).__name__}: {error}") from None

    def within(self, spans, begin, end):
        return [s for s in spans if s[0] < end and s[0] + s[1] > begin]


def read(folder):
    try:
        names = sorted(n for n in os.listdir(folder) if n.startswith("rank") and n.endswith(".json"))
    except OSError as error:
        raise TraceError(f"{folder}: {error.strerror}") from None
    if not names:
        raise TraceError(f"{folder}: holds no rankNNNN.json")
    return [Rank(os.path.join(folder, n)) for n in names]


def draw(ranks, steps):
    for rank in ranks:
        for step in steps:
            if step not in rank.steps:
                known = f"{min(rank.steps)} to {max(rank.steps)}" if rank.steps else "none"
                raise TraceError(f"step {step} is not in the trace of rank {rank.rank}; there: {known}")
    origin = min(rank.steps[steps[0]][0] for rank in ranks)
    heights = [len(rank.rows) for rank in ranks]
    figure, all_axes = style.plt.subplots(
        len(ranks),
        1,
        sharex=True,
        squeeze=False,
        layout="constrained",
        figsize=(11, 0.9 + 0.36 * sum(heights) + 0.5 * len(ranks)),
        gridspec_kw={"height_ratios": heights},
    )
    for rank, axes in zip(ranks, all_axes[:, 0]):
        begin, end = rank.steps[steps[0]][0], rank.steps[steps[-1]][1]
        for y, (name, spans) in enumerate(rank.rows.items()):
            for kind in COLORS:
                bars = [
                    (start - origin, length)
                    for start, length, k in rank.within(spans, begin, end)
                    if k == kind
                ]
                axes.broken_barh(
                    bars, (y - 0.4, 0.8), facecolor=COLORS[kind], edgecolor=COLORS[kind], linewidth=0.4
                )
        waited = 0
        for start, length in rank.within(rank.exposed, begin, end):
            axes.axvspan(start - origin, start + length - origin, color=SHADE, linewidth=0, zorder=0)
            waited += length
        for step in steps:
            axes.axvline(rank.steps[step][0] - origin, color="0.3", linewidth=0.8, linestyle=(0, (4, 2)))
        total = sum(rank.steps[s][1] - rank.steps[s][0] for s in steps)
        axes.set_title(
            f"rank {rank.rank}, step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}: "
            f"{100 * waited / total:.1f} % exposed",
            fontsize=10,
            loc="left",
        )
        axes.set_yticks(
            range(len(rank.rows)), [n.replace("communication thread: ", "") for n in rank.rows], fontsize=8.5
        )
        axes.invert_yaxis()
        axes.set_xlim(0, max(r.steps[steps[-1]][1] for r in ranks) - origin)
    last = all_axes[-1, 0]
    last.set_xlabel("milliseconds")
    handles = [Patch(color=color, label=kind) for kind, color in COLORS.items()] + [
        Patch(color=SHADE, label=EXPOSED)
    ]
    style.under(last, handles, len(handles), handlelength=1.2)
    return figure


def numbers(text):
    return sorted({int(n) for n in text.split(",")})


def neighbours(text):
    found = numbers(text)
    if found != list(range(found[0], found[-1] + 1)):
        raise argparse.ArgumentTypeError(f"'{text}' leaves out steps in between")
    return found


@command.refuses("trace_picture", TraceError, OSError, ValueError)
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="DIR", help="holds rank0000.json and so on")
    parser.add_argument("--out", required=True, metavar="FIGURE", help=".png, .pdf or .svg")
    parser.add_argument(
        "--steps", type=neighbours, help="numbers, neighbours: 5,6; default: the one before the last"
    )
    parser.add_argument("--ranks", type=numbers, help="default: the first two")
    options = parser.parse_args()
    ranks = read(options.folder)
    chosen = [r for r in ranks if r.rank in options.ranks] if options.ranks else ranks[:2]
    if not chosen:
        raise TraceError(f"{options.folder}: holds none of the ranks {options.ranks}")
    steps = options.steps or sorted(chosen[0].steps)[-2:][:1]
    if not steps:
        raise TraceError(f"{options.folder}: holds no step")
    style.write(draw(chosen, steps), options.out)


if __name__ == "__main__":
    sys.exit(main())
