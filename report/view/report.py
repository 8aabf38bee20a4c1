"""Gathers the runs, draws everything that they allow, and writes the folder of the report."""

import contextlib
import json
import math
import os
import re

import files
import published
import runs
import style
from study import measures
from words import counted

from . import bars, coding, curves, differences, gather, latex, local_steps, page, scale, speedup, summary, tradeoff
from . import price as prices

MANIFEST = "report.json"  # the files of the report, so that the next one removes what it no longer has


def make(read, unfinished, out, target=None, price=None, outlook=()):
    """Writes index.html, figures/ and tables/ into `out`. Returns the names of the items. `outlook`: more
    items."""
    items = with_own_names([*collect(read, target, price), *outlook])
    write(items, read, out, title(read), notes(read, unfinished))
    return [item.name for item in items]


def title(read):
    studies = {run.study.get("study") for run in read} - {None}
    return f"Study {studies.pop()}" if len(studies) == 1 else "Runs of lpsgd"


def notes(read, unfinished):
    out = [f"{counted(len(read), 'run')}."]
    if unfinished:
        out.append(f"{counted(len(unfinished), 'run')} not finished, so left out: {', '.join(unfinished)}.")
    untimed = [run for run in read if not run.is_timed]
    if untimed:
        which = "All" if len(untimed) == len(read) else f"{len(untimed)} of them"
        out.append(
            f"{which} trained beside other work, or several at once on one machine. Seconds and samples per "
            "second of such runs are not comparable, so they are left out."
        )
    revisions = sorted(
        {str(run.environment.get("git_hash")) for run in read if run.environment.get("git_hash")}
    )
    if revisions:
        out.append(f"Revision {', '.join(revisions)}.")
    if any(run.simulated for run in read):
        out.append(
            "Runs marked as simulated encode, then all-reduce as many bytes. Their times count; their "
            "accuracy has no meaning."
        )
    out.append(f"{published.NAME[0].upper()}{published.NAME[1:]}: {published.SOURCE}.")
    return out


def collect(read, target, price):
    everything = gather.groups(read)
    panels = gather.groups(read, omit=("network", "ranks", "transport"))
    networks = list(dict.fromkeys(g.network for g in everything))
    items = [summary.item(everything)]
    for network in networks:
        mine = gather.groups([r for r in read if gather.network_of(r) == network], omit=("network",))
        by_panel = mine
        if len(curves.kinds(mine)) > 1 and len(mine) > curves.PER_PANEL + 1:  # panels say ranks and transport
            by_panel = [g for g in panels if g.network == network]
        items += curves.items(by_panel, network, target)
        items.append(curves.final(mine, network))
        items.append(differences.item(mine, network))
        items.append(tradeoff.against_bytes(mine, network))
        items.append(coding.item(by_panel, network))
        items.append(local_steps.item(mine, network))
    if target:
        to_target = tradeoff.target_table(everything, target)
        items.append(to_target)
        if to_target:
            items += [tradeoff.target_bars(everything, to_target, network) for network in networks]
    timed = gather.timed(panels)
    for transport in dict.fromkeys(g.transport for g in timed):
        mine = [g for g in timed if g.transport == transport]
        if any(g.mean("communication_s") + g.mean("computation_s") > 0 for g in mine):
            items.append(bars.items(mine, transport))
            items.append(scale.table(mine, transport))
            items.append(scale.scalability(mine, timed, transport))
            items.append(speedup.item(mine, transport))
    items.append(prices.item(gather.timed(everything), price))
    return [item for item in items if item is not None]


def with_own_names(items):
    """Networks whose names differ in letters that no file's name has would share their files: the second is -2."""
    taken = set()
    for item in items:
        name, number = item.name, 1
        while item.name.lower() in taken:  # some file systems do not tell capitals apart
            number += 1
            item.name = f"{name}-{number}"
        taken.add(item.name.lower())
    return items


def write(items, read, out, heading, notes_):
    figures, tables = os.path.join(out, "figures"), os.path.join(out, "tables")
    earlier = files_of(out)
    os.makedirs(figures, exist_ok=True)
    os.makedirs(tables, exist_ok=True)
    written = ["index.html"]
    for item in items:
        folder = tables if item.figure is None else figures
        endings = ["csv", "tex", *(() if item.figure is None else style.FORMATS)]
        written += [f"{os.path.basename(folder)}/{item.name}.{ending}" for ending in endings]
        item.data.to_csv(os.path.join(folder, item.name + ".csv"), index=False)
        if item.figure is not None:
            style.save(item.figure, folder, item.name)
        tex = latex.table(item) if item.figure is None else latex.figure(item)
        _write(os.path.join(folder, item.name + ".tex"), tex)
    _write(os.path.join(out, "index.html"), page.text(heading, items, read, notes_))
    for name in sorted(earlier - set(written)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(out, name))
    _write(os.path.join(out, MANIFEST), json.dumps({"files": sorted(written)}, indent=1) + "\n")
    for item in items:
        if item.figure is not None:
            style.plt.close(item.figure)


def files_of(out):
    """What an earlier report wrote into the folder: names of its figures and tables, and no other path."""
    names = files.read_json(os.path.join(out, MANIFEST)).get("files")
    is_ours = re.compile(r"(figures|tables)/[^/\0]+\.(csv|tex|png|svg|pdf)\Z").match
    return (
        {name for name in names if isinstance(name, str) and is_ours(name)}
        if isinstance(names, list)
        else set()
    )


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def read_target(text):
    """'val_top1=90'"""
    metric, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if metric not in measures.TARGETS or not equals or not math.isfinite(number):
        raise runs.RunError(f"--target {text}: expected a metric and its value, such as val_top1=90")
    return metric, number


def check_target(target, read):
    metric, value = target
    if not any(metric in run.epochs for run in read):
        raise runs.RunError(f"--target {metric}={value:g}: no run has {metric}")
