"""The numbers that the EDBT 2018 study published: report/published/*.csv, whose first line names their
source."""

import csv
import os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "published")
NAME = "the EDBT 2018 study"
K80 = "study (K80)"  # of its rows beside the runs'
SOURCE = (
    "Grubic, Tam, Alistarh, Zhang: Synchronous multi-GPU deep learning with low-precision communication: "
    "an experimental study, EDBT 2018"
)


def table(name):
    """Rows as dictionaries of text."""
    with open(os.path.join(FOLDER, name + ".csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def samples_per_s(network, transport):
    """{(codec, ranks): samples/s} on EC2."""
    return {
        (row["codec"], int(row["ranks"])): float(row["samples_per_s"])
        for row in table("samples_per_s")
        if (row["network"], row["transport"]) == (network, transport)
    }


def accuracy(network):
    """{codec: [(epoch, top1)]}"""
    out = {}
    for row in table("accuracy"):
        if row["network"] == network:
            out.setdefault(row["codec"], []).append((int(row["epoch"]), float(row["top1"])))
    return out


def final_accuracy(network):
    """{codec: top1 after the last epoch}"""
    return {codec: points[-1][1] for codec, points in accuracy(network).items()}


def data_sets():
    """{network: data set}"""
    return {row["network"]: row["data"] for row in table("networks")}


def train_samples():
    """{data set: its training samples}"""
    return {row["data"]: int(row["train_samples"]) for row in table("networks")}


def samples_of_training(network):
    """Of all epochs."""
    return next(
        int(r["epochs"]) * int(r["train_samples"]) for r in table("networks") if r["network"] == network
    )


def cheapest_machine(ranks):
    """(dollars per hour, GPUs) of the cheapest of Amazon's machines with so many GPUs; None where there is
    none."""
    fit = [row for row in table("machines") if row["machine"] == "ec2_k80" and int(row["gpus"]) >= ranks]
    return min(((float(row["dollars_per_hour"]), int(row["gpus"])) for row in fit), default=None)


def training_price(network, ranks, samples_per_s):
    """(dollars, hours, GPUs rented) of a whole training on the cheapest machine; None where no machine has as
    many GPUs."""
    machine = cheapest_machine(ranks)
    if machine is None:
        return None
    dollars_per_hour, rented = machine
    hours = samples_of_training(network) / samples_per_s / 3600
    return hours * dollars_per_hour, hours, rented


def price_choices(codec, ranks):
    """Of which numbers of GPUs a price is the cheapest. Every codec has the same choice, 2 and more, over
    MPI: the study's low precision over NCCL was simulated. One GPU sends nothing, so that no codec applies to
    it: it is a mark of its own, and none of the choices."""
    several = [k for k in ranks if k > 1]
    return [[k for k in ranks if k == 1], several] if codec == "none" else [several]


PRICE_RULE = (
    "Each network and codec at the cheapest number of GPUs from 2 up, over MPI; one GPU, which sends "
    "nothing, is a mark of its own"
)
ONE_GPU = "32 bit on one GPU"
CODECS = {
    "none": "32 bit",
    "onebit_column": "1bitSGD",
    "onebit64": "1bitSGD* 64",
    "onebit512": "1bitSGD* 512",
}


def codec_name(codec):
    """As the study writes it."""
    if codec in CODECS:
        return CODECS[codec]
    return f"QSGD {codec[4:]} bit" if codec.startswith("qsgd") and codec[4:].isdigit() else codec
