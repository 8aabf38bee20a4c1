"""Text tables: columns that are aligned, numbers of bytes, and the table of runs."""

import math

import synchronisation
import words
from study import measures

HEADER = ("run", "codec", "ranks", "top-1 %", "samples/s", "comm. s", "comp. s", "wire", "ratio")
LEFT = 2  # the first columns hold words
TARGET = ("epochs to", "seconds to", "bytes to")
NOTE = "top-1: of the last epoch; samples/s, seconds and bytes on the wire: mean per epoch"


def bytes_text(count):
    """1234567 -> '1.23 MB' (powers of 1000): three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if count < 999.5 or unit == "PB":
            break
        count /= 1000
    if unit == "B":
        return f"{count:.0f} B"
    digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{digits}f} {unit}"


def aligned(rows, left):
    """Lines of cells; the first `left` columns are aligned to the left."""
    widths = widths_of(rows)
    lines = []
    for row in rows:
        padded = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def widths_of(rows):
    return [max(map(len, column)) for column in zip(*rows)]


def is_text(run):
    return "val_perplexity" in run.epochs


def rate_text(rate):
    """At least three digits."""
    return f"{rate:.0f}" if rate >= 99.95 else f"{rate:#.3g}"


def perplexity_text(value):
    """A record has null where the perplexity of a finite loss is too large for a number."""
    return "inf" if math.isnan(value) else f"{value:.2f}"


def cells(run, with_sync, with_perplexity, target):
    mean = run.epochs.mean(numeric_only=True)
    ratio = mean["bytes_fp32"] / mean["bytes_sent"] if mean["bytes_sent"] > 0 else None
    perplexity = [perplexity_text(run.epochs["val_perplexity"].iloc[-1]) if is_text(run) else "-"]
    times = [rate_text(mean["samples_per_s"]), f"{mean['communication_s']:.2f}", f"{mean['computation_s']:.2f}"]
    if not run.is_timed:
        times = ["-"] * len(times)
    return (
        run.name,
        run.codec + (" (simulated)" if run.simulated else ""),
        *([words.sync_text(run.config.get("sync"))] if with_sync else []),
        "-" if run.ranks is None else str(run.ranks),
        f"{run.epochs['val_top1'].iloc[-1]:.2f}",
        *(perplexity if with_perplexity else []),
        *times,
        bytes_text(mean["bytes_sent"]),
        "-" if ratio is None else f"{ratio:.1f}x",
        *(target_cells(run, *target) if target else []),
    )


def target_cells(run, metric, value):
    at = measures.to_target(run.epochs.to_dict("records"), metric, value)
    if at is None:
        return ["-"] * len(TARGET)
    epochs, seconds, sent = at
    return [f"{epochs:g}", f"{seconds:.1f}" if run.is_timed else "-", bytes_text(sent)]


def text(runs, target=None):
    """`target`: (metric, value)."""
    with_sync = any(synchronisation.kind_of(run.config) != "every_step" for run in runs)
    with_perplexity = any(is_text(run) for run in runs)
    header = list(HEADER)
    if with_perplexity:
        header.insert(HEADER.index("top-1 %") + 1, "perplexity")
    if with_sync:
        header.insert(LEFT, "sync")
    rows = [[*header, *(TARGET if target else ())]]
    rows += [cells(run, with_sync, with_perplexity, target) for run in runs]
    lines = aligned(rows, LEFT + with_sync)
    lines.insert(1, "  ".join("-" * width for width in widths_of(rows)))
    notes = [NOTE]
    if target:
        notes.append(f"to: until {target[0]} is {target[1]:g}, training only; -: not reached")
    if not all(run.is_timed for run in runs):
        notes.append("-: trained beside other work")
    note = "; ".join(notes)
    note = note.replace("top-1:", "top-1 and perplexity:") if with_perplexity else note
    return "\n".join(lines + [note])
