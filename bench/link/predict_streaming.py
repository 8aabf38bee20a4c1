#!/usr/bin/python3
"""Checks the cost model's local steps with fragments and a delay: predicted and measured waiting for the exchange.

    bench/link/predict_streaming.py --out FOLDER [--lpsgd PROGRAM] [--rounds 3]

Two ranks, which are threads of one process, train configs/quickstart.yaml over an emulated link of 5 Mbit/s. Of each
way to synchronise it prints how long a step waits for its exchange: as the run says, and as the model says from the
computing of the same run. So other work on the machine counts in both. A number is the mean of the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys

from jobs import ROOT

sys.path.insert(0, os.path.join(ROOT, "report"))
import program  # noqa: E402
from costmodel import fragments, links, local_steps, pipeline, plan, run_folder, scaling  # noqa: E402
from errors import UserError  # noqa: E402

LINK = "{bandwidth: 5Mbit, latency: 1ms, burst: 65536B}"
CODECS = {"none": "none", "QSGD 8 bit": "{kind: qsgd, bits: 8}"}
WAYS = [(12, 1, 0), (12, 2, 0), (12, 4, 0), (12, 1, 3), (12, 1, 11), (12, 2, 2), (12, 2, 5), (12, 4, 1), (12, 4, 2)]
ROWS = [("none", way) for way in WAYS] + [("QSGD 8 bit", way) for way in ((12, 1, 0), (12, 4, 0), (12, 4, 2))]
BATCH = 128
STEPS = 96  # of each of two epochs; the second counts


def train(options, name, codec, way):
    folder = os.path.join(options.out, name)
    if not os.path.exists(os.path.join(folder, "summary.json")):
        h, count, delay = way
        sync = f"{{kind: local_sgd, steps: {h}, fragments: {count}, delay: {delay}, distance: false}}"
        sets = (
            f"train.batch_size={BATCH}", "train.threads=1", "train.device=cpu", "train.epochs=2",
            "exchange.transport=threads", "exchange.ranks=2", f"data.train_samples={BATCH * STEPS}",
            "data.test_samples=2", "checkpoint.every_epochs=0", "checkpoint.every_minutes=0", f"exchange.codec={codec}", f"exchange.link={LINK}", f"sync={sync}",
        )  # fmt: skip
        words = [word for one in sets for word in ("--set", one)]
        config = os.path.join(ROOT, "configs", "quickstart.yaml")
        command = [options.lpsgd, "train", config, "--out", folder, "--progress", "none", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def compared(folder):
    """Seconds in which a step waited for its exchange: predicted, measured; and those of its computing."""
    run = run_folder.read(folder)
    shown = program.show(os.path.join(folder, "config.yaml"))
    computing = scaling.from_runs([run])
    host = pipeline.Host(*scaling.measured_host(run, shown["parameters"]), share=scaling.CODING_SHARE)
    link = links.emulated(run.config["exchange"], folder)
    given = (shown, scaling.codec_of(shown), 2, run.local_batch, computing, link, host, True, plan.PACK_BYTES)
    step = local_steps.mean_step(*given, run.exchanges, None, fragments.streaming_of(run.config))
    return step.exposed, run.seconds["exposed_comm"], step.computation


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="folder of the runs; those that are there are not run again")
    parser.add_argument("--lpsgd", default=os.path.join(ROOT, "build/release/lpsgd"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["LPSGD_PROGRAM"] = options.lpsgd
    found = {row: [] for row in ROWS}
    try:
        for number in range(options.rounds):
            for codec, way in ROWS:
                name = "-".join(map(str, (codec.split()[0].lower(), *way, number)))
                found[codec, way].append(compared(train(options, name, CODECS[codec], way)))
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        print(f"predict_streaming: {error}", file=sys.stderr)
        return 1
    print("| codec | H | fragments | delay | computing ms | predicted ms | measured ms | predicted/measured step |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for codec, way in ROWS:
        predicted, measured, computing = (statistics.mean(column) for column in zip(*found[codec, way]))
        ratio = (predicted + computing) / (measured + computing)
        errors.append(abs(ratio - 1))
        cells = (codec, *way, *(f"{1000 * s:.1f}" for s in (computing, predicted, measured)), f"{ratio:.3f}")
        print("| " + " | ".join(map(str, cells)) + " |")
    print(f"steps: median error {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
