"""How much the choice of priors matters: each centre is moved, and everything is fitted again."""

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodel import calibrate
from costmodel import validation as v
from costmodel.constants import CONSTANTS
from costmodel.networks import CODECS

STEP = math.log(2)  # a centre is doubled and halved, but moved by two of its deviations at most


@dataclass(frozen=True)
class Moved:
    constant: str
    factor: float  # of the centre
    plain: float  # median error of a network left out, 32 bit over MPI
    rest: float  # its other cells; nan if there is none
    changes: np.ndarray  # of the logarithm of samples/s, of the cells that were not measured


def unmeasured(cells):
    """Every codec, at the ranks and batches of a network's measured cells;
    NCCL up to the most ranks it was measured at.
    """
    measured = {(cell.network, cell.transport, cell.codec, cell.ranks) for cell in cells}
    most = {}
    for cell in v.multi(cells):
        most[cell.transport] = max(most.get(cell.transport, 0), cell.ranks)
    batches = {(cell.network, cell.ranks): cell for cell in v.multi(cells)}
    asked = []
    for (network, ranks), cell in sorted(batches.items()):
        for transport, codec in ((t, codec) for t in sorted(most) for codec in CODECS):
            if ranks <= most[transport] and (network, transport, codec, ranks) not in measured:
                asked.append(replace(cell, transport=transport, codec=codec))
    return asked


def moved(cells):
    """A Moved for each constant and direction, and the cells that its changes are of."""
    asked = unmeasured(cells)
    alone = calibrate.alone_cells(cells)
    usual = np.log(calibrate.fit(cells, alone).samples_per_s(asked))
    found = []
    for i, constant in enumerate(CONSTANTS):
        for sign in (-1, 1):
            factor = math.exp(sign * min(STEP, 2 * constant.deviation))
            constants = (
                *CONSTANTS[:i],
                replace(constant, centre=constant.centre * factor),
                *CONSTANTS[i + 1 :],
            )
            plain, rest = v.plain_and_rest(v.networks_left_out(cells, constants))
            changes = np.log(calibrate.fit(cells, alone, constants=constants).samples_per_s(asked)) - usual
            errors = [v.median_error(group) if group else math.nan for group in (plain, rest)]
            found.append(Moved(constant.name, factor, *errors, changes))
    return found, asked
