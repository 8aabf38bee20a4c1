"""The study's own numbers: report/published/*.csv, whose first line names their source."""

import os

import pandas

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "published")


def table(name):
    return pandas.read_csv(os.path.join(FOLDER, name + ".csv"), comment="#")


def samples_per_s(network, transport):
    """{(codec, ranks): samples/s} on EC2."""
    cells = table("samples_per_s")
    cells = cells[(cells.network == network) & (cells.transport == transport)]
    return {(row.codec, int(row.ranks)): float(row.samples_per_s) for row in cells.itertuples()}


def accuracy(network):
    """{codec: [(epoch, top1)]}"""
    rows = table("accuracy")
    out = {}
    for row in rows[rows.network == network].itertuples():
        out.setdefault(row.codec, []).append((int(row.epoch), float(row.top1)))
    return out


def dollars_per_hour(ranks):
    """The cheapest of Amazon's machines with so many GPUs."""
    machines = table("machines")
    fit = machines[(machines.machine == "ec2_k80") & (machines.gpus >= ranks)]
    return float(fit.dollars_per_hour.min()) if len(fit) else None


CODECS = {"none": "32 bit", "onebit_column": "1bitSGD", "onebit64": "1bitSGD* 64", "onebit512": "1bitSGD* 512"}


def codec_name(codec):
    """As the study writes it."""
    if codec in CODECS:
        return CODECS[codec]
    return f"QSGD {codec[4:]} bit" if codec.startswith("qsgd") and codec[4:].isdigit() else codec
