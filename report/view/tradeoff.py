"""Accuracy against bytes, and how soon runs reach a target."""

import math

import pandas
from matplotlib.ticker import FuncFormatter, FixedLocator, NullLocator

import table
from . import style
from .curves import METRICS, metric_of, reference
from .gather import mean_and_deviation
from .item import Item

VISIBLE = 14.0  # points below the best; runs below are drawn at the lower edge, with their value


def ratio(group):
    sent = group.mean("bytes_sent")
    return group.mean("bytes_fp32") / sent if sent > 0 else None


def against_bytes(groups, network):
    """None where nothing was sent, or for text."""
    groups = [g for g in groups if ratio(g)]
    metric = metric_of(groups) if groups else None
    if metric != "val_top1" or len(groups) < 2:
        return None
    rows = [{"label": g.label, "seeds": len(g.runs), "ratio": ratio(g), "val_top1_mean": mean_and_deviation(g.finals(metric))[0],
             "val_top1_deviation": mean_and_deviation(g.finals(metric))[1]} for g in groups]
    best = max(row["val_top1_mean"] for row in rows)
    low = max(min(row["val_top1_mean"] for row in rows), best - VISIBLE)
    room = max(best - low, 1.0)
    figure, (axes,), _, _ = style.panels(1, [], width=8.6, height=5.8)
    step = room / 22  # the height of a name
    taken = []
    for group, row in sorted(zip(groups, rows), key=lambda pair: -pair[1]["val_top1_mean"]):
        inside = row["val_top1_mean"] >= low
        y = row["val_top1_mean"] if inside else low - 0.03 * room
        is_base = group is reference(groups)
        axes.errorbar(row["ratio"], y, yerr=row["val_top1_deviation"] if inside else None, capsize=4, elinewidth=1.3,
                      fmt="s" if is_base else "o" if inside else "v", markersize=7,
                      color="black" if is_base else "#0072B2" if inside else "#D55E00")
        text = group.name if inside else f"{group.name}: {row['val_top1_mean']:.1f} %"
        wide = 0.105 * len(text)  # in doublings, about
        x, at = math.log2(row["ratio"]), y
        while any(abs(at - other) < step and x < end and start < x + wide for start, end, other in taken):
            at -= step / 4
        taken.append((x, x + wide, at))
        axes.annotate(text, (row["ratio"], at), xytext=(9, 0), textcoords="offset points", fontsize=10.5, va="center")
    base = reference(groups)
    if base:
        axes.axhline(mean_and_deviation(base.finals(metric))[0], color="0.35", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
    most = max(row["ratio"] for row in rows)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.85, most * 2 ** (0.105 * max(len(g.name) for g in groups)))
    axes.xaxis.set_major_locator(FixedLocator([2**i for i in range(int(math.log2(most)) + 2)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.set_ylim(min(at for _, _, at in taken) - 0.06 * room, best + 0.1 * room)
    axes.set_xlabel("bytes on the wire, times fewer than float32")
    axes.set_ylabel(METRICS[metric] + " after the last epoch")
    axes.grid(**style.GRID)
    return Item(f"accuracy_against_bytes_{network}", f"{network}: accuracy against bytes on the wire",
                "Mean over seeds; bars: one standard deviation. Square and dashed line: full precision. "
                f"Triangles lie more than {VISIBLE:g} points below the best.", pandas.DataFrame(rows), figure)


def target_table(groups, target):
    """When each group reaches the target: mean and deviation over the seeds that do."""
    metric, value = target
    rows = []
    for group in groups:
        if metric not in group.runs[0].epochs:
            continue
        epochs, seconds, sent = group.to_target(metric, value)
        row = {"network": group.network, "label": group.label, "ranks": group.ranks, "seeds": len(group.runs), "reached": len(epochs)}
        for name, values in (("epochs", epochs), ("seconds", seconds), ("bytes", sent)):
            row[name], row[f"{name}_deviation"] = mean_and_deviation(values)
        rows.append(row)
    if not rows:
        return None
    return Item("to_target", f"Epochs, seconds and bytes to {metric} {value:g}",
                "Of the first epoch after which the target is reached; seconds of training, without evaluation; mean and standard "
                "deviation over the seeds that reach it.", pandas.DataFrame(rows))


def target_bars(groups, item, network):
    """Bars of the seconds and the bytes to the target."""
    rows = [row for row in item.data.to_dict("records") if row["network"] == network and row["reached"]]
    if not rows:
        return None
    by_label = {(g.label, g.ranks): g.name for g in groups}
    names = [by_label.get((row["label"], row["ranks"]), row["label"]) for row in rows]
    figure, axes, _, _ = style.panels(2, [], width=5.4, height=1.0 + 0.34 * max(3, len(rows)), columns=2, sharey=True)
    for panel, what, hatch in zip(axes, ("seconds", "bytes"), ("", "...")):
        values = [row[what] for row in rows]
        spread = [0 if row[what + "_deviation"] is None or math.isnan(row[what + "_deviation"]) else row[what + "_deviation"] for row in rows]
        panel.barh(range(len(rows)), values, 0.7, xerr=spread, color=style.COMPUTATION, edgecolor="0.15", hatch=hatch, capsize=3)
        texts = [table.bytes_text(v) if what == "bytes" else f"{v:.3g} s" for v in values]
        for i, (v, s, text) in enumerate(zip(values, spread, texts)):
            panel.annotate(text, (v + s, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10)
        panel.set_xlim(0, 1.25 * max(v + s for v, s in zip(values, spread)) or 1)
        panel.set_xlabel("seconds of training" if what == "seconds" else "bytes on the wire")
        panel.grid(axis="x", **style.GRID)
        if what == "bytes":
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: table.bytes_text(value) if value > 0 else "0"))
            panel.tick_params(axis="x", rotation=30)
    axes[0].set_yticks(range(len(rows)), names)
    axes[1].tick_params(axis="y", labelleft=False)
    axes[0].set_ylim(len(rows) - 0.4, -0.6)
    return Item(f"to_target_{network}", f"{network}: time and bytes to the target", item.caption, pandas.DataFrame(rows), figure)
