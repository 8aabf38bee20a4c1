"""Samples per second and scalability, beside the numbers of the EDBT 2018 study: its Tables 10 and 11, and
its Figs. 12 to 15."""

import pandas
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

import published
import style

from .item import Item, rounded

TABLES = {"mpi": "Table 10", "nccl": "Table 11"}
FIGURES = {"mpi": "Figs. 12 and 14", "nccl": "Figs. 13 and 15"}


def table(groups, transport):
    """A row a network and codec, a column a number of ranks."""
    published_of = {
        n: published.samples_per_s(n, transport) for n in dict.fromkeys(g.network for g in groups)
    }
    ranks = sorted({g.ranks for g in groups})
    shown = sorted({*ranks, *(k for cells in published_of.values() for _, k in cells)})
    rows = []
    for network, cells in published_of.items():
        mine = [g for g in groups if g.network == network]
        for label in dict.fromkeys(g.label for g in mine):
            row = {"network": network, "codec": label, "of": "here"}
            for group in mine:
                if group.label == label:
                    row[str(group.ranks)] = rounded(group.mean("samples_per_s"))
            rows.append(row)
        for codec in dict.fromkeys(codec for codec, _ in cells):
            rows.append(
                {
                    "network": network,
                    "codec": published.codec_name(codec),
                    "of": "study (K80)",
                    **{str(k): value for (c, k), value in cells.items() if c == codec},
                }
            )
    frame = pandas.DataFrame(rows, columns=["network", "codec", "of", *map(str, shown)])
    paper = f" ({TABLES[transport]} of {published.NAME})" if transport in TABLES else ""
    return Item(
        f"samples_per_s_{transport}",
        f"Samples per second over {transport} by number of ranks{paper}",
        "Mean over epochs and seeds, without evaluation. "
        f"Rows of {published.NAME} are as published, on Amazon's K80.",
        frame,
    )


def one_rank(groups, network):
    """Samples/s of full precision on one rank, over any transport; else of any codec; else None."""
    alone = [g for g in groups if g.network == network and g.ranks == 1]
    base = next((g for g in alone if g.codec == "none"), alone[0] if alone else None)
    return base.mean("samples_per_s") if base else None


def scalability(groups, every_group, transport):
    """None where no network has both a run of one rank and one of several."""
    networks = [
        n
        for n in dict.fromkeys(g.network for g in groups)
        if one_rank(every_group, n) and any(g.ranks > 1 for g in groups if g.network == n)
    ]
    if not networks:
        return None
    labels = list(dict.fromkeys(g.label for g in groups if g.network in networks))
    known = {n: published.samples_per_s(n, transport) for n in networks}
    named = ["ideal", *labels, *(["study, 32 bit", "study, QSGD 8 bit"] if any(known.values()) else [])]
    figure, axes, legend, columns = style.panels(
        len(networks), named, width=5.6 if len(networks) == 1 else 4.4, height=3.8
    )
    rows = []
    for panel, network in zip(axes, networks):
        base = one_rank(every_group, network)
        most = max([g.ranks for g in groups if g.network == network])
        for i, label in enumerate(labels):
            points = sorted(
                (g.ranks, g.mean("samples_per_s") / base)
                for g in groups
                if g.network == network and g.label == label
            )
            if points:
                panel.plot(*zip(*points), **style.line(i))
                rows += [
                    {"network": network, "label": label, "of": "here", "ranks": k, "scalability": y}
                    for k, y in points
                ]
        rows += _study(panel, known[network], most, network)
        panel.plot([1, most], [1, most], **IDEAL)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        ticks = sorted({g.ranks for g in groups if g.network == network} | {1})
        for axis, values in ((panel.xaxis, ticks), (panel.yaxis, [2.0**i for i in range(-3, 12)])):
            axis.set_major_formatter(ScalarFormatter())
            axis.set_major_locator(FixedLocator(values))
            axis.set_minor_locator(NullLocator())
        panel.set_title(network)
        panel.set_xlabel("ranks")
        panel.set_ylabel("samples/s over one rank's")
        panel.grid(**style.GRID)
    handles = [style.handle("ideal", IDEAL)]
    handles += [style.handle(label, style.line(i)) for i, label in enumerate(labels)]
    if any(known.values()):
        handles += [style.handle(label, look) for label, look in STUDY.values()]
    style.below(legend, handles, columns)
    paper = f" ({FIGURES[transport]} of {published.NAME})" if transport in FIGURES else ""
    return Item(
        f"scalability_{transport}",
        f"Scalability over {transport}{paper}",
        f"Samples per second over those of one rank in full precision. Grey: {published.NAME}, computed "
        "from its samples per second on Amazon's K80.",
        pandas.DataFrame(rows),
        figure,
    )


IDEAL = {"color": "0.55", "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
GREY = {"color": "0.45", "linewidth": 1.1, "markerfacecolor": "white", "markersize": 5}
STUDY = {
    "none": ("study, 32 bit", {**GREY, "marker": "o"}),
    "qsgd8": ("study, QSGD 8 bit", {**GREY, "marker": "s", "linestyle": (0, (4, 2))}),
}


def _study(axes, cells, most, network):
    base = cells.get(("none", 1))
    rows = []
    for codec, (label, look) in STUDY.items():
        points = sorted(
            (k, value / base)
            for (c, k), value in cells.items()
            if c in (codec, "none" if k == 1 else codec) and k <= most
        )
        if base and len(points) > 1:
            axes.plot(*zip(*points), **look)
            rows += [
                {"network": network, "label": label, "of": "study (K80)", "ranks": k, "scalability": y}
                for k, y in points
            ]
    return rows
