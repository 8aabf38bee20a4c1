#!/usr/bin/python3
"""Passes over memory that the exchange makes, measured beside the count of docs/exchange.md.

    lpsgd bench exchange --ranks 2,3,4,6,8,12,16 --min 16M --max 16M --json > cost.json
    exchange_cost.py cost.json [--out figure.png]

One pass is a copy of the array: it is read and written once. Measured: the seconds of the exchange over those
of memcpy, while all ranks copy at the same time in the same run; with --cpu, processor time over processor
time, for machines that are never idle. Counted: the bytes that a rank reads and writes in a step, over twice
the array's. Prints a Markdown table.
"""

import argparse
import json
import sys

import command
import modules


def short(codec):
    words = [w.strip().split(": ") for w in codec.strip("{}").split(",")]
    kept = {key: value for key, value in words if key in ("kind", "bits", "element", "bucket", "density")}
    return " ".join([kept.pop("kind")] + [f"{key} {value}" for key, value in kept.items()])


def read(path, clock):
    """Rows by codec, in the file's order: (ranks, measured passes, counted passes, messages, bytes on the
    wire)."""
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: is not the output of lpsgd bench exchange --json")
    sizes = {r["size"] for r in rows}
    if len(sizes) != 1:
        raise ValueError(f"{path}: holds {len(sizes)} sizes; expected one (--min and --max alike)")
    if wrong := sum(r["wrong"] for r in rows):
        raise ValueError(f"{path}: {wrong} values are wrong")
    if any(r.get("device", "cpu") != "cpu" for r in rows):
        raise ValueError(f"{path}: was measured on a GPU; the passes are those of the CPU's exchange")
    if others := {r["collective"] for r in rows} - {"reduce_broadcast"}:
        raise ValueError(f"{path}: holds collective {others.pop()}; expected reduce_broadcast")
    codecs = {}
    for r in rows:
        codecs.setdefault(short(r["codec"]), []).append(
            (
                r["ranks"],
                r[clock] / r["memcpy_" + clock],
                r["bytes_moved"] / (2 * r["size"]),
                r["messages"],
                r["wire_bytes"],
            )
        )
    return sizes.pop(), codecs


def table(codecs):
    lines = [
        "| codec | ranks | messages | bytes on the wire | passes, counted | passes, measured "
        "| measured / counted |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {codec} | {k} | {messages} | {sent} | {counted:.2f} | {measured:.2f} | {measured / counted:.2f} |"
        for codec, rows in codecs.items()
        for k, measured, counted, messages, sent in rows
    ]
    return "\n".join(lines)


def draw(size, codecs, what, path):
    import style

    labels = [*codecs, "counted"]
    figure, (axes,), legend, columns = style.panels(1, labels, width=7.5, height=4.4)
    handles = []
    for i, (codec, rows) in enumerate(codecs.items()):
        measured, counted = style.pair(i)
        ranks = [r[0] for r in rows]
        axes.plot(ranks, [r[1] for r in rows], **measured)
        axes.plot(ranks, [r[2] for r in rows], **counted)
        handles.append(style.handle(codec, measured))
    handles.append(style.handle("counted", {**style.pair(0)[1], "color": "0.3", "marker": ""}))
    axes.set_title(f"Passes over {size / 1e6:.1f} MB of gradients")
    axes.set_xlabel("ranks (threads)")
    axes.set_ylabel(f"{what} / {what} of memcpy, all ranks at once")
    axes.set_ylim(bottom=0)
    axes.grid(**style.GRID)
    style.below(legend, handles, columns)
    style.write(figure, path)


@command.refuses("exchange_cost", OSError, ValueError, KeyError)
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="what `lpsgd bench exchange --json` printed")
    parser.add_argument("--out", metavar="FIGURE")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of time")
    options = parser.parse_args()
    if options.out:
        modules.require(__file__, "matplotlib")
    size, codecs = read(options.file, "cpu_seconds" if options.cpu else "seconds")
    print(table(codecs))
    if options.out:
        draw(size, codecs, "processor time" if options.cpu else "seconds", options.out)


if __name__ == "__main__":
    sys.exit(main())
