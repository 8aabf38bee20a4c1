"""Text tables: columns that are aligned, numbers of bytes, and the table of runs."""

HEADER = ("run", "codec", "ranks", "top-1 %", "samples/s", "comm. s", "comp. s", "wire", "ratio")
LEFT = 2  # the first columns hold words
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


def cells(run, with_perplexity):
    mean = run.epochs.mean()
    ratio = mean["bytes_fp32"] / mean["bytes_sent"] if mean["bytes_sent"] > 0 else None
    perplexity = [f"{run.epochs['val_perplexity'].iloc[-1]:.2f}" if is_text(run) else "-"]
    times = [f"{mean['samples_per_s']:.0f}", f"{mean['communication_s']:.2f}", f"{mean['computation_s']:.2f}"]
    if not run.is_timed:
        times = ["-"] * len(times)
    return (
        run.name,
        run.codec + (" (simulated)" if run.simulated else ""),
        "-" if run.ranks is None else str(run.ranks),
        f"{run.epochs['val_top1'].iloc[-1]:.2f}",
        *(perplexity if with_perplexity else []),
        *times,
        bytes_text(mean["bytes_sent"]),
        "-" if ratio is None else f"{ratio:.1f}x",
    )


def text(runs):
    with_perplexity = any(is_text(run) for run in runs)
    header = list(HEADER)
    if with_perplexity:
        header.insert(HEADER.index("top-1 %") + 1, "perplexity")
    rows = [header] + [cells(run, with_perplexity) for run in runs]
    lines = aligned(rows, LEFT)
    lines.insert(1, "  ".join("-" * width for width in widths_of(rows)))
    note = NOTE if all(run.is_timed for run in runs) else f"{NOTE}; -: trained beside other work"
    note = note.replace("top-1:", "top-1 and perplexity:") if with_perplexity else note
    return "\n".join(lines + [note])
