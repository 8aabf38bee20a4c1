"""Fits the cost model to measured cells: least squares in the logarithm, with priors."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from costmodel import constants as c
from costmodel import equations
from costmodel.errors import CostModelError
from costmodel.networks import study_network


class Alone(NamedTuple):
    """A step of one rank by itself."""

    batch: float
    seconds: float
    is_measured: bool = True


def alone_cells(cells):
    """For each network a step of one rank, the geometric mean of repeats. Where it was not measured, the cell with
    the most samples per second of a rank stands for it, and the fit moves it.
    """
    found = defaultdict(list)
    for cell in cells:
        if cell.ranks == 1 and cell.codec == "none":
            found[cell.network].append(cell)
    alone = {}
    for network, measured in found.items():
        first = measured[0]
        for other in measured[1:]:
            if other.batch != first.batch:
                raise CostModelError(
                    f"{other.where}: {network} on 1 rank has batch {other.batch}, and {first.batch} in "
                    f"{first.where}"
                )
        alone[network] = Alone(
            first.batch, math.exp(sum(math.log(m.seconds) for m in measured) / len(measured))
        )
    for network in sorted({cell.network for cell in cells} - set(alone)):
        nearest = min(
            (cell for cell in cells if cell.network == network), key=lambda cell: cell.seconds / cell.local_batch
        )
        alone[network] = Alone(nearest.local_batch, c.COMPUTING * nearest.seconds, False)
    return alone


def alone_by_flops(asked, alone):
    """A step of one rank, at the largest local batch of `asked`, of a network that was not measured. The rate of its
    FLOPs follows those of the others: it grows with the FLOPs of a layer, by a power that is fitted around a prior.
    """

    def size(network):
        return math.log(network.flops / network.layers)

    networks = [study_network(name) for name in alone]
    sizes = np.array([size(network) for network in networks])
    rates = np.log([n.flops * one.batch / one.seconds for n, one in zip(networks, alone.values())])
    spread = sizes - sizes.mean()
    trust = (c.FLOPS_NOISE / c.FLOPS_POWER_DEVIATION) ** 2
    power = (spread @ rates + trust * c.FLOPS_POWER) / (spread @ spread + trust)
    network = study_network(asked[0].network)
    rate = math.exp(rates.mean() + power * (size(network) - sizes.mean()))
    batch = max(cell.local_batch for cell in asked)
    return Alone(batch, batch * network.flops / rate, False)


def with_unknown(asked, known):
    """`known`, and such a step of each other network of `asked`."""
    by_network = defaultdict(list)
    for cell in asked:
        by_network[cell.network].append(cell)
    unknown = {name: alone_by_flops(cells, known) for name, cells in by_network.items() if name not in known}
    return {**known, **unknown}


class Parameters:
    """The vector that is fitted: logarithms relative to their priors.
    Positions are fixed by the measured cells.
    """

    def __init__(self, cells, alone, constants=c.CONSTANTS):
        self.alone, self.constants = alone, constants
        self.deviations = [constant.deviation for constant in constants]
        self.labels = [constant.name for constant in constants]
        several = [cell for cell in cells if cell.ranks > 1]
        over_mpi = sorted({s.ranks for s in several if s.transport == "mpi"})
        self.rate = {k: self.add(c.RATE, f"rate at {k} ranks") for k in over_mpi}
        over_nccl = sorted({s.network for s in several if s.transport == "nccl"})
        self.latency = {n: self.add(c.LATENCY, f"{n}'s latency over NCCL") for n in over_nccl}
        # Computing: a walk over the local batches of a network, from that of one rank outwards.
        self.batches = {}
        self.several = {}
        for network in sorted({s.network for s in several}):
            self.add_walk(network, {s.local_batch for s in several if s.network == network})
        self.deviations = np.array(self.deviations)

    def add(self, deviation, label):
        self.deviations.append(deviation)
        self.labels.append(label)
        return len(self.deviations) - 1

    def add_walk(self, network, batches):
        start = self.alone[network][0]
        if self.alone[network].is_measured:
            self.several[network] = self.add(c.SEVERAL, f"{network} with several ranks")
        else:
            self.several[network] = self.add(c.ALONE, f"{network} on one rank")
        below = sorted((b for b in batches if b < start), reverse=True)
        above = sorted(b for b in batches if b > start)
        for direction in (below, above):
            last = start
            for batch in direction:
                deviation = c.OCTAVE * math.sqrt(abs(math.log2(batch / last)))
                self.batches[network, batch] = self.add(deviation, f"{network} at a local batch of {batch}")
                last = batch

    def walk(self, network):
        """Local batches (as logarithms, ascending) and a row for each: its factor's logarithm is row @ x."""
        start = self.alone[network][0]
        row = np.zeros(len(self.deviations))
        if network in self.several:
            row[self.several[network]] = 1
        rows = {start: row}
        mine = [b for n, b in self.batches if n == network]
        for direction in (
            sorted((b for b in mine if b < start), reverse=True),
            sorted(b for b in mine if b > start),
        ):
            at = row
            for batch in direction:
                at = at.copy()
                at[self.batches[network, batch]] = 1
                rows[batch] = at
        batches = sorted(rows)
        return np.log(batches), np.array([rows[b] for b in batches])

    def factors(self, cells):
        """Matrices with a row for each cell: the logarithm of a factor is its matrix @ x."""
        found = {name: np.zeros((len(cells), len(self.deviations))) for name in equations.FACTORS}
        walks = {network: self.walk(network) for network in {cell.network for cell in cells}}
        for i, cell in enumerate(cells):
            if cell.ranks in self.rate:
                found["rate"][i, self.rate[cell.ranks]] = 1
            if cell.network in self.latency:
                found["latency"][i, self.latency[cell.network]] = 1
            batches, rows = walks[cell.network]
            weights = [np.interp(math.log(cell.local_batch), batches, one) for one in np.eye(len(batches))]
            found["batch"][i] = weights @ rows
            if cell.ranks == 1 and cell.network in self.several and self.alone[cell.network].is_measured:
                found["batch"][i, self.several[cell.network]] = 0
        return found

    def values(self, x):
        """The constants of the machine; of several vectors, the rows of x, a column of each constant."""
        found = zip(self.constants, np.exp(x[..., : len(self.constants)].T))
        return {constant.name: constant.centre * (factor if x.ndim == 1 else factor[:, None]) for constant, factor in found}


@dataclass
class Model:
    parameters: Parameters
    x: np.ndarray
    effective: float  # number of parameters that the cells determine, not their priors
    cells: list  # it was fitted on
    covariance: np.ndarray  # of x, from the fit's curvature

    @property
    def values(self):
        return self.parameters.values(self.x)

    def parts(self, cells):
        """Seconds of computing, communication and coding of a step, arrays over the cells."""
        features = equations.Features(cells, self.parameters.alone)
        return equations.parts(self.values, features, factors_at(self.parameters.factors(cells), self.x))

    def samples_per_s(self, cells):
        return np.array([cell.batch for cell in cells]) / sum(self.parts(cells))

    def deviation(self, cells):
        """Of the logarithm of samples_per_s, from the uncertainty of x; a cell's own noise comes on top."""
        features = equations.Features(cells, self.parameters.alone)
        matrices = self.parameters.factors(cells)

        def logarithm(x):
            return np.log(sum(equations.parts(self.parameters.values(x), features, factors_at(matrices, x))))

        slopes = derivatives(logarithm, self.x, 1e-5)
        return np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes))


def factors_at(matrices, x):
    return {name: np.exp(x @ matrix.T) for name, matrix in matrices.items()}


def derivatives(function, x, step):
    """Forward differences of a function that takes vectors as rows and returns rows: [i, j] = d function_i / d x_j."""
    steps = step * np.maximum(1, np.abs(x))
    return ((function(x + np.diag(steps)) - function(x)) / steps[:, None]).T


def robust(residual):
    """Its square is quadratic near 0 and grows linearly beyond ROBUST."""
    return np.sign(residual) * c.ROBUST * np.sqrt(2 * (np.sqrt(1 + (residual / c.ROBUST) ** 2) - 1))


def fit(cells, alone=None, constants=c.CONSTANTS):
    """A Model of the cells of one machine."""
    alone = alone or alone_cells(cells)
    parameters = Parameters(cells, alone, constants)
    measured = [cell for cell in cells if cell.ranks > 1]
    start = np.zeros(len(parameters.deviations))
    if not measured:
        return Model(parameters, start, 0.0, cells, np.diag(parameters.deviations**2))
    features = equations.Features(measured, alone)
    matrices = parameters.factors(measured)
    wanted = np.log([cell.seconds for cell in measured])

    def residuals(x):
        seconds = sum(equations.parts(parameters.values(x), features, factors_at(matrices, x)))
        misses = robust((np.log(seconds) - wanted) / c.NOISE)
        return np.concatenate([misses, x / parameters.deviations], axis=-1)

    def slopes(x):
        return derivatives(residuals, x, np.finfo(float).eps ** 0.5)

    bounds = 4 * parameters.deviations
    found = least_squares(
        residuals, start, slopes, bounds=(-bounds, bounds), x_scale=parameters.deviations, max_nfev=200
    )
    data = found.jac[: len(measured)]
    prior = np.diag(1 / parameters.deviations**2)
    covariance = np.linalg.inv(data.T @ data + prior)
    return Model(parameters, found.x, float(np.trace(covariance @ data.T @ data)), cells, covariance)
