"""Samples per second and scalability, beside the numbers of the EDBT 2018 study: its Tables 10 and 11, and
its Figs. 12 to 15."""

import pandas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import published
import style
import words
from configuration import section

from . import gather, labelling
from .item import Item, rounded

TABLES = {"mpi": "Table 10", "nccl": "Table 11"}
FIGURES = {"mpi": "Figs. 12 and 14", "nccl": "Figs. 13 and 15"}
SHOWN = ("codec", "ranks", "transport", "collective", "link")  # axes that no base of a curve depends on


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
                    "of": published.K80,
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


def one_rank(groups, group):
    """Samples/s on one rank of what `group` trains: the same network with the same parameters, data,
    arithmetic and device, on the same machine. Of several, those whose other settings differ least, full precision
    first. What the exchange does is no matter: one rank sends nothing. Runs that are as far as the group's, or finished,
    come before others, and the same copy before others. None where there is none."""
    same, wanted = _work(group), _settings(group)
    alone = [g for g in groups if g.ranks == 1 and _work(g) == same and gather.is_same_machine(g, group)]

    def distance(other):
        found = _settings(other)
        keys = {*found, *wanted}
        differing = sum(found.get(key) != wanted.get(key) for key in keys)
        is_less_far = other.runs[0].progress not in ("", group.runs[0].progress)
        return differing, is_less_far, other.codec != "none", other.runs[0].copy != group.runs[0].copy

    return min(alone, key=distance).mean("samples_per_s") if alone else None


def _work(group):
    """What samples per second of one rank depend on."""
    config = group.runs[0].config
    data, train = section(config, "data"), section(config, "train")
    compute = train.get("compute", words.USUAL["train.compute"])
    return group.network, config.get("network"), data.get("dataset"), compute, train.get("device")


def _settings(group):
    """Everything but the exchange's, and the study's axes but those that a curve and its axis show."""
    run = group.runs[0]
    config = {key: value for key, value in run.config.items() if key != "exchange"}
    axes = labelling.told_axes(run, SHOWN)
    return {**labelling.settings(config), **{f"axis {name}": value for name, value in axes if not name.startswith("exchange.")}}


def scalability(groups, every_group, transport):
    """None where no network has both a run of one rank and one of several."""
    based = [(g, base) for g in groups if (base := one_rank(every_group, g))]
    networks = [
        n
        for n in dict.fromkeys(g.network for g in groups)
        if any(g.ranks > 1 for g, _ in based if g.network == n)
    ]
    if not networks:
        return None
    labels = list(dict.fromkeys(g.label for g, _ in based if g.network in networks))
    most_of = {n: max(g.ranks for g, _ in based if g.network == n) for n in networks}
    known = {
        n: _published(n, transport, {g.codec for g in groups if g.network == n}, most_of[n]) for n in networks
    }
    looks = {codec: look for codec, look in STUDY.items() if any(codec in cells for cells in known.values())}
    named = ["ideal", *labels, *(_study_label(codec) for codec in looks)]
    figure, axes, legend, columns = style.panels(
        len(networks), named, width=5.6 if len(networks) == 1 else 4.4, height=3.8
    )
    rows = []
    for panel, network in zip(axes, networks):
        most = most_of[network]
        for i, label in enumerate(labels):
            points = sorted(
                (g.ranks, g.mean("samples_per_s") / base)
                for g, base in based
                if g.network == network and g.label == label
            )
            if points:
                panel.plot(*zip(*points), **style.line(i))
                rows += [
                    {"network": network, "label": label, "of": "here", "ranks": k, "scalability": y}
                    for k, y in points
                ]
        rows += _study(panel, known[network], looks, network)
        panel.plot([1, most], [1, most], **IDEAL)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        ticks = sorted({g.ranks for g, _ in based if g.network == network} | {1})
        for axis, values in ((panel.xaxis, ticks), (panel.yaxis, [2.0**i for i in range(-3, 12)])):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_major_locator(FixedLocator(values))
            axis.set_minor_locator(NullLocator())
        panel.set_title(network)
        panel.set_xlabel("ranks")
        panel.set_ylabel("samples/s over one rank's")
        panel.grid(**style.GRID)
    handles = [style.handle("ideal", IDEAL)]
    handles += [style.handle(label, style.line(i)) for i, label in enumerate(labels)]
    handles += [style.handle(_study_label(codec), look) for codec, look in looks.items()]
    style.below(legend, handles, columns)
    paper = f" ({FIGURES[transport]} of {published.NAME})" if transport in FIGURES else ""
    return Item(
        f"scalability_{transport}",
        f"Scalability over {transport}{paper}",
        "Samples per second over those of one rank on the same machine, with the same settings in full precision. Grey: "
        f"{published.NAME}, 32 bit and the codecs of the runs here (QSGD 8 bit where it has none of them), "
        "computed from its samples per second on Amazon's K80.",
        pandas.DataFrame(rows),
        figure,
    )


IDEAL = {"color": "0.55", "linewidth": 1.2, "linestyle": (0, (1, 1.5))}
GREY = {"color": "0.45", "linewidth": 1.1, "markerfacecolor": "white", "markersize": 5}
STUDY = {
    codec: {**GREY, "marker": marker, "linestyle": dashes}
    for codec, marker, dashes in (
        ("none", "o", "-"),
        ("qsgd16", "v", (0, (1, 1))),
        ("qsgd8", "s", (0, (4, 2))),
        ("qsgd4", "D", (0, (6, 2, 1, 2))),
        ("qsgd2", "^", (0, (2, 1.5))),
        ("onebit_column", "X", (0, (8, 2))),
        ("onebit64", "P", (0, (4, 1.5, 1, 1.5, 1, 1.5))),
    )
}


def _study_label(codec):
    return f"study, {published.codec_name(codec)}"


def _published(network, transport, codecs, most):
    """{codec: [(ranks, over one GPU)]}, up to so many ranks, of full precision and of the codecs that the
    runs here have; of QSGD 8 bit where they have none that was published."""
    cells = published.samples_per_s(network, transport)
    base = cells.get(("none", 1))
    there = dict.fromkeys(codec for codec, _ in cells)
    wanted = [codec for codec in there if codec in codecs and codec != "none"] or ["qsgd8"]
    found = {}
    for codec in ("none", *wanted) if base else ():
        points = sorted((k, value / base) for (c, k), value in cells.items() if c == codec and 1 < k <= most)
        if points:
            found[codec] = [(1, 1.0), *points]
    return found


def _study(axes, known, looks, network):
    rows = []
    for codec, points in known.items():
        axes.plot(*zip(*points), **looks[codec])
        about = {"network": network, "label": _study_label(codec), "of": published.K80}
        rows += [{**about, "ranks": k, "scalability": y} for k, y in points]
    return rows
