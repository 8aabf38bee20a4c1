"""Price against accuracy (the study's Fig. 16, left). Its right half, speed-up against MB per GFLOP, is the cost model's."""

import pandas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from . import published, style
from .gather import mean_and_deviation
from .item import Item

MARKS = {"none": "o", "qsgd8": "s", "qsgd4": "D", "qsgd2": "v", "onebit_column": "^", "onebit64": "P", "onebit512": "X"}


def cheapest():
    """Of each network and codec whose accuracy is published: dollars of the whole training at the cheapest machine."""
    networks = published.table("networks").set_index("network")
    rows = []
    for network, about in networks.iterrows():
        final = {codec: points[-1][1] for codec, points in published.accuracy(network).items()}
        for codec, top1 in final.items():
            options = []
            for transport in ("mpi", "nccl"):
                for (cell, ranks), speed in published.samples_per_s(network, transport).items():
                    if cell == codec:
                        hours = about.epochs * about.train_samples / speed / 3600
                        options.append((hours * published.dollars_per_hour(ranks), ranks, transport))
            if options:
                dollars, ranks, transport = min(options)
                rows.append(
                    {
                        "of": "study (K80)",
                        "network": network,
                        "label": published.codec_name(codec),
                        "codec": codec,
                        "ranks": ranks,
                        "transport": transport,
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
    figure, (axes,), legend, columns = style.panels(1, [published.codec_name(c) for c in MARKS], width=7.4, height=4.6)
    for row in rows:
        is_ours = row["of"] == "here"
        axes.plot(
            row["dollars"],
            row["top1"],
            MARKS.get(row["codec"], "*"),
            markersize=8,
            color="#0072B2" if is_ours else "white",
            markeredgecolor="#0072B2" if is_ours else "black",
            markeredgewidth=1.4,
        )
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        right = max(mine, key=lambda row: row["dollars"])
        axes.annotate(
            network, (right["dollars"], right["top1"]), xytext=(9, 0), textcoords="offset points", va="center"
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g} $"))
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.12)
    axes.set_xlabel("price of the whole training")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.grid(**style.GRID)
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=mark,
            markerfacecolor="white",
            markeredgecolor="black",
            markersize=8,
            label=published.codec_name(codec),
        )
        for codec, mark in MARKS.items()
        if any(r["codec"] == codec for r in rows)
    ]
    style.below(legend, handles, columns)
    here = f" Filled: the runs here, at {price:g} $ an hour for each rank." if price else ""
    return Item(
        "price_against_accuracy",
        "Price against accuracy (Fig. 16 of the study, left)",
        "Each network and codec at its cheapest configuration, computed from the study's published samples per second, "
        f"accuracy and Amazon's prices.{here}",
        pandas.DataFrame(rows).drop(columns="codec"),
        figure,
    )
