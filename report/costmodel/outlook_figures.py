"""Draws the outlook. Lines differ by marker and dash,
so that a figure reads without colour and at half size.
"""

import os

from costmodel.errors import CostModelError

STYLES = (
    ("o", "-"),
    ("s", (0, (5, 2))),
    ("^", (0, (1, 1.5))),
    ("D", (0, (5, 1.5, 1, 1.5))),
    ("v", "-"),
    ("P", (0, (3, 1))),
)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#7a3b8f", "#8a6d00", "#444444")
NAMES = {"alexnet": "AlexNet", "vgg19": "VGG19", "bn_inception": "BN-Inception", "resnet50": "ResNet-50",
         "resnet110": "ResNet-110", "resnet152": "ResNet-152", "lstm_an4": "LSTM"}


def figure():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "svg.hashsalt": "lpsgd", "svg.fonttype": "none"})
    picture, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
    axes.grid(color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes


def save(picture, folder, name):
    import matplotlib.pyplot as plt

    for kind in ("png", "svg"):
        path = os.path.join(folder, f"{name}.{kind}")
        try:
            picture.savefig(path, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        except OSError as error:
            raise CostModelError(f"{path}: cannot be written: {error.strerror}") from None
    plt.close(picture)


def speedup(folder, rows, ranks, limit):
    picture, axes = figure()
    curve = [(x, y) for series, _, x, y in rows if series == "alexnet"]
    if curve:
        label = "AlexNet, dense layers 1/16 to 4 times as wide"
        axes.plot(*zip(*curve), color=COLORS[0], marker="o", linewidth=1.8, label=label)
    points = [(name, x, y) for series, name, x, y in rows if series == "network" and name != "alexnet"]
    axes.plot(
        [p[1] for p in points],
        [p[2] for p in points],
        color=COLORS[1],
        marker="s",
        markersize=7,
        linestyle="none",
        label="networks of the study",
    )
    for name, x, y in points:
        side = -1 if x < 4.1 else 1
        place = {
            "textcoords": "offset points",
            "xytext": (8 * side, -6),
            "ha": "right" if side < 0 else "left",
        }
        axes.annotate(NAMES.get(name, name), (x, y), **place)
    for series, name, x, y in rows:
        if series == "alexnet":
            axes.annotate(
                f"x {name.removeprefix('width ')}",
                (x, y),
                textcoords="offset points",
                xytext=(0, 9),
                ha="center",
                fontsize=10,
            )
    axes.axhline(
        limit,
        color="0.4",
        linewidth=1,
        linestyle=(0, (4, 3)),
        label=f"limit: bytes and coding alone, {limit:.1f}",
    )
    axes.set_xscale("log")
    axes.set_ylim(0.8, 1.08 * limit)
    axes.set_xlim(left=1.3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("parameters over computation (MB per GFLOP of a sample, forward and backward)")
    axes.set_ylabel("samples/s of QSGD 8 bit over 32 bit")
    axes.set_title(f"{ranks} GPUs, MPI through the host, as calibrated", fontsize=12)
    axes.legend(frameon=False, fontsize=11)
    save(picture, folder, "speedup")


CODECS = ("none", "qsgd8", "qsgd4", "qsgd2", "onebit_column", "onebit64")


def price(folder, rows):
    import matplotlib.pyplot as plt

    picture, _ = figure()
    plt.close(picture)
    picture, panels = plt.subplots(
        1, 2, figsize=(9.5, 5), layout="constrained", gridspec_kw={"width_ratios": (2.2, 1)}
    )
    for axes, data, title in zip(panels, ("imagenet", "cifar10"), ("ImageNet", "CIFAR-10")):
        own = [row for row in rows if row[1] == data]
        one = [(row[7], row[3]) for row in own if row[4] == 1]
        if one:
            axes.plot(*zip(*one), color="black", marker="*", markersize=12, linestyle="none", label="one GPU")
        for codec in dict.fromkeys(row[2] for row in own):
            i = CODECS.index(codec)
            points = [(row[7], row[3]) for row in own if row[2] == codec and row[4] > 1]
            if not points:
                continue
            axes.plot(
                *zip(*points),
                color=COLORS[i],
                marker=STYLES[i][0],
                markersize=9,
                linestyle="none",
                label=codec,
                fillstyle="full" if i % 2 == 0 else "none",
                markeredgewidth=1.8,
            )
        for network in dict.fromkeys(row[0] for row in own):
            mine = [row for row in own if row[0] == network]
            axes.annotate(NAMES.get(network, network), (min(r[7] for r in mine), max(r[3] for r in mine)),
                          textcoords="offset points", xytext=(-8, 12))
        axes.set_xscale("log")
        axes.margins(x=0.25, y=0.12)
        axes.set_title(title, fontsize=12)
        axes.set_xlabel("price of the training, $")
        axes.grid(color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
    panels[0].set_ylabel("top-1 accuracy, %")
    panels[0].legend(frameon=False, fontsize=11, loc="lower right")
    save(picture, folder, "price")


def dettmers(folder, rows):
    picture, axes = figure()
    for i, codec in enumerate(dict.fromkeys(row[2] for row in rows)):
        for overlap, fill in (("yes", "full"), ("no", "none")):
            own = [(row[3], row[4]) for row in rows if row[2] == codec and row[0] == overlap]
            marker, dash = STYLES[i][0], STYLES[0 if overlap == "yes" else 1][1]
            axes.plot(
                *zip(*own),
                color=COLORS[i],
                marker=marker,
                fillstyle=fill,
                linestyle=dash,
                linewidth=1.5,
                label=f"{codec}, {'overlapped' if overlap == 'yes' else 'not overlapped'}",
            )
    claimed = sorted({(row[3], row[5]) for row in rows if row[5] != ""})
    if claimed:
        axes.plot(
            *zip(*claimed),
            color="black",
            marker="*",
            markersize=14,
            linestyle="none",
            label="claimed: 23 and 50",
        )
    axes.set_xlabel("GPUs, 128 samples each")
    axes.set_ylabel("speed-up over one GPU")
    axes.legend(frameon=False, fontsize=11)
    save(picture, folder, "dettmers")
