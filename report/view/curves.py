"""Accuracy (or perplexity, or loss) by epoch, by seconds and by bytes: Fig. 5 of the EDBT 2018 study, and
what follows from it."""

import statistics

import numpy as np
import pandas
from matplotlib.ticker import FuncFormatter, MaxNLocator

import published
import style
import table
import words

from . import beside
from .gather import mean_and_deviation, timed
from .item import Item

METRICS = {
    "val_top1": "top-1 accuracy (%)",
    "val_perplexity": "perplexity",
    "val_loss": "validation loss",
    "codec_error": "relative error of coding",
}
AXES = {"epoch": ("epoch", 1), "seconds": ("seconds of training", 1), "bytes": ("bytes on the wire", 1)}
PER_PANEL = 6  # curves, and the reference
COLUMNS = 2  # of panels
VISIBLE = 35.0  # points of accuracy below the best, in runs of LONG epochs or more
LONG = 8


def metric_of(groups):
    """Of text, if all runs are of text, the perplexity."""
    return (
        "val_perplexity"
        if all("val_perplexity" in run.epochs for g in groups for run in g.runs)
        else "val_top1"
    )


def items(groups, network, target):
    """`groups`: of one network."""
    every_group, metric = groups, metric_of(groups)
    out = []
    for by in AXES:
        groups = timed(every_group) if by == "seconds" else every_group
        if by == "bytes":
            groups = [g for g in groups if g.mean("bytes_sent") > 0]
        if not groups:
            continue
        if by == "seconds" and all(g.curve(metric, by)[0][-1] <= 0 for g in groups):
            continue
        figure = draw(groups, metric, by, target)
        band = (
            " The band is one standard deviation over seeds." if any(len(g.runs) > 1 for g in groups) else ""
        )
        study = beside.caption(groups) if by == "epoch" and metric == "val_top1" else ""
        is_long = metric == "val_top1" and max(len(run.epochs) for g in groups for run in g.runs) >= LONG
        inset = (
            " A small panel, if there is room, shows the last quarter." if by == "epoch" and is_long else ""
        )
        cut = f" Values more than {VISIBLE:g} points below the best are cut off." if is_long else ""
        fig5 = f" (Fig. 5 of {published.NAME})" if by == "epoch" else ""
        what = METRICS[metric].split(" (")[0]
        out.append(
            Item(
                f"{metric[4:]}_by_{by}_{network}",
                f"{network}: {what} by {by}{fig5}",
                f"Validation {what} after each epoch.{band}{inset}{study}{cut}",
                data(groups, metric, by),
                figure,
            )
        )
    return out


def reference(groups):
    """Full precision, with an exchange in every step if there is such a group."""
    full = [g for g in groups if g.codec == "none" and not g.simulated]
    return next((g for g in full if g.is_every_step), full[0] if full else None)


def kinds(groups):
    """(ranks, transport) of the groups."""
    return list(dict.fromkeys((g.ranks, g.transport) for g in groups))


def shown(groups, by):
    """The lowest and the highest accuracy. Long runs are cut off at the start, where all curves are alike."""
    curves = [group.curve("val_top1", "epoch") for group in groups]
    low = min(float(np.nanmin(y)) for _, y, _ in curves)
    best = max(float(np.nanmax(y)) for _, y, _ in curves)
    if max(len(y) for _, y, _ in curves) >= LONG:
        low = max(low, best - VISIBLE)
    best = max(float(np.nanmax(y + spread)) for _, y, spread in curves)
    marks = beside.within(groups).values() if by == "epoch" else ()
    marked = [top1 for points in marks for _, top1 in points]
    return min([low, *marked]), max([best, *marked])


def split(groups):
    """Panels of a few curves as (title, groups): by ranks and transport, then by number.

    Full precision is in each.
    """
    has_own_labels = len({g.label for g in groups}) == len(groups)  # else only the panels tell them apart
    if len(groups) <= PER_PANEL + 1 and has_own_labels:
        return [("", groups)]
    panels = []
    for ranks, transport in kinds(groups):
        mine = [g for g in groups if (g.ranks, g.transport) == (ranks, transport)]
        title = f"{words.counted(ranks, 'rank')} over {transport}" if len(kinds(groups)) > 1 else ""
        base = reference(mine)
        others = [g for g in mine if g is not base]
        size = -(-len(others) // max(1, -(-len(others) // PER_PANEL))) or 1
        panels += [
            (title, ([base] if base else []) + others[at : at + size])
            for at in range(0, max(1, len(others)), size)
        ]
    return panels


def draw(groups, metric, by, target):
    parts = split(groups)
    is_single = len(parts) == 1
    width = 6.6 if is_single else 5.2
    # Where there are several panels each has a legend of its own.
    own_columns = min(2, style.columns_for([g.name for g in groups], width))
    figure, axes, legend, _ = style.panels(
        len(parts),
        [],
        width=width,
        height=4.6 if is_single else 4.3,
        columns=COLUMNS,
        sharex=True,
        sharey=True,
    )
    for panel, (name, part) in zip(axes, parts):
        panel.set_title(name)
        handles = [_curve(panel, group, i, metric, by) for i, group in zip(looks(groups, part), part)]
        if by == "epoch" and metric == "val_top1":
            handles += beside.mark(panel, part, [style.line(i) for i in looks(groups, part)], groups)
        if target and target[0] == metric:
            _target(panel, target[1])
        if by == "epoch" and metric == "val_top1":
            _end(panel, part, groups)
        panel.grid(which="both", **style.GRID)
        panel.set_xlabel(AXES[by][0])
        if is_single:
            style.below(legend, handles, style.columns_for([h.get_label() for h in handles], width))
        else:
            style.under(panel, handles, columns=own_columns)
    _scales(axes, groups, metric, by)
    return figure


def _target(axes, value):
    axes.axhline(value, **{**style.REFERENCE, "linestyle": (0, (1, 2))})
    backdrop = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}
    style.note(
        axes,
        f"target {value:g}",
        (0.01, value),
        (0, 3),
        xycoords=("axes fraction", "data"),
        fontsize=9.5,
        color="0.25",
        bbox=backdrop,
        zorder=3,
    )


def looks(groups, part):
    """Indices of a panel's looks: 0 is full precision's, the others' are the same in every panel.

    Where that would give two curves of the panel one look, they count from 1.
    """
    base = reference(part)
    full = {one.label for one in (base, reference(groups)) if one}
    labels = dict.fromkeys(g.label for g in groups if g.label not in full)
    order = {label: i for i, label in enumerate(labels)}
    shared = [0 if g is base else 1 + order.get(g.label, 0) % PER_PANEL for g in part]
    own = [0 if g is base else 1 + i for i, g in enumerate(part)]
    return shared if len(set(shared)) == len(part) else own


def _curve(axes, group, index, metric, by, dense=None):
    x, y, spread = group.curve(metric, by)
    look = style.line(index, int(dense or len(x)))
    axes.plot(x, y, **look)
    if spread.any():
        axes.fill_between(x, y - spread, y + spread, color=look["color"], alpha=0.16, linewidth=0)
    return style.handle(group.name, look)


def _end(axes, part, groups):
    """The last quarter of the epochs, larger: curves that end close together are told apart there."""
    curves = [group.curve("val_top1", "epoch") for group in part]
    last = max(x[-1] for x, _, _ in curves)
    first = last - max(2, last // 4)
    tails = [y[x >= first] for x, y, _ in curves if x[-1] > first]
    low, high = shown(groups, "epoch")
    points = [top1 for marks in beside.within(groups).values() for epoch, top1 in marks if epoch > 0.32 * last]
    corner = min([float(np.interp(0.32 * last, x, y)) for x, y, _ in curves if y.max() >= low] + points)
    if last < LONG or not tails or corner < low + 0.62 * (high - low):  # it would cover the curves
        return
    best = max(float(np.nanmax(y)) for y in tails)
    low = min(float(value) for y in tails for value in y if value >= best - 4)
    inset = axes.inset_axes((0.42, 0.09, 0.56, 0.5))
    for i, group in zip(looks(groups, part), part):
        _curve(inset, group, i, "val_top1", "epoch", dense=last - first)
    inset.set_xlim(first, last + 0.03 * (last - first))
    inset.set_ylim(low - 0.1 * (best - low + 0.1), best + 0.1 * (best - low + 0.1))
    inset.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    inset.yaxis.set_major_locator(MaxNLocator(nbins=4))
    inset.tick_params(labelsize=9.5)
    inset.grid(**style.GRID)
    inset.spines[["top", "right"]].set_visible(True)


def _scales(axes, groups, metric, by):
    first = axes[0]
    curves = [g.curve(metric, by) for g in groups]
    for panel in axes[::COLUMNS]:
        panel.set_ylabel(METRICS[metric])
    if metric == "val_top1":
        low, best = shown(groups, by)
        first.set_ylim(low - 0.03 * (best - low + 1), best + 0.06 * (best - low + 1))
    else:
        first.set_yscale("log")
        for panel in axes:
            style.log_labels(panel.yaxis)
    if by == "epoch":
        first.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=8))
    if by == "bytes":
        used = [float(x[-1]) for x, _, _ in curves if x[-1] > 0]
        if max(used) > 8 * min(used):
            first.set_xscale("log")
        else:
            first.xaxis.set_major_locator(MaxNLocator(nbins=5))
        for panel in axes:
            panel.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: table.bytes_text(value) if value > 0 else "0")
            )


def data(groups, metric, by):
    rows = []
    for group in groups:
        x, y, spread = group.curve(metric, by)
        rows += [
            {
                "label": group.label,
                "seeds": len(group.runs),
                "epoch": int(e),
                by: a,
                f"{metric}_mean": b,
                f"{metric}_deviation": c if len(group.runs) > 1 else None,
            }
            for e, a, b, c in zip(group.epochs(), x, y, spread)
        ]
    frame = pandas.DataFrame(rows)
    return frame.loc[:, ~frame.columns.duplicated()]


def visible(values):
    """The lowest accuracy that a figure shows, and the best.

    Far outliers would hide the differences of the others.
    """
    best = max(values)
    lowest = best - max(2.5, 4 * (best - statistics.median(values)))
    return min(value for value in values if value >= lowest), best


def final(groups, network):
    """The last epoch's accuracy, mean and deviation over seeds: a dot each, and full precision as a line."""
    metric = metric_of(groups)
    names = [g.name for g in groups]
    height = style.row_height(names) * max(3, len(groups)) + style.LABELS[1]
    figure, (axes,), _, _ = style.panels(1, [], width=5.2, height=height)
    base = reference(groups)
    finals = [mean_and_deviation(group.finals(metric)) for group in groups]
    low, best = (
        visible([mean for mean, _ in finals])
        if metric == "val_top1"
        else (min(m for m, _ in finals), max(m for m, _ in finals))
    )
    room = max(best - low, 0.2)
    for i, (group, (mean, deviation)) in enumerate(zip(groups, finals)):
        if mean < low:
            axes.plot(low - 0.1 * room, i, "<", color=style.OUTSIDE, markersize=8)
            style.note(axes, f"{mean:.2f}", (low - 0.1 * room, i), (9, 0), va="center", fontsize=10.5)
            continue
        axes.errorbar(
            mean,
            i,
            xerr=deviation,
            fmt="s" if group is base else "o",
            color=style.BASE if group is base else style.EMPHASIS,
            capsize=5,
            markersize=7,
            elinewidth=1.5,
        )
        if deviation is not None:
            ticks = {"linestyle": "", "marker": "|", "markersize": 6, "color": "0.2"}
            axes.plot(group.finals(metric), [i + 0.28] * len(group.runs), **ticks)
    if base and finals[groups.index(base)][0] >= low:
        axes.axvline(finals[groups.index(base)][0], **style.REFERENCE)
    axes.set_yticks(range(len(groups)), map(style.wrapped, names))
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlabel(METRICS[metric] + " after the last epoch")
    axes.grid(axis="x", **style.GRID)
    what = METRICS[metric].split(" (")[0]
    seeds = any(len(group.runs) > 1 for group in groups)
    caption = [
        f"Validation {what} after the last epoch"
        + (": mean, standard deviation over seeds (bars) and each seed (ticks below)." if seeds else "."),
        (
            "A triangle lies outside the figure, at the value beside it."
            if min(m for m, _ in finals) < low
            else ""
        ),
        "Square and dashed line: full precision." if base else "",
    ]
    rows = [
        {
            "label": group.label,
            "seeds": len(group.runs),
            f"{metric}_mean": mean,
            f"{metric}_deviation": deviation,
        }
        for group, (mean, deviation) in zip(groups, finals)
    ]
    return Item(
        f"final_{metric[4:]}_{network}",
        f"{network}: {what} after the last epoch",
        " ".join(filter(None, caption)),
        pandas.DataFrame(rows),
        figure,
    )
