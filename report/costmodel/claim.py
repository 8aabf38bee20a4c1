"""Dettmers' claim (ICLR 2016), recomputed: on 96 GPUs 50 times faster with 8 bit, 23 times with 32 bit.

His links and his network's computing time are not given with the claim. So the link is what is solved for:
the bandwidth at which the model gives 23 with 32 bit. With that link, the model's own speed-up with 8 bit is
compared with his 50. The network is AlexNet, with 128 samples a GPU, and one GPU's computing of as many from
the calibration.
"""

import program

from costmodel import pipeline, scaling
from costmodel.cells import Cell

RANKS, FLOAT32, EIGHT_BIT = 96, 23.0, 50.0
CODECS = {"none": "{kind: none}", "dynamic8": "{kind: dynamic8}"}
SAMPLES = 128  # a GPU
LATENCY = 5e-6
CODING = 0.15e-9  # s per value, encoding or decoding on a GPU
COLUMNS = ("overlap", "gbit_per_s", "codec", "ranks", "speedup", "claimed")
RANK_LIST = (2, 4, 8, 16, 32, 64, 96, 128)


def show(codec):
    """`lpsgd show` of AlexNet with a codec."""
    return program.show(
        f"{program.ROOT}/configs/alexnet_noise.yaml", (f"exchange.codec={codec}", "exchange.rules=[]")
    )


class Case:
    def __init__(self, computing, overlap):
        self.computing, self.overlap = computing, overlap
        self.shown = {name: show(codec) for name, codec in CODECS.items()}

    def speedup(self, codec, ranks, bandwidth):
        """Samples per second over one GPU's."""
        host = pipeline.Host(CODING, CODING, 0.0, 0.0)
        link = pipeline.Link(bandwidth, LATENCY)
        step = scaling.predict(
            self.shown[codec], codec, ranks, SAMPLES, self.computing, link, host, self.overlap
        )
        return ranks * self.computed / step.seconds

    @property
    def computed(self):
        return sum(self.computing.at(SAMPLES)) + self.computing.update

    def bandwidth(self):
        """At which 96 ranks give 23 with 32 bit: bisection, as more bandwidth is never slower."""
        low, high = 1e6, 1e14
        for _ in range(60):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.speedup("none", RANKS, middle) < FLOAT32 else (low, middle)
        return high


def one_gpu(model):
    """Seconds of one GPU's step at SAMPLES: the fitted curve and the fitted factor of that local batch."""
    return float(model.parts([Cell("", "alexnet", "mpi", "none", 1, SAMPLES, None)])[0][0])


def rows(model):
    if "alexnet" not in model.parameters.alone:
        return []
    computing = scaling.from_seconds(one_gpu(model), SAMPLES)
    found = []
    for overlap in (True, False):
        case = Case(computing, overlap)
        bandwidth = case.bandwidth()
        for codec in CODECS:
            for ranks in RANK_LIST:
                claimed = {"none": FLOAT32}.get(codec, EIGHT_BIT) if ranks == RANKS else ""
                speedup = case.speedup(codec, ranks, bandwidth)
                found.append(("yes" if overlap else "no", bandwidth / 1e9, codec, ranks, speedup, claimed))
    return found


def text(found):
    lines = []
    for overlap, gbit, codec, ranks, speedup, claimed in found:
        if ranks == RANKS and codec != "none":
            how = "with" if overlap == "yes" else "without"
            lines.append(
                f"Dettmers, 96 GPUs, {how} overlap: a link of {gbit:.1f} Gbit/s gives 23x with 32 bit; "
                f"then {codec} gives "
                f"{speedup:.0f}x, he claims 50x ({100 * (speedup / EIGHT_BIT - 1):+.0f} %)"
            )
    return "\n".join(lines)
