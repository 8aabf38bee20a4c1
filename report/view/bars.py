"""Time per epoch in communication and computation by network, ranks and codec: the study's Figs. 6 to 9."""

import textwrap

import numpy as np
import pandas
from matplotlib.patches import Patch

import published
import style
import words

from .item import Item

PAPER = {"mpi": "Figs. 6 and 8", "nccl": "Figs. 7 and 9"}
LETTER = 0.09  # inches of a bar's name


def stacked(axes, places, communication, computation, texts, width, rotation=0):
    """Bars of communication below computation, with a text above each."""
    look = {"width": width, "edgecolor": "0.15", "linewidth": 0.9}
    axes.bar(places, communication, color=style.COMMUNICATION, hatch="///", **look)
    axes.bar(places, computation, bottom=communication, color=style.COMPUTATION, **look)
    for x, low, high, text in zip(places, communication, computation, texts):
        place = {"ha": "center", "va": "bottom", "rotation": rotation}
        style.note(axes, text, (x, low + high), (0, 3), fontsize=9.5, **place)
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", **style.GRID)


def share(communication, computation):
    both = communication + computation
    return f"{100 * communication / both if both > 0 else 0:.0f} %"


def handles(computation="computation", communication="communication"):
    """The two entries of a legend."""
    return [
        Patch(facecolor=style.COMPUTATION, edgecolor="0.15", label=computation),
        Patch(facecolor=style.COMMUNICATION, edgecolor="0.15", hatch="///", label=communication),
    ]


def items(groups, transport):
    """`groups`: of one transport, any number of networks."""
    networks = list(dict.fromkeys(g.network for g in groups))
    rows = []
    widest = max(sum(1 for g in groups if g.network == n) for n in networks)
    texts = {group.label: textwrap.fill(group.label, 30 if widest < 12 else 60) for group in groups}
    lines = max(text.count("\n") + 1 for text in texts.values())
    width = max(4.6, 1.2 + max(0.42, 0.26 * lines) * widest)
    labels = ["computation (with encoding and decoding)", "communication"]
    figure, axes, legend, columns = style.panels(
        len(networks), labels, width=width, height=4.2, columns=1 if width > 7 else 2
    )
    for panel, network in zip(axes, networks):
        rows += _network(panel, [g for g in groups if g.network == network], network, texts)
    style.below(legend, handles(*labels), columns)
    paper = f" ({PAPER[transport]} of {published.NAME})" if transport in PAPER else ""
    return Item(
        f"time_per_epoch_{transport}",
        f"Time per epoch over {transport}{paper}",
        f"Mean over epochs and seeds. Communication is below computation, as in {published.NAME}, which "
        "shows these bars as a picture only. Its samples per second are in a table here.",
        pandas.DataFrame(rows),
        figure,
    )


def _network(axes, groups, network, texts):
    rows, places, at, previous = [], [], 0.0, None
    ordered = sorted(groups, key=lambda g: g.ranks)
    for group in ordered:
        at += 1.0 if group.ranks == previous or previous is None else 1.7
        previous = group.ranks
        places.append(at)
        communication, computation = group.mean("communication_s"), group.mean("computation_s")
        rows.append(
            {
                "network": network,
                "ranks": group.ranks,
                "label": group.label,
                "seeds": len(group.runs),
                "communication_s": communication,
                "computation_s": computation,
            }
        )
    communication = np.array([row["communication_s"] for row in rows])
    computation = np.array([row["computation_s"] for row in rows])
    shares = [share(low, high) for low, high in zip(communication, computation)]
    stacked(axes, places, communication, computation, shares, 0.78, rotation=90 if len(places) > 12 else 0)
    top = float((communication + computation).max()) or 1.0
    axes.set_ylim(0, 1.16 * top)
    axes.set_xlim(places[0] - 0.8, places[-1] + 0.8)
    names = [texts[g.label] for g in ordered]
    room = axes.bbox.width / axes.figure.dpi / len(names)
    is_turned = room < LETTER * max(len(line) for name in names for line in name.split("\n"))
    axes.set_xticks(places, names, rotation=90 if is_turned else 0, fontsize=10)
    axes.set_title(_title(network, ordered))
    axes.set_ylabel("seconds per epoch")
    for count in dict.fromkeys(g.ranks for g in ordered):
        mine = [x for x, g in zip(places, ordered) if g.ranks == count]
        if len({g.ranks for g in ordered}) > 1:
            axes.annotate(
                words.counted(count, "rank"),
                (sum(mine) / len(mine), 1.0),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=10.5,
                fontweight="bold",
            )
    if len({g.ranks for g in ordered}) > 1:
        axes.set_ylim(0, 1.26 * top)
    return rows


def _title(network, groups):
    counts = {g.ranks for g in groups}
    count = counts.pop() if len(counts) == 1 else None
    return (
        network
        + (f", {words.counted(count, 'rank')}" if count else "")
        + " (above each bar: share of communication)"
    )
