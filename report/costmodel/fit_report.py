"""What --report prints: constants, errors, cells left out, outliers."""

import math
from collections import defaultdict

import numpy as np

from costmodel import constants as c
from costmodel import priors
from costmodel import validation as v


def percent(value):
    return f"{100 * value:.1f} %"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(field) for field in row) + " |" for row in rows]


def errors_row(label, found):
    absolute = sorted(abs(t.error) for t in found)
    worst = max(found, key=lambda t: abs(t.error))
    tenth = absolute[min(len(absolute) - 1, math.ceil(0.9 * len(absolute)) - 1)]
    name = f"{worst.cell.name} ({100 * worst.error:+.1f} %)"
    return [
        label,
        len(found),
        percent(v.mean_error(found)),
        percent(v.median_error(found)),
        percent(tenth),
        name,
    ]


ERRORS = ("", "cells", "mean", "median", "nine tenths within", "worst")


def grouped(found, key):
    groups = defaultdict(list)
    for t in found:
        groups[key(t.cell)].append(t)
    return [errors_row(label, group) for label, group in sorted(groups.items())]


def constants_section(model):
    rows = []
    for constant, value in zip(c.CONSTANTS, model.values.values()):
        prior = f"{constant.centre:.3g} x/: {math.exp(constant.deviation):.1f}"
        rows.append([constant.name, f"{value:.3g}", constant.unit, prior, constant.meaning])
    labels, x = model.parameters.labels[len(rows) :], model.x[len(rows) :]
    factors = [[label, f"{math.exp(value):.3f}"] for label, value in zip(labels, x)]
    batches = len(model.parameters.batches) + len(model.parameters.several)
    text = [
        f"{len(model.x)} numbers are fitted: {len(rows)} constants of the machine; "
        f"{len(model.parameters.rate)} factors of the cost",
        f"of a byte, one for each number of ranks (deviation {c.RATE:g}); {len(model.parameters.latency)} "
        f"of the latency over NCCL, one for each network (deviation {c.LATENCY:g}); {batches} factors of "
        f"computing, one for each network and",
        f"local batch ({c.OCTAVE:g} for each halving, {c.SEVERAL:g} at the batch of one rank). All have "
        f"priors; the cells",
        f"determine as much as {model.effective:.1f} free numbers would.",
    ]
    return [
        *text,
        "",
        *table(("constant", "fitted", "unit", "prior", "meaning"), rows),
        "",
        *table(("factor", "fitted"), factors),
    ]


def outliers_section(cells, found):
    lines = []
    for t in sorted(found, key=lambda t: -abs(t.error)):
        if abs(t.error) > v.OUTLIER:
            lines.append(
                f"- {t.cell.name}: measured {t.cell.samples_per_s:g}, fitted {t.predicted:.4g} "
                f"({100 * t.error:+.1f} %)"
            )
    for cell, ratio in v.superlinear(cells):
        lines.append(
            f"- {cell.name}: measured {cell.samples_per_s:g}, {ratio:.2f} times as many ranks alone: "
            f"superlinear"
        )
    for a, b in v.slower_with_more(cells):
        lines.append(
            f"- {b.name}: {b.samples_per_s:g} samples/s, slower than {a.samples_per_s:g} at {a.ranks}"
        )
    return lines or ["none"]


def single_section(cells):
    """Codecs that one network has: what a fit without them says of them."""
    lines = []
    for (transport, codec), network in v.single_network_codecs(cells).items():
        chosen = [cell for cell in v.multi(cells) if (cell.transport, cell.codec) == (transport, codec)]
        seen = any(cell.codec == codec and cell.transport != transport for cell in v.multi(cells))
        how = "its other transport" if seen else "other codecs and the priors"
        lines.append([f"{transport} {codec}", network, how, *errors_row("", v.left_out(cells, chosen))[1:]])
    return lines


def uncertainty_section(model):
    """Deviations of cells that were not measured."""
    asked = priors.unmeasured(model.cells)
    transports = sorted({cell.transport for cell in asked})
    rows = []
    for network in sorted({cell.network for cell in asked}):
        row = [network]
        for transport in transports:
            own = [cell for cell in asked if (cell.network, cell.transport) == (network, transport)]
            deviations = sorted(zip(model.deviation(own), (cell.name for cell in own))) if own else []
            if deviations:
                row += [
                    percent(deviations[len(deviations) // 2][0]),
                    f"{percent(deviations[-1][0])} ({deviations[-1][1]})",
                ]
            else:
                row += ["", ""]
        rows.append(row)
    header = ["network"]
    for transport in transports:
        header += [f"{transport}: median", "largest"]
    return table(header, rows)


def priors_section(cells):
    """Each prior's centre moved, one at a time."""
    if len({cell.network for cell in v.multi(cells)}) < 2:
        return ["Not told: its errors are those of networks that are left out, and there is one network."]
    found, asked = priors.moved(cells)
    rows = []
    for m in found:
        changes = np.abs(m.changes)
        worst = f"{percent(changes.max())} ({asked[changes.argmax()].name})" if asked else ""
        tenths = [percent(np.median(changes)), percent(np.quantile(changes, 0.9))] if asked else ["", ""]
        rows.append([m.constant, f"x {m.factor:.2g}", percent(m.plain), percent(m.rest), *tenths, worst])
    header = (
        "constant",
        "centre",
        "32 bit MPI left out: median",
        "the rest: median",
        "unmeasured cells move: median",
        "nine tenths within",
        "most",
    )
    span = [(min(e), max(e)) for e in ([m.plain for m in found], [m.rest for m in found])]
    text = [
        f"The median error of 32 bit MPI lies between {percent(span[0][0])} and {percent(span[0][1])}, "
        f"that of the rest between "
        f"{percent(span[1][0])} and {percent(span[1][1])}."
    ]
    return [*text, "", *table(header, rows)]


def estimated_section(model):
    seen = {cell.network for cell in model.cells}
    estimated = sorted(
        name for name, alone in model.parameters.alone.items() if name in seen and not alone.is_measured
    )
    if not estimated:
        return []
    return ["", f"not measured on one rank with codec none: {', '.join(estimated)}. Their cells of several ranks "
                "say how long one takes; the errors of a network left out below count them too low."]


def report(model):
    cells = model.cells
    if not v.multi(cells):
        return (
            "No cell has several ranks: every number is its prior.\n\n"
            + "\n".join(constants_section(model))
            + "\n"
        )
    found = v.tried(model, v.multi(cells))
    networks = v.networks_left_out(cells)
    lines = [f"# Calibration on {len(cells)} cells of {cells[0].machine}", "", *constants_section(model)]
    lines += estimated_section(model)
    lines += ["", "## Errors of the fit (samples/s, cells of several ranks)", ""]
    lines += table(ERRORS, [errors_row("all", found), *grouped(found, lambda cell: cell.network)])
    lines += ["", *table(ERRORS, grouped(found, lambda cell: f"{cell.transport} {cell.codec}"))]
    lines += ["", "## One network left out (its cell on one rank stays)", ""]
    plain, rest = v.plain_and_rest(networks)
    rows = [errors_row("32 bit over MPI, all", plain)] if plain else []
    for network, group in networks.items():
        rows += [
            [f"{network}: {row[0]}", *row[1:]]
            for row in grouped(group, lambda cell: f"{cell.transport} {cell.codec}")
        ]
    rows += [errors_row("the rest, all", rest)] if rest else []
    lines += table(ERRORS, rows)
    lines += ["", "## Other cells left out", ""]
    rows = []
    for label, key in (
        ("one network's codec", lambda cell: (cell.network, cell.codec) if cell.codec != "none" else None),
        ("one network's NCCL cells", lambda cell: cell.network if cell.transport == "nccl" else None),
        ("all codecs of a network", lambda cell: cell.network if cell.codec != "none" else None),
    ):
        group = [t for found_group in v.groups_left_out(cells, key).values() for t in found_group]
        rows += [errors_row(label, group)] if group else []
    rows.append(errors_row("random halves, three times", v.halves_left_out(cells)))
    group = [t for found_group in v.unknown_networks(cells).values() for t in found_group]
    rows += [errors_row("all cells of a network", group)] if group else []
    lines += table(ERRORS, rows)
    single = single_section(cells)
    if single:
        header = ("transport, codec", "only in", "predicted from", *ERRORS[1:])
        lines += ["", "## Codecs seen in one network only, left out", "", *table(header, single)]
    lines += [
        "",
        "## Cells that were not measured: the model's own deviation (a measured cell's noise comes on top)",
        "",
    ]
    lines += uncertainty_section(model)
    lines += [
        "",
        "## Priors: each centre doubled and halved (two deviations at most)",
        "",
        *priors_section(cells),
    ]
    lines += ["", "## Outliers", "", *outliers_section(cells, found)]
    return "\n".join(lines) + "\n"
