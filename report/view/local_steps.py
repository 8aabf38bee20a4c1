"""Accuracy and samples per second by H, the number of local steps between two synchronisations."""

import pandas
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

import style
import synchronisation
import words
from configuration import section

from . import curves, labelling
from .gather import mean_and_deviation
from .item import Item

KINDS = ("local_sgd", "post_local_sgd")
LEAST = 3  # values of H


def steps_of(group):
    """H; None where the run synchronises in another way."""
    config = group.runs[0].config
    kind = synchronisation.kind_of(config)
    if kind == "every_step":
        return 1
    return synchronisation.whole(section(config, "sync"), "steps", 1) if kind in KINDS else None


def sync_but_steps(group):
    """The section without H; None for an exchange in every step, which is H = 1 of every kind."""
    sync = section(group.runs[0].config, "sync")
    if synchronisation.kind_of(group.runs[0].config) == "every_step":
        return None
    return {k: v for k, v in sync.items() if k != "steps" and (k not in words.SYNC_USUAL or words.SYNC_USUAL[k] != v)}


def others(group):
    """Every setting but those of `sync`, and the study's axes but these; how far the runs are, and whose copies."""
    run = group.runs[0]
    config = {key: value for key, value in run.config.items() if key != "sync"}
    axes = [axis for axis in labelling.told_axes(run, ("sync",)) if not axis[0].startswith("sync.")]
    return run.ranks, run.progress, run.copy, str(axes), str(sorted(labelling.settings(config).items()))


def series(groups):
    """[{H: group}] of groups that differ in H only, of LEAST values or more."""
    every = {others(g): g for g in groups if sync_but_steps(g) is None}
    found = {}
    for group in groups:
        if steps_of(group) is not None and sync_but_steps(group) is not None:
            by_steps = found.setdefault((others(group), str(sync_but_steps(group))), {})
            by_steps[steps_of(group)] = group
    for (other, _), by_steps in found.items():
        if other in every:
            by_steps[1] = every[other]
    return [dict(sorted(one.items())) for one in found.values() if len(one) >= LEAST]


def names_of(found):
    """Of series: codec, way to synchronise and what else differs among them."""
    lasts = [list(one.values())[-1] for one in found]
    runs = [group.runs[0] for group in lasts]
    configs = [{**run.config, "sync": sync_but_steps(group)} for run, group in zip(runs, lasts)]
    names = words.labels(configs, [run.ranks for run in runs], {"network"})
    return [f"{name}, {run.name}" if names.count(name) > 1 else name for name, run in zip(names, runs)]


def points(one, values_of):
    """[(H, mean, deviation)] of a series; `values_of`: a group's values, one a run."""
    found = [(steps, *mean_and_deviation(values_of(group))) for steps, group in one.items()]
    return [point for point in found if point[1] is not None]


def speeds(group):
    return [float(run.epochs["samples_per_s"].mean()) for run in group.runs if run.is_timed]


def item(groups, network):
    """`groups`: of one network. None where no settings have LEAST values of H."""
    found = series(groups)
    if not found:
        return None
    metric = curves.metric_of(groups)
    names = names_of(found)
    shown = [(metric, curves.METRICS[metric] + " after the last epoch", lambda group: group.finals(metric))]
    if any(len(points(one, speeds)) >= LEAST for one in found):
        shown.append(("samples_per_s", "samples per second", speeds))
    size = curves.PER_PANEL + 1
    parts = [(found[at : at + size], names[at : at + size]) for at in range(0, len(found), size)]
    figure, axes, legend, _ = style.panels(
        len(shown) * len(parts), [], width=5.2, height=4.3, columns=len(shown), sharex=True
    )
    for row, (part, labels) in enumerate(parts):
        handles = [style.handle(label, style.line(i)) for i, label in enumerate(labels)]
        mine = axes[row * len(shown) : (row + 1) * len(shown)]
        for panel, (_, text, values_of) in zip(mine, shown):
            _panel(panel, part, text, values_of)
        if len(parts) == 1:
            width = figure.get_size_inches()[0]
            style.below(legend, handles, style.columns_for(labels, width))
        else:
            style.under(mine[0], handles, columns=1)
    what = curves.METRICS[metric].split(" (")[0]
    kinds = {words.SYNC_KINDS[synchronisation.kind_of(list(one.values())[-1].runs[0].config)] for one in found}
    seeds = any(len(group.runs) > 1 for one in found for group in one.values())
    return Item(
        f"{metric[4:]}_by_local_steps_{network}",
        f"{network}: {what} by number of local steps",
        f"H steps between two synchronisations, by {' or '.join(sorted(kinds))}; all other settings of a curve are the "
        "same. H = 1: an exchange in every step."
        + (" Bars: one standard deviation over seeds." if seeds else ""),
        data(found, names, shown),
        figure,
    )


def _panel(axes, part, text, values_of):
    for i, one in enumerate(part):
        drawn = points(one, values_of)
        if drawn:
            steps, means, deviations = zip(*drawn)
            look = {**style.line(i), "capsize": 4, "elinewidth": 1.3}
            axes.errorbar(steps, means, yerr=[d or 0.0 for d in deviations], **look)
    ticks = sorted({steps for one in part for steps in one})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("H, local steps")
    axes.set_ylabel(text)
    axes.grid(**style.GRID)


def data(found, names, shown):
    rows = []
    for one, name in zip(found, names):
        for steps, group in one.items():
            row = {"label": name, "local_steps": steps, "seeds": len(group.runs)}
            for field, _, values_of in shown:
                row[f"{field}_mean"], row[f"{field}_deviation"] = mean_and_deviation(values_of(group))
            rows.append(row)
    return pandas.DataFrame(rows)
