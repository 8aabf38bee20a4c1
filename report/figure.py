"""One figure: accuracy per epoch, and the stacked bars of communication and computation per epoch of
Grubic, Tam, Alistarh, Zhang, "Synchronous multi-GPU deep learning with low-precision communication: an
experimental study" (EDBT 2018), Figs. 6-9."""

import layout
import style
from matplotlib.ticker import MaxNLocator
from view import bars

TOGETHER, BARS = 7, 20  # runs in one panel of accuracy, and in one of bars
WIDTH, HEIGHT = 4.8, 3.4  # inches, of the axes
MARGIN, BAR = 0.6, 1.1  # inches: beside the bars; each of them
TURNED, LEAST = 0.17, 0.42  # inches: each line of a turned name; a bar above one
LETTERS, LINES, LONG = 13, 4, 40  # of a bar's name; of one that is turned because it has more lines


def save(runs, path):
    style.write(draw(runs), path)


def draw(runs):
    """Many runs have several panels of accuracy, with the bars below them."""
    figure = style.plt.figure(layout=layout.Layout())
    parts = parts_of(runs, TOGETHER)
    columns = min(2, len(parts))
    places = [(i // columns, i % columns, WIDTH, HEIGHT) for i in range(len(parts))]
    panels = style.add_panels(figure, places, sharex=True, sharey=True)
    is_text = all("val_perplexity" in run.epochs for run in runs)
    for axes, part in zip(panels, parts):
        accuracy(axes, part, is_text)
    panels[0].set_title("Perplexity" if is_text else "Accuracy")
    every_bar(figure, runs, len(panels) // columns + 1 if len(parts) > 1 else None)
    return figure


def every_bar(figure, runs, below):
    """`below`: the row of the first bars; None for bars beside the only panel of accuracy."""
    names = [style.wrapped(run.label, LETTERS) for run in runs]
    is_turned = below is not None or max(name.count("\n") for name in names) >= LINES
    if is_turned:
        names = [style.wrapped(run.label, LONG) for run in runs]
    bar = max(TURNED * (1 + max(name.count("\n") for name in names)), LEAST) if is_turned else BAR
    rows = list(zip(parts_of(runs, BARS), parts_of(names, BARS)))
    width = max(2.4, MARGIN + bar * len(rows[0][0]))
    places = [(0, 1, width, HEIGHT) if below is None else (below + i, 0, width, HEIGHT) for i in range(len(rows))]
    top = max(sum(seconds(run)) for run in runs)
    for axes, row in zip(style.add_panels(figure, places, spans=below is not None), rows):
        times(axes, *row, is_turned)
        axes.set_ylim(0, (1.45 if is_turned else 1.2) * top if top > 0 else 1)
        axes.set_title("Time per epoch")


def parts_of(items, most):
    """Lists of nearly equal length."""
    size = -(-len(items) // -(-len(items) // most))
    return [items[at : at + size] for at in range(0, len(items), size)]


def accuracy(axes, runs, is_text):
    """Of text, if all runs are of text, the perplexity."""
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
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity" if is_text else "top-1 accuracy (%)")
    if is_text:
        axes.set_yscale("log")
        style.log_labels(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(**style.GRID)
    style.under(axes, handles, columns=2)


def seconds(run):
    """Of an epoch: communication, computation."""
    return [run.epochs[name].mean() if run.is_timed else 0.0 for name in ("communication_s", "computation_s")]


def times(axes, runs, names, is_turned):
    communicate, compute = zip(*map(seconds, runs))
    texts = [
        f"{a + b:.3g} s\n{bars.share(a, b)} comm." if run.is_timed else "beside\nother work:\nno time"
        for run, a, b in zip(runs, communicate, compute)
    ]
    bars.stacked(axes, range(len(runs)), communicate, compute, texts, 0.62, rotation=90 if is_turned else 0)
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_xticks(range(len(runs)), names, rotation=90 if is_turned else 0, fontsize=9.5)
    axes.set_ylabel("seconds per epoch (mean)")
    style.under(axes, bars.handles(), columns=2, handlelength=1.6)
