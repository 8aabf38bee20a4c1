"""Draws the outlook; each function returns a figure."""

from fractions import Fraction

import style
from published import ONE_GPU, codec_name

NAMES = {
    "alexnet": "AlexNet",
    "vgg19": "VGG19",
    "bn_inception": "BN-Inception",
    "resnet50": "ResNet-50",
    "resnet110": "ResNet-110",
    "resnet152": "ResNet-152",
    "lstm_an4": "LSTM",
}
TITLES = {"imagenet": "ImageNet", "cifar10": "CIFAR-10"}
STAR = {"color": "black", "marker": "*", "markersize": 13, "linestyle": "none"}


def points(look):
    """A curve's look for points that no line joins."""
    return {**look, "linestyle": "none", "markersize": 9, "markevery": None}


def speedup(rows, ranks, limit):
    labels = [
        "AlexNet, dense layers 1/16 to 4 times as wide",
        "networks of the study",
        f"limit: bytes and coding alone, {limit:.1f}",
    ]
    figure, (axes,), legend, columns = style.panels(1, labels, width=7.6, height=4.8)
    curve = [(x, y, name) for series, name, x, y in rows if series == "alexnet"]
    networks = [(x, y, name) for series, name, x, y in rows if series == "network" and name != "alexnet"]
    looks = [style.line(1), points(style.line(2)), style.REFERENCE]
    for look, drawn in zip(looks, (curve, networks)):
        axes.plot([x for x, _, _ in drawn], [y for _, y, _ in drawn], **look)
    for x, y, name in curve:
        width = Fraction(name.removeprefix("width "))
        style.note(axes, str(width), (x, y), (0, 8), fontsize=10.5, ha="left" if x < 5 else "center")
    for x, y, name in networks:
        is_left = x < 4.1
        place = {"ha": "right" if is_left else "left", "va": "center"}
        style.note(axes, NAMES.get(name, name), (x, y), (-8 if is_left else 8, 0), **place)
    axes.axhline(limit, **style.REFERENCE)
    axes.set_xscale("log")
    axes.set_ylim(0.8, 1.08 * limit)
    axes.set_xlim(left=1.3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("MB of parameters per GFLOP of a sample, forward and backward")
    axes.set_ylabel("samples/s of QSGD 8 bit over 32 bit")
    axes.set_title(f"{ranks} GPUs, MPI through the host, as calibrated")
    axes.grid(**style.GRID)
    style.below(legend, [style.handle(*pair) for pair in zip(labels, looks)], columns)
    return figure


def price(rows):
    codecs = list(dict.fromkeys(row[2] for row in rows))
    data = [name for name in TITLES if any(row[1] == name for row in rows)]
    one = ONE_GPU
    figure, panels, legend, columns = style.panels(
        len(data), [one, *map(codec_name, codecs)], width=5.0, height=4.6
    )
    for axes, name in zip(panels, data):
        _prices(axes, [row for row in rows if row[1] == name], codecs)
        axes.set_title(TITLES[name])
    panels[0].set_ylabel("top-1 accuracy (%)")
    handles = [style.handle(one, STAR)]
    handles += [style.handle(codec_name(codec), points(style.line(i))) for i, codec in enumerate(codecs)]
    style.below(legend, handles, columns)
    return figure


def _prices(axes, rows, codecs):
    for network, _, codec, accuracy, ranks, _, _, dollars in rows:
        axes.plot(dollars, accuracy, **(STAR if ranks == 1 else points(style.line(codecs.index(codec)))))
    for network in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == network]
        left_and_top = min(row[7] for row in own), max(row[3] for row in own)
        style.note(axes, NAMES.get(network, network), left_and_top, (-8, 12))
    axes.set_xscale("log")
    axes.margins(x=0.25, y=0.12)
    axes.set_xlabel("price of the training ($)")
    axes.grid(**style.GRID)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")


def dettmers(rows):
    curves = {}
    for overlap, _, codec, ranks, speed, *_ in rows:
        curves.setdefault((codec, overlap), []).append((ranks, speed))
    codecs = list(dict.fromkeys(codec for codec, _ in curves))
    looks = {}
    for i, codec in enumerate(codecs):
        looks[codec, "yes"], looks[codec, "no"] = style.pair(i)
    claimed = sorted({(row[3], row[5]) for row in rows if row[5] != ""})
    labels = [f"{codec}, {'' if overlap == 'yes' else 'not '}overlapped" for codec, overlap in curves]
    figure, (axes,), legend, columns = style.panels(1, [*labels, "claimed"], width=7.6, height=4.4)
    for key, drawn in curves.items():
        axes.plot(*zip(*drawn), **looks[key])
    handles = [style.handle(label, looks[key]) for label, key in zip(labels, curves)]
    if claimed:
        axes.plot(*zip(*claimed), **STAR)
        handles.append(style.handle("claimed: " + " and ".join(f"{y:g}" for _, y in claimed), STAR))
    axes.set_xlabel("GPUs, 128 samples each")
    axes.set_ylabel("speed-up over one GPU")
    axes.grid(**style.GRID)
    style.below(legend, handles, columns)
    return figure
