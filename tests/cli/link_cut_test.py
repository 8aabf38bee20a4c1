"""A cable that is cut between two hosts (network namespaces): both sides end by themselves; one that is mended in time changes nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import numpy as np

from harness import LPSGD, SOURCE, model, run
from jobs import Job, Stopping

sys.path.insert(0, os.path.join(SOURCE, "bench", "link"))
from hosts import Hosts, sh  # noqa: E402

SLACK = 10
LONG = ("--set", "data.train_samples=24000", "--set", "train.epochs=1000", "--set", "checkpoint.every_epochs=0",
        "--set", "exchange.link.latency=2ms")


# In place of ssh. What it starts on a host outlives it, as what sshd has started outlives an ssh whose network is gone.
ENTER = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
host=$(printf '%s' "$1" | sed 's/.*\\./lpsgd/')
shift
setsid ip netns exec "$host" sh -c "$*" <&0 &
wait
"""


def open_hosts():
    """Two hosts. Another test or measurement may hold the names for a while."""
    for attempt in range(60):
        try:
            return Hosts(2, "unshaped").__enter__()
        except SystemExit as busy:
            reason = str(busy)
        except (OSError, subprocess.CalledProcessError) as e:
            raise unittest.SkipTest(f"no network namespaces can be made: {str(getattr(e, 'stderr', e)).strip()}") from None
        time.sleep(5)
    raise unittest.SkipTest(reason)


class LinkCut(Stopping):
    lacks = ""

    def setUp(self):
        super().setUp()
        if not self.lacks:
            try:
                self.hosts = open_hosts()
            except unittest.SkipTest as e:
                LinkCut.lacks = str(e)  # of the other tests, too, without waiting again
        if self.lacks:
            self.skipTest(self.lacks)
        self.addCleanup(self.hosts.__exit__)
        self.out = self.path("out")
        self.enter = self.write("enter", ENTER)
        os.chmod(self.enter, 0o755)

    def train(self, out, *arguments, config=None, **environment):
        command = self.hosts.mpirun()
        command[command.index("-launcher-exec") + 1] = self.enter
        command += [LPSGD, "train", config or self.config, "--out", self.path(out), *arguments]
        return Job(self, command, **environment)

    def plug(self, state):
        """At the second host. The first one sees that nothing answers."""
        sh("ip", "-n", "lpsgd2", "link", "set", "eth0", state)
        return time.monotonic()

    def left(self):
        """Processes on either host."""
        return [sh("ip", "netns", "pids", f"lpsgd{i}").split() for i in (1, 2)]

    def expect_none_left(self, until):
        """mpirun may end a moment before what it has started."""
        while any(self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(self.left(), [[], []])

    def wait_for_training(self, job, out):
        job.wait_until(lambda: os.path.exists(self.path(out, "metrics.jsonl")))
        time.sleep(1)

    def test_both_sides_end(self):
        for limit in (4, 30):
            with self.subTest(limit=limit):
                out = f"out{limit}"
                job = self.train(out, "--set", f"exchange.timeout={limit}s", *LONG)
                self.wait_for_training(job, out)
                self.assertEqual(len(job.ranks()), 2, job.text())
                cut = self.plug("down")
                status = job.wait_until_gone(cut + limit + SLACK)
                self.expect_none_left(cut + limit + SLACK)
                self.assertNotEqual(status, 0, job.text())
                self.assertIn("rank 0: ", job.error())
                if limit == 4:
                    self.assertRegex(job.error(), rf"step \d+: the exchange of [\w.]+ has waited {limit} s for rank 1, as long as "
                                                  "exchange.timeout allows")
                self.plug("up")

    # In each phase the second rank stops at a file, the cable is cut, and the rank goes on.
    PHASES = {
        "start": ("images.yaml", False, r"all_gather of 8 bytes in start \(trainer/train.cc:\d+, call \d+\)"),
        "data": ("/val/", False, r"all_gather of 8 bytes in data \(trainer/train.cc:\d+, call \d+\)"),
        "evaluation": ("/val/", True, r"all_gather of \d+ bytes in evaluation \(trainer/\w+.cc:\d+, call \d+\)"),
        "checkpoint": ("state-rank0001", False,
                       r"all_gather of \d+ bytes in (?:checkpoint \(trainer/checkpoint_writer|training \(trainer/step_agreement).cc:"
                       r"\d+, call \d+\)"),
    }

    def test_both_sides_end_in_each_phase(self):
        limit = 4
        for phase, (at, late, place) in self.PHASES.items():
            with self.subTest(phase=phase):
                out = "out-" + phase
                self.plug("up")
                once = self.path(out, "metrics.jsonl") if late else ""
                job = self.train(out, "--set", f"exchange.timeout={limit}s", "--set", f"exchange.timeout_outside_step={limit}s",
                                 "--set", "checkpoint.every_epochs=0", config=self.images_config,
                                 LPSGD_START_TIMEOUT=str(limit), **self.stops(at, once))
                job.wait_for_stop(1)
                cut = self.plug("down")
                os.kill(job.ranks()[1], signal.SIGCONT)
                status = job.wait_until_gone(cut + limit + SLACK)
                self.expect_none_left(cut + limit + SLACK)
                self.assertNotEqual(status, 0, job.text())
                self.assertRegex(job.error(), rf"^rank 0: {place} has waited {limit} s for rank 1, as long as \w+(\.\w+)? allows$")

    def test_the_rank_behind_the_link_is_killed(self):
        limit = 4
        job = self.train("out", "--set", f"exchange.timeout={limit}s", *LONG)
        self.wait_for_training(job, "out")
        cut = self.plug("down")
        os.kill(job.ranks()[1], signal.SIGKILL)
        self.assertNotEqual(job.wait_until_gone(cut + limit + SLACK), 0, job.text())
        self.assertIn("has waited", job.error())

    def test_a_link_that_comes_back_in_time(self):
        more = ("--set", "exchange.timeout=20s", "--set", "data.train_samples=24000", "--set", "exchange.link.latency=1ms")
        whole = self.train("whole", *more)
        self.assertEqual(whole.wait_until_gone(time.monotonic() + 200), 0, whole.text())
        job = self.train("out", *more)
        self.wait_for_training(job, "out")
        self.plug("down")
        time.sleep(3)
        self.assertEqual(len(job.ranks()), 2, job.text())
        self.plug("up")
        self.assertEqual(job.wait_until_gone(time.monotonic() + 200), 0, job.text())
        ours, theirs = model(self.out, "epoch-0002"), model(self.path("whole"), "epoch-0002")
        self.assertEqual(ours.keys(), theirs.keys())
        for name in ours:
            np.testing.assert_array_equal(ours[name].view("<u4"), theirs[name].view("<u4"), name)


def why_not():
    """What this machine lacks; empty if nothing."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "needs root and iproute2"
    if not json.loads(run("version", "--json").out)["mpi_version"].startswith("MPICH"):
        return "the launcher's options are MPICH's"
    return ""


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    result = unittest.main(verbosity=2, exit=False).result
    if result.wasSuccessful() and result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(77)  # for ctest, which would count it as passed
    sys.exit(not result.wasSuccessful())
