"""One figure: accuracy per epoch, and the stacked bars of communication and computation per epoch of
Grubic, Tam, Alistarh, Zhang, "Synchronous multi-GPU deep learning with low-precision communication: an
experimental study" (EDBT 2018), Figs. 6-9."""

import textwrap

import style
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from view import bars

LEFT, MARGIN, BAR = (
    5.6,
    0.6,
    1.15,
)  # inches: the panel of accuracy; of the bars, their margin and each of them


def save(runs, path):
    style.write(draw(runs), path)


def draw(runs):
    right = max(3.4, MARGIN + BAR * len(runs))
    figure, (left_axes, right_axes) = style.plt.subplots(
        1, 2, figsize=(LEFT + right, 4.6), layout="constrained", gridspec_kw={"width_ratios": (LEFT, right)}
    )
    figure.get_layout_engine().set(w_pad=0.08, wspace=0.04)
    accuracy(left_axes, runs)
    times(right_axes, runs)
    return figure


def accuracy(axes, runs):
    """Of text, if all runs are of text, the perplexity."""
    is_text = all("val_perplexity" in run.epochs for run in runs)
    quantity = "perplexity" if is_text else "top1"
    handles = []
    for i, run in enumerate(runs):
        epochs = run.epochs
        validation, training = style.pair(i, len(epochs))
        axes.plot(epochs["epoch"], epochs["val_" + quantity], **validation)
        axes.plot(epochs["epoch"], epochs["train_" + quantity], **training)
        handles.append(style.handle(run.label, validation))
    grey = {"color": "0.3", "marker": ""}
    handles += [
        style.handle(name, {**look, **grey}) for name, look in zip(("validation", "training"), style.pair(0))
    ]
    axes.set_title("Perplexity" if is_text else "Accuracy")
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity" if is_text else "top-1 accuracy (%)")
    if is_text:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(ScalarFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(**style.GRID)
    style.under(axes, handles, columns=2)


def times(axes, runs):
    means = [run.epochs.mean() for run in runs]
    compute = [mean["computation_s"] if run.is_timed else 0.0 for run, mean in zip(runs, means)]
    communicate = [mean["communication_s"] if run.is_timed else 0.0 for run, mean in zip(runs, means)]
    texts = [
        f"{a + b:.3g} s\n{bars.share(b, a)} comm." if run.is_timed else "beside\nother work:\nno time"
        for run, a, b in zip(runs, compute, communicate)
    ]
    bars.stacked(axes, range(len(runs)), communicate, compute, texts, width=0.62)
    top = max(a + b for a, b in zip(compute, communicate))
    axes.set_ylim(0, 1.2 * top if top > 0 else 1)
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_xticks(range(len(runs)), [textwrap.fill(run.label, 13) for run in runs], fontsize=9.5)
    axes.set_title("Time per epoch")
    axes.set_ylabel("seconds per epoch (mean)")
    style.under(axes, bars.handles(), columns=2, handlelength=1.6)
