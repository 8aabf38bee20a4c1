"""Seconds of a step, from the constants: computing + coding + communication.
docs/cost-model.md explains the terms.
"""

import numpy as np

from costmodel.networks import stripes, study_network

# Regularised factors, looked up per cell: see Parameters in calibrate.py.
FACTORS = ("rate", "batch", "latency")


def coded_pieces(coded, cell):
    """A reduce-broadcast codes stripe by stripe, an all-reduce whole tensors."""
    return len(coded.coded_tensors) if cell.transport == "nccl" else stripes(coded.coded_tensors, cell.ranks)


class Features:
    """What the equations need of each cell, as arrays."""

    def __init__(self, cells, alone, network_of=study_network):
        """`alone`: for each network the local batch and the seconds of one rank by itself."""
        networks = [network_of(cell.network) for cell in cells]
        coded = [network.coded(cell.codec) for network, cell in zip(networks, cells)]

        def column(values):
            return np.array(list(values), float)

        self.cells = cells
        self.ranks = column(cell.ranks for cell in cells)
        self.batch = column(cell.batch for cell in cells)
        self.local_batch = column(cell.local_batch for cell in cells)
        self.alone_batch = column(alone[cell.network][0] for cell in cells)
        self.alone_seconds = column(alone[cell.network][1] for cell in cells)
        self.layers = column(network.layers for network in networks)
        self.parameters = column(network.parameters for network in networks)
        self.tensors = column(len(network.tensors) for network in networks)
        self.stripes = column(
            stripes([t.elements for t in network.tensors], cell.ranks)
            for network, cell in zip(networks, cells)
        )
        self.wire_bytes = column(c.wire_bytes for c in coded)
        self.coded_values = column(c.coded_elements for c in coded)
        self.coded_pieces = column(coded_pieces(c, cell) for c, cell in zip(coded, cells))
        self.buckets = column(c.buckets for c in coded)
        names = np.array([cell.codec for cell in cells])
        self.is_float32 = names == "none"
        self.is_onebit64 = names == "onebit64"
        self.is_column = names == "onebit_column"
        self.is_nccl = np.array([cell.transport == "nccl" for cell in cells])
        self.is_alone = self.ranks == 1


def computing(v, f, factor):
    """Forward, backward and update at the cell's local batch."""
    fixed = np.minimum(v["launch"] * f.layers + v["update"] * f.parameters, 0.9 * f.alone_seconds)
    curve = fixed + (f.alone_seconds - fixed) * f.local_batch / f.alone_batch
    return curve * factor * (1 + v["straggler"] * np.log2(f.ranks))


def communication(v, f, rate, latency):
    """Bytes and messages of a step. A rank sends 2(K-1)/K of the encoded bytes.

    Latency is that of a message over MPI in both: over NCCL a share of it, as nothing is staged, and linear
    in K, as in a ring; `latency` is the network's own factor of a hop in rings of more than 2 ranks, which
    leave the board (a K80 has two GPUs).
    """
    share = 2 * (f.ranks - 1) / f.ranks
    byte = v["mpi_byte"] * (1 + (f.ranks / v["mpi_half"]) ** v["mpi_power"]) * rate
    byte = byte * np.where(f.is_float32, v["mpi_float32"], 1)
    messages = share * f.stripes
    mpi = (
        share * f.wire_bytes * byte + f.tensors * v["mpi_tensor"] + messages * v["mpi_message"] * f.ranks / 4
    )
    hops = 2 * (f.ranks - 1)
    nccl = share * f.wire_bytes * v["nccl_byte"]
    hops = hops * np.where(f.ranks > 2, latency, 1)
    nccl = nccl + f.tensors * v["nccl_latency"] * (v["mpi_tensor"] + hops * v["mpi_message"])
    return np.where(f.is_alone, 0, np.where(f.is_nccl, nccl, mpi))


def coding(v, f):
    """A rank encodes its gradient and the mean of its stripe, and decodes as many values."""
    work = 1 + 1 / f.ranks
    bucket = np.where(f.is_onebit64, v["onebit_bucket"], 0) + np.where(f.is_column, v["onebit_column"], 0)
    seconds = (
        work * (f.coded_values * v["coded_value"] + f.buckets * bucket) + f.coded_pieces * v["coded_piece"]
    )
    return np.where(f.is_alone, 0, seconds)


def parts(v, f, factors):
    """Seconds of computing, communication and coding."""
    moving = communication(v, f, factors["rate"], factors["latency"])
    return computing(v, f, factors["batch"]), moving, coding(v, f)
