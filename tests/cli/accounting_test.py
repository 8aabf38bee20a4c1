"""Where an epoch's time went: the parts are the whole, by lpsgd's clock and by ours."""

import json
import os
import subprocess
import sys
import time
import unittest

from harness import LPSGD, MPIRUN, SOURCE, Case

PARTS = ["data", "forward", "backward", "exposed_comm", "update", "eval", "other"]
BESIDE = ["encode", "transfer", "decode"]  # the communication thread's

CONFIG = """network: {source}/configs/networks/resnet20.yaml
data: {{dataset: noise, image: [32, 32, 3], classes: 10, train_samples: 768, test_samples: 64}}
train: {{epochs: 3, batch_size: 64, threads: 1}}
schedule: {{lr: 0.01}}
exchange: {{codec: {{kind: qsgd, bits: 4, bucket: 512}}}}
checkpoint: {{every_epochs: 0}}
"""


# Runs a program that is stopped half of the time.
HALTING = """import signal, subprocess, sys, time
process = subprocess.Popen(sys.argv[1:], close_fds=False)  # mpirun uses a descriptor that Python does not know
while process.poll() is None:
    for what in (signal.SIGSTOP, signal.SIGCONT):
        process.send_signal(what)
        time.sleep(0.02)
sys.exit(process.returncode)
"""


class Accounting(Case):
    def timed(self, *arguments, second=()):
        """The records of three epochs, and the times at which the epochs' lines came; `second` starts the second rank."""
        config = self.write("resnet20.yaml", CONFIG.format(source=SOURCE))
        rank = [LPSGD, "train", config, "--out", self.path("out"), *arguments]
        command = [MPIRUN, "-n", "1", *rank, ":", "-n", "1", *second, *rank]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.addCleanup(process.stdout.close)
        ends = [time.monotonic() for line in process.stdout if line.startswith("epoch ")]
        self.assertEqual(process.wait(), 0)
        return self.metrics(self.path("out")), started, ends

    def check(self, records, started, ends):
        self.assertEqual((len(records), len(ends)), (3, 3))
        for r in records:
            s, minimum, maximum = r["seconds"], r["seconds_min"], r["seconds_max"]
            where = json.dumps(r)
            self.assertAlmostEqual(sum(s[p] for p in PARTS), s["total"], delta=0.02 * s["total"], msg=where)
            for p in PARTS + BESIDE:
                self.assertGreaterEqual(s[p], 0, where)
            for p in PARTS[:-1] + BESIDE + ["total"]:
                self.assertLessEqual(minimum[p], s[p] * (1 + 1e-12), where)
                self.assertGreaterEqual(maximum[p], s[p] * (1 - 1e-12), where)
            # Little time is outside the parts: computing dominates the run.
            self.assertLess(s["other"], 0.05 * s["total"], where)
            self.assertGreater(s["forward"] + s["backward"], 0.3 * s["total"], where)
            self.assertLessEqual(r["communication_s"], s["exposed_comm"], where)
            self.assertGreaterEqual(r["communication_s"], 0, where)
            self.assertAlmostEqual(r["communication_s"] + r["computation_s"] + s["eval"] + s["other"], s["total"],
                                   delta=1e-9 * s["total"], msg=where)
        # Our own clock: from one epoch's line to the next is that epoch (and writing its record).
        for r, begin, end in zip(records[1:], ends, ends[1:]):
            self.assertAlmostEqual(r["seconds"]["total"], end - begin, delta=0.1 + 0.02 * (end - begin))
        self.assertLess(sum(r["seconds"]["total"] for r in records), ends[-1] - started)

    def test_with_overlap(self):
        self.check(*self.timed())

    def test_without_overlap_the_exchange_is_all_exposed(self):
        records, started, ends = self.timed("--set", "exchange.overlap=false")
        self.check(records, started, ends)
        for r in records:
            s = r["seconds"]
            self.assertGreaterEqual(s["exposed_comm"], s["encode"] + s["decode"] + s["transfer"] - 0.01 * s["total"])
            # Waiting for coding counts as computation, as in the paper.
            self.assertLessEqual(r["communication_s"], s["exposed_comm"] - 0.9 * (s["encode"] + s["decode"]))

    def test_a_straggler_is_visible(self):
        records, _, _ = self.timed(second=[sys.executable, self.write("halting.py", HALTING)])
        for r in records:
            minimum, maximum = r["seconds_min"], r["seconds_max"]
            where = json.dumps(r)
            slow, fast = (sum(of[p] for p in ("forward", "backward")) for of in (maximum, minimum))
            self.assertGreater(slow, 1.3 * fast, where)
            # Both ranks end at the same time: one computes longer, the other waits for it.
            self.assertGreater(maximum["exposed_comm"] - minimum["exposed_comm"], 0.5 * (slow - fast), where)
            self.assertLess(maximum["total"], 1.05 * minimum["total"], where)


if __name__ == "__main__":
    unittest.main(verbosity=2)
