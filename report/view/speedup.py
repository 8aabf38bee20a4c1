"""Samples per second of a codec over those of full precision, against megabytes of parameters per GFLOP (Fig. 16 of the
EDBT 2018 study, right)."""

import json
import os

import pandas
import program
import published
import style
from configuration import section
from errors import UserError

from . import gather, labelling
from .item import Item

# What a codec beside full precision may have of its own.
CODEC = tuple(
    f"exchange.{key}"
    for key in ("codec", "min_elements", "rules", "warmup_epochs", "collective", "ranks_per_block")
)
POINT = {"linestyle": "none", "markevery": None}
HOLLOW = {"markerfacecolor": "white", "markeredgewidth": 1.2, "markersize": 6}


def megabytes_per_gflop(parameters, flops):
    """Of float32 parameters, and of a sample, forward and backward; `flops`: forward, as `lpsgd show` counts them."""
    return 4 * parameters / 1e6 / (3 * flops / 1e9)


def of_network(run, known):
    """That number for the run's network, which the program counts. None for sequences of any length, whose samples differ,
    and for a network that the program does not take, such as an earlier revision's. `known` keeps the answers."""
    network, truncate = section(run.config, "network"), section(run.config, "data").get("truncate")
    key = json.dumps([network, truncate], sort_keys=True, default=str)
    if key not in known:
        is_open = not truncate and "any" in map(str, network.get("input") or [])
        known[key] = None if is_open else _asked(run)
    return known[key]


def _asked(run):
    try:
        shown = program.show(os.path.join(run.folder, "config.yaml"))
    except UserError as error:
        gather.tell(f"no speed-up against parameters for {labelling.network_of(run)}: {error}")
        return None
    return megabytes_per_gflop(shown["parameters"], shown["flops"])


def full_precision(groups, group):
    """The samples/s without a codec, on the same machine with the same ranks and all other settings; of several
    collectives the group's own first. None where there is no such run."""

    def others(one):
        found = labelling.settings(one.runs[0].config)
        return {key: value for key, value in found.items() if not any(f"{key}.".startswith(f"{c}.") for c in CODEC)}

    def is_base(one):
        same = all(getattr(one, name) == getattr(group, name) for name in ("network", "ranks", "transport"))
        is_real = one.codec == "none" and not one.simulated
        return same and is_real and gather.is_same_machine(one, group) and others(one) == others(group)

    def distance(one):
        return one.collective != group.collective, one.runs[0].copy != group.runs[0].copy

    able = [one for one in groups if is_base(one)]
    return min(able, key=distance).mean("samples_per_s") if able else None


def at_most_ranks(groups):
    """{(network, label): (group, speed-up)} of each setting at the largest number of ranks that full precision has, too."""
    out = {}
    for group in sorted(groups, key=lambda group: group.ranks):
        base = full_precision(groups, group) if group.codec != "none" and group.ranks > 1 else None
        if base:
            out[group.network, group.label] = group, group.mean("samples_per_s") / base
    return out


def rows_of(groups, transport):
    """The figure's points: the runs', and the study's of the same networks and codecs. Nothing for one network alone."""
    found = at_most_ranks(groups)
    networks = {json.dumps(section(group.runs[0].config, "network"), default=str) for group, _ in found.values()}
    known, rows, codecs = {}, [], {}
    for group, value in found.values() if len(networks) > 1 else ():
        size = of_network(group.runs[0], known)
        if size is not None:
            rows.append(_row(group.network, group.label, "here", group.ranks, size, value))
            codecs[group.codec] = group.label
    for network, size in {row["network"]: row["mb_per_gflop"] for row in rows}.items():
        cells = published.samples_per_s(network, transport)
        for codec in codecs:
            ranks = max((k for c, k in cells if c == codec and k > 1 and ("none", k) in cells), default=None)
            if ranks:
                value = cells[codec, ranks] / cells["none", ranks]
                rows.append(_row(network, published.codec_name(codec), published.K80, ranks, size, value))
    return rows, codecs


def _row(network, label, of, ranks, size, speedup):
    return {"network": network, "label": label, "of": of, "ranks": ranks, "mb_per_gflop": size, "speedup": speedup}


def item(groups, transport):
    """None unless two networks have a codec beside full precision."""
    rows, codecs = rows_of(groups, transport)
    if len({row["mb_per_gflop"] for row in rows}) < 2:
        return None
    labels = dict.fromkeys(row["label"] for row in rows if row["of"] != published.K80)
    looks = {label: {**style.line(i), **POINT, "markersize": 8} for i, label in enumerate(labels)}
    there = {row["label"] for row in rows if row["of"] == published.K80}
    studys = {
        name: {**POINT, **HOLLOW, "marker": looks[label]["marker"], "markeredgecolor": looks[label]["color"]}
        for codec, label in codecs.items()
        if (name := published.codec_name(codec)) in there and label in looks
    }
    named = {**looks, **{f"study, {name}": look for name, look in studys.items()}}
    figure, (axes,), legend, columns = style.panels(1, [*named], width=8.2, height=4.6)
    highest = {}
    for row in sorted(rows, key=lambda row: row["speedup"]):
        look = studys[row["label"]] if row["of"] == published.K80 else looks[row["label"]]
        axes.plot(row["mb_per_gflop"], row["speedup"], **look)
        highest[row["network"], row["mb_per_gflop"]] = row["mb_per_gflop"], row["speedup"], row["network"]
    axes.axhline(1, **style.REFERENCE)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    style.log_labels(axes.xaxis)
    axes.set_xlabel("MB of parameters per GFLOP of a sample, forward and backward")
    axes.set_ylabel("samples/s over those of 32 bit")
    axes.grid(**style.GRID)
    style.names_beside(axes, list(highest.values()))
    style.below(legend, [style.handle(*pair) for pair in named.items()], columns)
    hollow = f" Hollow: {published.NAME}, on Amazon's K80, at its largest number of ranks." if studys else ""
    return Item(
        f"speedup_against_parameters_{transport}",
        f"Speed-up against parameters over {transport} (Fig. 16 of {published.NAME}, right)",
        "Samples per second over those of full precision with the same ranks and settings (the collective may be another "
        f"one), for each network and codec at the largest number of ranks that has both.{hollow} Sequences of any length "
        "are left out.",
        pandas.DataFrame(rows),
        figure,
    )
