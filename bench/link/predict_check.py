#!/usr/bin/python3
"""Checks the cost model on this machine: lpsgd over emulated links, predicted and measured.

    bench/link/predict_check.py --out FOLDER [--networks resnet20,alexnet,vgg19] [--ranks 2,4] [--rounds 3]

A cell is a network, a number of ranks, a link and a codec. All cells are measured in turns, three times; a
cell's step is the median. Computing is measured at that number of ranks on this host, without a link. A
quarter of the cells calibrates four numbers: seconds of a message, of a byte, a factor of coding, and the
share of coding that computing waits for. The others are predicted. Every measurement has a file in FOLDER, so
that the check can be stopped and continued.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys

import numpy as np
from scipy.optimize import least_squares

from hosts import BURST
from jobs import CODECS, JobError, ROOT, Row, train

sys.path.insert(0, os.path.join(ROOT, "report"))
import program  # noqa: E402
from costmodel import pipeline, scaling  # noqa: E402
from errors import UserError  # noqa: E402

CONFIGS = {"resnet20": "resnet20_cifar10", "alexnet": "alexnet_noise", "vgg19": "vgg19_noise"}
BATCH = {"resnet20": 16, "alexnet": 4, "vgg19": 1}  # samples a rank
STEPS = {"resnet20": 40, "alexnet": 3, "vgg19": 2}  # of each of two epochs; the second counts
SLOW_STEPS = {"100mbit": {"alexnet": 2, "vgg19": 1}}  # where a step of full precision takes half a minute or more
BITS = {"100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10}
LATENCY = 30e-6  # jobs.py's
COMPUTING = ("data", "forward", "backward", "update", "other")
# Calibrated: centre and deviation of the logarithm.
CONSTANTS = {
    "message": (20e-6, 1.0),
    "copy": (0.2e-9, 1.0),
    "coding": (1.0, 0.7),
    "share": (scaling.CODING_SHARE, 0.7),
}
SEED = 1


class Measurements:
    """Each run once, kept in a file."""

    def __init__(self, folder, lpsgd):
        self.folder, self.lpsgd = folder, lpsgd
        os.makedirs(folder, exist_ok=True)

    def get(self, row, round_number):
        path = os.path.join(self.folder, f"{row.key}-{round_number}.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        print(f"predict_check: round {round_number + 1}: {row.key}", file=sys.stderr)
        found = train(row, None, self.lpsgd)
        steps = row.steps
        kept = {"step_s": found["step_s"], "seconds": {k: v / steps for k, v in found["seconds"].items()}}
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(kept, file)
        os.replace(path + ".new", path)
        return kept


def rows_of(options):
    """Rows with a link, and for each network and number of ranks one without."""
    linked, local = [], {}
    for network, ranks in itertools.product(options.networks, options.ranks):
        common = {"network": network, "batch": BATCH[network], "ranks": ranks}
        steps = options.steps or STEPS[network]
        local[network, ranks] = Row(**common, steps=steps, over="local", codec="none")
        linked += [
            Row(**common, steps=options.steps or SLOW_STEPS.get(rate, {}).get(network, steps), rate=rate,
                over="emulated", codec=codec)
            for rate in options.rates
            for codec in options.codecs
        ]
    return linked, local


def measure(options):
    """Seconds of a step for each row with a link, by round;
    computing for each network and number of ranks.
    """
    results = Measurements(options.out, options.lpsgd)
    linked, local = rows_of(options)
    steps, computing = {row: [] for row in linked}, {key: [] for key in local}
    for i in range(options.rounds):
        for key, row in local.items():
            found = results.get(row, i)
            computing[key].append({**found["seconds"], "step": found["step_s"]})
        for row in linked:
            steps[row].append(results.get(row, i)["step_s"])
    medians = {
        key: {part: statistics.median(s[part] for s in found) for part in (*COMPUTING, "step")}
        for key, found in computing.items()
    }
    return steps, medians


class Predictor:
    def __init__(self, computing):
        self.computing = computing

    def step(self, row, x):
        """As `lpsgd predict` does: what ranks wait for each other without a link, they wait with one, too."""
        seconds = self.computing[row.network, row.ranks]
        rest = seconds["data"] + seconds["other"]
        own = scaling.Computing(
            ((row.batch, seconds["forward"], seconds["backward"], rest),), seconds["update"], ""
        )
        without = self.modelled(row, "none", pipeline.NO_LINK, own, x)
        own = scaling.with_waiting(own, [(seconds["step"], without)])
        return self.modelled(
            row, row.codec, pipeline.Link(BITS[row.rate], LATENCY, BURST[row.rate]), own, x
        ).seconds

    def modelled(self, row, codec, link, computing, x):
        message, copy, coding, share = (centre * math.exp(v) for (centre, _), v in zip(CONSTANTS.values(), x))
        shown = self.shown(row.network, codec)
        encode, decode = scaling.bench(scaling.codec_of(shown))
        host = pipeline.Host(encode * coding, decode * coding, message, copy, min(share, 1.0))
        return scaling.predict(shown, codec, row.ranks, row.batch, computing, link, host)

    @staticmethod
    def shown(network, codec):
        config = os.path.join(ROOT, "configs", CONFIGS[network] + ".yaml")
        return program.show(
            config, (f"exchange.codec={CODECS[codec]}", "exchange.rules=[]", "exchange.overlap=true")
        )


def calibrate(predictor, measured):
    deviations = np.array([deviation for _, deviation in CONSTANTS.values()])

    def residuals(x):
        errors = [math.log(predictor.step(row, x) / step) / 0.05 for row, step in measured.items()]
        return np.concatenate([errors, x / deviations])

    return least_squares(residuals, np.zeros(4), bounds=(-4 * deviations, 4 * deviations), loss="soft_l1").x


def split(rows):
    """A quarter of the rows, at least two, for calibration; the others."""
    order = np.random.RandomState(SEED).permutation(len(rows))
    count = max(2, len(rows) // 4)
    chosen = {rows[i] for i in order[:count]}
    return [row for row in rows if row in chosen], [row for row in rows if row not in chosen]


def report(steps, predictor):
    medians = {row: statistics.median(found) for row, found in steps.items()}
    known, asked = split(list(medians))
    x = calibrate(predictor, {row: medians[row] for row in known})
    print(
        "calibrated: "
        + ", ".join(
            f"{name} {centre * math.exp(v):.3g}" for (name, (centre, _)), v in zip(CONSTANTS.items(), x)
        )
    )
    print("| network | ranks | link | codec | measured s | spread of repeats | predicted s | error |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for row, found in steps.items():
        predicted = predictor.step(row, x)
        error = predicted / medians[row] - 1
        spread = (max(found) - min(found)) / medians[row]
        if row in asked:
            errors.append(abs(error))
        print(
            f"| {row.network} | {row.ranks} | {row.rate} | {row.codec} | {medians[row]:.4f} | "
            f"{100 * spread:.0f} % | {predicted:.4f} | "
            f"{100 * error:+.1f} %{'' if row in asked else ', calibrates'} |"
        )
    errors.sort()
    spread = statistics.median((max(f) - min(f)) / statistics.median(f) for f in steps.values())
    print(
        f"{len(known)} cells calibrate. The other {len(errors)}: median error "
        f"{100 * statistics.median(errors):.1f} %, nine tenths within "
        f"{100 * errors[max(0, math.ceil(0.9 * len(errors)) - 1)]:.1f} %; median spread of repeats "
        f"{100 * spread:.0f} %"
    )


def names(known, kind=str):
    def parse(text):
        found = [word.strip() for word in text.split(",") if word.strip()]
        wrong = [word for word in found if word not in known]
        if wrong or not found:
            raise argparse.ArgumentTypeError(
                f"{', '.join(wrong) or 'nothing'}: not known; there are {', '.join(known)}"
            )
        return [kind(word) for word in found]

    return parse


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="folder of the measurements")
    parser.add_argument("--lpsgd", default=os.path.join(ROOT, "build/release/lpsgd"))
    parser.add_argument("--networks", type=names(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--ranks", type=names([str(k) for k in range(2, 17)], int), default=[2, 4])
    parser.add_argument("--rates", type=names(BITS), default=list(BITS))
    parser.add_argument("--codecs", type=names(CODECS), default=["none", "qsgd8", "qsgd4", "onebit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each of the two epochs of a run; the second counts")
    options = parser.parse_args()
    os.environ["LPSGD_PROGRAM"] = options.lpsgd
    if len(rows_of(options)[0]) < 3 or options.rounds < 1:
        parser.error("fewer than three cells, or no round")
    try:
        steps, computing = measure(options)
        report(steps, Predictor(computing))
    except (JobError, UserError, OSError) as error:
        print(f"predict_check: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
