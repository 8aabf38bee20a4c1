"""Price against accuracy (Fig. 16 of the EDBT 2018 study, left). Its right half is in
speedup.py, and in the cost model's outlook."""

import pandas
from matplotlib.ticker import FuncFormatter

import published
import style

from .gather import mean_and_deviation
from .item import Item

# As in the figure of the cost model's outlook.
CODECS = ("none", "qsgd8", "qsgd4", "qsgd2", "onebit_column", "onebit64", "onebit512")
MARKS = dict(zip(CODECS, style.MARKERS))
OTHER = "h"
ONE = "*"  # one GPU, as there
HOLLOW = {
    "linestyle": "",
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 1.4,
    "markersize": 8,
}


def cheapest():
    """Dollars of the whole training by published.price_choices, of each network and codec with a published
    accuracy and rate."""
    rows = []
    for network in published.data_sets():
        speeds = published.samples_per_s(network, "mpi")
        for codec, top1 in published.final_accuracy(network).items():
            for able in published.price_choices(codec, [ranks for cell, ranks in speeds if cell == codec]):
                found = []
                for ranks in able:
                    price = published.training_price(network, ranks, speeds[codec, ranks])
                    found += [(price[0], ranks)] if price else []
                if found:
                    dollars, ranks = min(found)
                    rows.append(
                        {
                            "of": published.K80,
                            "network": network,
                            "label": published.codec_name(codec) if ranks > 1 else published.ONE_GPU,
                            "codec": codec,
                            "ranks": ranks,
                            "transport": "mpi",
                            "dollars": dollars,
                            "top1": top1,
                        }
                    )
    return rows


def ours(groups, price):
    """`price`: dollars an hour for each rank."""
    rows = []
    for group in groups:
        hours = (
            sum(float((r.epochs["communication_s"] + r.epochs["computation_s"]).sum()) for r in group.runs)
            / len(group.runs)
            / 3600
        )
        rows.append(
            {
                "of": "here",
                "network": group.network,
                "label": group.name,
                "codec": group.codec,
                "ranks": group.ranks,
                "transport": group.transport,
                "dollars": hours * group.ranks * price,
                "top1": mean_and_deviation(group.finals("val_top1"))[0],
            }
        )
    return rows


def item(groups, price):
    rows = cheapest() + (ours(groups, price) if price else [])
    codecs = {row["codec"] for row in rows if row["ranks"] > 1}
    names = {ONE: "one GPU or rank"} if any(row["ranks"] == 1 for row in rows) else {}
    names |= {mark: published.codec_name(codec) for codec, mark in MARKS.items() if codec in codecs}
    if codecs - set(MARKS):
        names[OTHER] = "another codec"
    figure, (axes,), legend, columns = style.panels(1, [*names.values()], width=8.2, height=4.6)
    for row in rows:
        is_ours = row["of"] == "here"
        look = {**HOLLOW, "markerfacecolor": style.EMPHASIS} if is_ours else HOLLOW
        mark = ONE if row["ranks"] == 1 else MARKS.get(row["codec"], OTHER)
        size = 12 if mark == ONE else HOLLOW["markersize"]
        axes.plot(row["dollars"], row["top1"], marker=mark, **{**look, "markersize": size})
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g} $"))
    axes.set_xlabel("price of the whole training")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.grid(**style.GRID)
    dearest = {}
    for row in sorted(rows, key=lambda row: row["dollars"]):
        dearest[row["of"], row["network"]] = row["dollars"], row["top1"], row["network"]
    style.names_beside(axes, list(dearest.values()))
    handles = [style.handle(name, {**HOLLOW, "marker": mark}) for mark, name in names.items()]
    style.below(legend, handles, columns)
    here = f" Filled: the runs here, at {price:g} $ an hour for each rank." if price else ""
    return Item(
        "price_against_accuracy",
        f"Price against accuracy (Fig. 16 of {published.NAME}, left)",
        f"{published.PRICE_RULE}. Computed from the samples per second, accuracy and Amazon's prices that "
        f"{published.NAME} gives.{here}",
        pandas.DataFrame(rows).drop(columns="codec"),
        figure,
    )
