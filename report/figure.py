"""The figure: accuracy per epoch, and the stacked bars of communication and computation per epoch of
Grubic, Tam, Alistarh, Zhang, "Synchronous multi-GPU deep learning with low-precision communication: an
experimental study" (EDBT 2018), Figs. 6-9."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, ScalarFormatter

# Okabe and Ito's colours, distinct for any colour vision; markers and dashes repeat the difference.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
COMPUTATION, COMMUNICATION = "#9FC5E0", "#D55E00"


def save(runs, path):
    try:
        draw(runs).savefig(path, dpi=150)
    except ValueError as error:  # an extension that matplotlib does not support
        raise OSError(f"{path}: {error}") from None


def draw(runs):
    width = 5.6 + max(3.4, 0.6 + 1.15 * len(runs))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(width, 4.6), layout="constrained", gridspec_kw={"width_ratios": (5.6, width - 5.6)}
    )
    figure.get_layout_engine().set(w_pad=0.08, wspace=0.04)
    accuracy(left, runs)
    bars(right, runs)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return figure


def accuracy(axes, runs):
    """Of text, if all runs are of text, the perplexity."""
    is_text = all("val_perplexity" in run.epochs for run in runs)
    quantity = "perplexity" if is_text else "top1"
    handles = []
    for i, run in enumerate(runs):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        epochs = run.epochs
        dots = marker if len(epochs) <= 40 else ""
        axes.plot(epochs["epoch"], epochs["val_" + quantity], color=color, marker=dots, markersize=4.5, linewidth=1.8)
        axes.plot(
            epochs["epoch"],
            epochs["train_" + quantity],
            color=color,
            linestyle=(0, (4, 2)),
            linewidth=0.9,
            marker=dots if len(epochs) == 1 else "",
            markerfacecolor="none",
        )
        handles.append(Line2D([], [], color=color, marker=dots, markersize=4.5, linewidth=1.8, label=run.label))
    handles.append(Line2D([], [], color="0.3", linewidth=1.8, label="validation"))
    handles.append(Line2D([], [], color="0.3", linewidth=0.9, linestyle=(0, (4, 2)), label="training"))
    axes.set_title("Perplexity" if is_text else "Accuracy", fontsize=11)
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity" if is_text else "top-1 accuracy (%)")
    if is_text:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color="0.9", linewidth=0.8)
    below(axes, handles, columns=2)


def bars(axes, runs):
    means = [run.epochs.mean() for run in runs]
    compute = [mean["computation_s"] if run.is_timed else 0.0 for run, mean in zip(runs, means)]
    communicate = [mean["communication_s"] if run.is_timed else 0.0 for run, mean in zip(runs, means)]
    places = range(len(runs))
    look = {"edgecolor": "0.25", "linewidth": 0.8}
    lower = axes.bar(places, communicate, 0.62, color=COMMUNICATION, hatch="///", label="communication", **look)
    upper = axes.bar(places, compute, 0.62, bottom=communicate, color=COMPUTATION, label="computation", **look)
    for x, (a, b) in enumerate(zip(compute, communicate)):
        share = 100 * b / (a + b) if a + b > 0 else 0
        axes.annotate(
            f"{a + b:.3g} s\n{share:.0f} % comm." if runs[x].is_timed else "trained\nwith others:\nno time",
            (x, a + b),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
        )
    top = max(a + b for a, b in zip(compute, communicate))
    axes.set_ylim(0, 1.18 * top if top > 0 else 1)
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_xticks(list(places), [textwrap.fill(run.label, 13) for run in runs], fontsize=9)
    axes.tick_params(axis="x", length=0)
    axes.set_title("Time per epoch", fontsize=11)
    axes.set_ylabel("seconds per epoch (mean)")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    below(axes, [upper, lower], columns=2)


def below(axes, handles, columns):
    """A legend below the axes and their labels, so that it covers nothing."""
    axes.figure.canvas.draw()  # the labels' extent is known only once drawn
    lowest = axes.get_tightbbox(axes.figure.canvas.get_renderer()).y0
    anchor = axes.transAxes.inverted().transform((0, lowest))[1] - 0.03
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, anchor), ncol=columns, frameon=False, fontsize=9
    )
