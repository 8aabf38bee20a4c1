"""How good a calibration is: errors of the fit, and of cells that were left out of it."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from costmodel import calibrate
from costmodel.constants import CONSTANTS

OUTLIER = 0.08  # a cell that misses the fit by more is named


@dataclass(frozen=True)
class Tried:
    cell: object
    predicted: float  # samples/s

    @property
    def error(self):
        """Of samples/s, relative."""
        return self.predicted / self.cell.samples_per_s - 1


def tried(model, cells):
    return [Tried(cell, value) for cell, value in zip(cells, model.samples_per_s(cells))] if cells else []


def multi(cells):
    return [cell for cell in cells if cell.ranks > 1]


def mean_error(found):
    return float(np.mean([abs(t.error) for t in found]))


def median_error(found):
    return float(np.median([abs(t.error) for t in found]))


def left_out(cells, chosen):
    """The chosen cells, predicted by a model fitted without them."""
    skipped = {id(cell) for cell in chosen}
    model = calibrate.fit(
        [cell for cell in cells if id(cell) not in skipped], calibrate.alone_cells(cells)
    )
    return tried(model, chosen)


def networks_left_out(cells, constants=CONSTANTS):
    """Each network predicted from the others and its own cell on one rank: a list of Tried by network.

    Only cells whose transport and codec another network has are tried.
    """
    found = {}
    alone = calibrate.alone_cells(cells)
    for network in sorted({cell.network for cell in multi(cells)}):
        others = [cell for cell in cells if cell.network != network]
        seen = {(cell.transport, cell.codec) for cell in multi(others)}
        asked = [c for c in multi(cells) if c.network == network and (c.transport, c.codec) in seen]
        found[network] = tried(calibrate.fit(others, alone, constants=constants), asked)
    return found


def unknown_networks(cells):
    """Each network predicted from the others alone, without any cell of its own: a list of Tried by network."""
    found = {}
    for network in sorted({cell.network for cell in multi(cells)}):
        others = [cell for cell in cells if cell.network != network]
        if not others:
            continue
        asked = [cell for cell in cells if cell.network == network]
        alone = calibrate.with_unknown(asked, calibrate.alone_cells(others))
        found[network] = tried(calibrate.fit(others, alone), asked)
    return found


def plain_and_rest(networks):
    """The cells of networks_left_out: 32 bit over MPI, and the others."""
    found = [t for group in networks.values() for t in group]
    plain = [t for t in found if (t.cell.transport, t.cell.codec) == ("mpi", "none")]
    return plain, [t for t in found if (t.cell.transport, t.cell.codec) != ("mpi", "none")]


def groups_left_out(cells, key):
    """All cells of one key at a time predicted from the others;
    a cell whose key is None stays in every fit.
    """
    groups = defaultdict(list)
    for cell in multi(cells):
        if key(cell) is not None:
            groups[key(cell)].append(cell)
    return {name: left_out(cells, group) for name, group in groups.items()}


def halves_left_out(cells, rounds=3, seed=0):
    """Random halves of the cells, each predicted from the other half."""
    random = np.random.RandomState(seed)
    measured = multi(cells)
    found = []
    for _ in range(rounds):
        order = random.permutation(len(measured))
        half = [measured[i] for i in order[: len(order) // 2]]
        rest = [measured[i] for i in order[len(order) // 2 :]]
        found += left_out(cells, half) + left_out(cells, rest)
    return found


def single_network_codecs(cells):
    """(transport, codec): the network, for those measured on several ranks of one network only."""
    networks = defaultdict(set)
    for cell in multi(cells):
        networks[cell.transport, cell.codec].add(cell.network)
    return {key: found.pop() for key, found in sorted(networks.items()) if len(found) == 1}


def superlinear(cells):
    """Cells faster than as many ranks that each ran as fast as one alone, with the ratio."""
    alone = calibrate.alone_cells(cells)
    found = []
    for cell in multi(cells):
        one = alone[cell.network]
        ratio = cell.samples_per_s / (cell.ranks * one.batch / one.seconds)
        if ratio > 1 and one.is_measured:
            found.append((cell, ratio))
    return found


def slower_with_more(cells):
    """Pairs of cells of one series where more ranks gave fewer samples per second."""
    series = defaultdict(list)
    for cell in multi(cells):
        series[cell.network, cell.transport, cell.codec].append(cell)
    found = []
    for row in series.values():
        row.sort(key=lambda cell: cell.ranks)
        found += [(a, b) for a, b in zip(row, row[1:]) if b.samples_per_s < a.samples_per_s]
    return found
