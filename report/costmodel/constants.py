"""The constants of the cost model: unit, prior centre, and the prior's deviation of the logarithm.

A prior says what is plausible for the machine class: GPUs on PCIe switches, messages through the host's
memory. The centres are round numbers of our own. Structure and deviations were chosen by cross-validation on
the published cells, the same ones that the documentation's errors are of. Bounds are four deviations on
either side. docs/cost-model.md has the equations.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    name: str
    unit: str
    centre: float
    deviation: float
    meaning: str


CONSTANTS = (
    Constant("launch", "s per layer", 20e-6, 0.7, "fixed part of computing one layer forward and backward"),
    Constant("update", "s per parameter", 1.0e-9, 0.7, "fixed part of a step that grows with the parameters"),
    Constant(
        "straggler",
        "1 per doubling of ranks",
        0.01,
        1.0,
        "computing is slower by this share when ranks wait for the slowest",
    ),
    Constant("mpi_byte", "s per byte", 1.0e-9, 0.5, "a byte on its way through the host's memory, few ranks"),
    Constant(
        "mpi_half", "ranks", 8.0, 0.5, "ranks in one machine at which contention doubles the cost of a byte"
    ),
    Constant("mpi_power", "1", 1.2, 0.3, "how fast contention grows with ranks"),
    Constant(
        "mpi_float32", "1", 1.1, 0.1, "a byte of float32 tensors over a coded byte: the host adds them up"
    ),
    Constant("mpi_tensor", "s per tensor", 50e-6, 1.0, "copies to and from the host, whatever the size"),
    Constant(
        "mpi_message", "s per message", 10e-6, 1.0, "latency of a message between 4 ranks; grows with ranks"
    ),
    Constant("nccl_byte", "s per byte", 0.1e-9, 0.5, "a byte in NCCL's ring"),
    Constant(
        "nccl_latency",
        "1",
        0.7,
        0.3,
        "latency of a tensor over NCCL, which stages nothing, over that of its messages over MPI",
    ),
    Constant("coded_value", "s per value", 0.2e-9, 0.7, "encoding and decoding a value, any codec"),
    Constant("onebit_bucket", "s per bucket", 50e-9, 1.0, "onebit64: the two means of a bucket"),
    Constant("onebit_column", "s per column", 20e-9, 0.7, "onebit_column: the two means of a column"),
    Constant(
        "coded_piece",
        "s per piece",
        20e-6,
        0.7,
        "starting the coding of a stripe (MPI) or of a tensor (NCCL)",
    ),
)
NAMES = tuple(constant.name for constant in CONSTANTS)

# Deviations of the logarithm of what is not a constant of the machine.
RATE = 0.1  # of mpi_byte at one number of ranks, from the curve
LATENCY = 0.8  # of a hop over NCCL between boards, of a network measured there
OCTAVE = 0.25  # of computing from the curve, for each halving of the local batch
ALONE = 0.3  # of a step of one rank that was not measured
COMPUTING = 0.85  # the part of the nearest step of several ranks that stands for it
SEVERAL = 0.03  # of computing with several GPUs of the machine at work, from one alone
# Of a network that was not measured: FLOPs per second grow with the FLOPs of a layer to this power.
FLOPS_POWER, FLOPS_POWER_DEVIATION = 0.15, 0.1
FLOPS_NOISE = 0.3  # of the rates of other networks, from that
NOISE = 0.03  # of a measured cell
ROBUST = 1.5  # in units of NOISE: beyond it a residual counts linearly
