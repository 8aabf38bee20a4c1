"""The relative error of coding by epoch, of runs with metrics.codec_error."""

import dataclasses

from . import curves
from .item import Item

METRIC = "codec_error"


def with_error(groups):
    """Groups of the runs whose codec lost something."""
    kept = [[run for run in g.runs if METRIC in run.epochs and run.epochs[METRIC].max() > 0] for g in groups]
    return [dataclasses.replace(group, runs=runs) for group, runs in zip(groups, kept) if runs]


def item(groups, network):
    """`groups`: of one network. None where no run has it."""
    groups = with_error(groups)
    if not groups:
        return None
    band = " The band is one standard deviation over seeds." if any(len(g.runs) > 1 for g in groups) else ""
    return Item(
        f"codec_error_by_epoch_{network}",
        f"{network}: error of coding by epoch",
        "What coding lost in round 1, as a norm over that of the gradients (codec_error of metrics.jsonl): mean over "
        f"the tensors whose coding loses something.{band}",
        curves.data(groups, METRIC, "epoch"),
        curves.draw(groups, METRIC, "epoch", None),
    )
