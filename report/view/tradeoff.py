"""Accuracy against bytes, and how soon runs reach a target."""

import math
import statistics
import textwrap

import pandas
from matplotlib.ticker import FuncFormatter, FixedLocator, NullLocator

import style
import table

from .curves import METRICS, metric_of, reference, visible
from .gather import mean_and_deviation
from .item import Item


def ratio(group):
    sent = group.mean("bytes_sent")
    return group.mean("bytes_fp32") / sent if sent > 0 else None


def in_all(group, field):
    """Over all epochs of a run, mean over the runs."""
    return statistics.fmean(float(run.epochs[field].sum()) for run in group.runs)


def fewer_bytes(groups):
    """How many times fewer bytes each group sent than the first one in float32 with as many ranks would
    have. That is ratio(), unless they have other batches or epochs. And what they are compared with."""
    times = []
    for group in groups:
        base = reference([g for g in groups if g.ranks == group.ranks])
        times.append(in_all(base, "bytes_fp32") / in_all(group, "bytes_sent") if base else ratio(group))
    if all(math.isclose(t, ratio(g), rel_tol=0.01) for t, g in zip(times, groups)):
        return times, "float32"
    is_one = len({g.ranks for g in groups}) == 1
    first = f"“{reference(groups).name}”" if is_one else "the first of as many ranks"
    return times, f"float32 in every step of {first}"


def against_bytes(groups, network):
    """None where nothing was sent, or for text."""
    groups = [g for g in groups if ratio(g)]
    metric = metric_of(groups) if groups else None
    if metric != "val_top1" or len(groups) < 2:
        return None
    times, compared_with = fewer_bytes(groups)
    rows = [
        {
            "label": g.label,
            "seeds": len(g.runs),
            "ratio": fewer,
            "val_top1_mean": mean_and_deviation(g.finals(metric))[0],
            "val_top1_deviation": mean_and_deviation(g.finals(metric))[1],
        }
        for g, fewer in zip(groups, times)
    ]
    finals = [row["val_top1_mean"] for row in rows]
    low, best = visible(finals)
    room = max(best - low, 0.5)
    names = [g.name if final >= low else f"{g.name}: {final:.1f} %" for g, final in zip(groups, finals)]
    height = style.row_height(names) * len(names) + style.LABELS[1]
    figure, (axes,), _, _ = style.panels(1, [], width=6.4, height=max(4.8, height))
    most = max(row["ratio"] for row in rows)
    axes.set_xscale("log", base=2)
    least = min(1.0, *times)
    axes.set_xlim(0.85 * least, 1.18 * most)
    high = max(row["val_top1_mean"] + (row["val_top1_deviation"] or 0.0) for row in rows)
    shown = [row for row in rows if row["val_top1_mean"] >= low]
    bottom = min([low, *(row["val_top1_mean"] - (row["val_top1_deviation"] or 0.0) for row in shown)])
    axes.set_ylim(bottom - 0.14 * room, max(high, best) + 0.08 * room)
    points = []
    for group, row, name in zip(groups, rows, names):
        inside = row["val_top1_mean"] >= low
        y = row["val_top1_mean"] if inside else bottom - 0.09 * room
        is_base = group is reference(groups)
        axes.errorbar(
            row["ratio"],
            y,
            yerr=row["val_top1_deviation"] if inside else None,
            capsize=4,
            elinewidth=1.3,
            fmt="s" if is_base else "o" if inside else "v",
            markersize=7,
            zorder=3,
            color=style.BASE if is_base else style.EMPHASIS if inside else style.OUTSIDE,
        )
        points.append((row["ratio"], y, name))
    style.names_beside(axes, points)
    base = reference(groups)
    if base:
        axes.axhline(mean_and_deviation(base.finals(metric))[0], **style.REFERENCE)
    powers = range(math.ceil(math.log2(0.85 * least)), int(math.log2(1.18 * most)) + 1)
    axes.xaxis.set_major_locator(FixedLocator([2.0**i for i in powers]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.set_xlabel(textwrap.fill(f"bytes on the wire, times fewer than {compared_with}", 60))
    axes.set_ylabel(METRICS[metric] + " after the last epoch")
    axes.grid(**style.GRID)
    caption = [
        "Mean over seeds; bars: one standard deviation." if any(len(g.runs) > 1 for g in groups) else "",
        f"Square and dashed line: {base.name}." if base else "",
        "Triangles lie below the figure, at the value that their name gives."
        if any(row["val_top1_mean"] < low for row in rows)
        else "",
    ]
    return Item(
        f"accuracy_against_bytes_{network}",
        f"{network}: accuracy against bytes on the wire",
        " ".join(filter(None, caption)),
        pandas.DataFrame(rows),
        figure,
    )


def target_table(groups, target):
    """When each group reaches the target: mean and deviation over the seeds that do."""
    metric, value = target
    rows = []
    for group in groups:
        if metric not in group.runs[0].epochs:
            continue
        epochs, seconds, sent = group.to_target(metric, value)
        row = {
            "network": group.network,
            "label": group.label,
            "ranks": group.ranks,
            "seeds": len(group.runs),
            "reached": len(epochs),
        }
        for name, values in (("epochs", epochs), ("seconds", seconds), ("bytes", sent)):
            row[name], row[f"{name}_deviation"] = mean_and_deviation(values)
        rows.append(row)
    if not rows:
        return None
    return Item(
        "to_target",
        f"Epochs, seconds and bytes to {metric} {value:g}",
        "Of the first epoch after which the target is reached. Seconds are those of training, without "
        "evaluation. Mean and standard deviation are over the seeds that reach it.",
        pandas.DataFrame(rows),
    )


def known(value):
    return value is not None and not math.isnan(value)


def target_bars(groups, item, network):
    """Bars of the seconds and the bytes to the target."""
    rows = [row for row in item.data.to_dict("records") if row["network"] == network and row["reached"]]
    if not rows:
        return None
    by_label = {(g.label, g.ranks): g.name for g in groups}
    names = [by_label.get((row["label"], row["ranks"]), row["label"]) for row in rows]
    shown = [("seconds", ""), ("bytes", "...")]
    if not any(known(row["seconds"]) for row in rows):  # of runs that trained at once
        shown.pop(0)
    height = (0.06 + style.row_height(names)) * max(3, len(rows)) + style.LABELS[1]
    figure, axes, _, _ = style.panels(len(shown), [], width=4.4, height=height, columns=2, sharey=True)
    for panel, (what, hatch) in zip(axes, shown):
        values = [row[what] if known(row[what]) else 0.0 for row in rows]
        deviations = [row[what + "_deviation"] for row in rows]
        spread = [0.0 if d is None or math.isnan(d) else d for d in deviations]
        panel.barh(
            range(len(rows)),
            values,
            0.7,
            xerr=[d or math.nan for d in spread] if any(spread) else None,
            color=style.COMPUTATION,
            edgecolor="0.15",
            hatch=hatch,
            capsize=3,
        )
        texts = [
            table.bytes_text(v) if what == "bytes" else f"{v:,.0f} s" if v >= 100 else f"{v:.3g} s"
            for v in values
        ]
        for i, (v, s, text) in enumerate(zip(values, spread, texts)):
            if not known(rows[i][what]):
                text = "not timed"
            style.note(panel, text, (v + s, i), (4, 0), va="center", fontsize=10)
        panel.set_xlim(0, 1.25 * max(v + s for v, s in zip(values, spread)) or 1)
        panel.set_xlabel("seconds of training" if what == "seconds" else "bytes on the wire")
        panel.grid(axis="x", **style.GRID)
        if what == "bytes":
            panel.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: table.bytes_text(value) if value > 0 else "0")
            )
            panel.tick_params(axis="x", rotation=30)
    axes[0].set_yticks(range(len(rows)), map(style.wrapped, names))
    if len(axes) > 1:
        axes[1].tick_params(axis="y", labelleft=False)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    return Item(
        f"to_target_{network}",
        f"{network}: time and bytes to the target",
        item.caption,
        pandas.DataFrame(rows),
        figure,
    )
