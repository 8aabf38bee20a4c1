"""A rank that stands still, in each phase of a run: the others say so, and the job ends within the limit, once and for all."""

import functools
import os
import re
import shutil
import signal
import time
import unittest
from pathlib import Path

from faults import Disturbed
from harness import LPSGD, MPIRUN, run
from jobs import Job, Stopping, mpirun

LIMIT = 3
LIMITS = ("--set", f"exchange.timeout={LIMIT}s", "--set", f"exchange.timeout_outside_step={LIMIT}s")
IN_STEP = ("--set", f"exchange.timeout={LIMIT}s", "--set", "exchange.timeout_outside_step=10min")
OUTSIDE = ("--set", "exchange.timeout=10min", "--set", f"exchange.timeout_outside_step={LIMIT}s")
# Almost only steps.
LONG = ("--set", "data.train_samples=24000", "--set", "train.epochs=1000", "--set", "checkpoint.every_epochs=0",
        "--set", "exchange.link.latency=2ms")
# As little as the launcher's own cleaning up may add.
SLACK = 10


def of_either_rank(test):
    """Each of two ranks in turn, with a folder of its own."""
    @functools.wraps(test)
    def both(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.out = self.path(f"out{rank}")
                test(self, rank)
    return both


class Timeouts(Stopping):
    def setUp(self):
        super().setUp()
        self.out = self.path("out")

    def train(self, *arguments, ranks=2, config=None, **environment):
        return Job(self, mpirun(ranks, LPSGD, "train", config or self.config, "--out", self.out, *arguments), **environment)

    def stopping(self, at, *arguments, once="", rank=1, ranks=2, **environment):
        """A run on image files, of which a rank stops when it opens the file `at`."""
        return self.train(*arguments, ranks=ranks, config=self.images_config, **self.stops(at, once, rank), **environment)

    def ends(self, job, stopped, expected, waits_for="rank 1", limit=LIMIT, by="exchange.timeout_outside_step"):
        status = job.wait_until_gone(stopped + limit + SLACK)
        self.assertGreaterEqual(time.monotonic() - stopped, limit - 1, job.text())
        self.assertNotEqual(status, 0, job.text())
        error = job.error()
        self.assertRegex(error, rf"^rank \d: {expected} has waited {limit} s for {waits_for}, as long as {by} allows$", job.text())
        self.assertIn(f"for {waits_for}\n", job.err(), "and before that there were warnings")
        self.assertGreaterEqual(len(re.findall(rf"\[rank \d\] warning: {expected} has waited [0-9] s for {waits_for}\n", job.err())), 2,
                                job.text())
        return error

    TENSOR = r"(?:conv|bn|fc)[12]?\.(?:weight|bias)"
    STEP = rf"step \d+: the exchange of {TENSOR}"

    @staticmethod
    def call(kind, phase, file):
        return rf"{kind} in {phase} \({file}:\d+, call \d+\)"

    @of_either_rank
    def test_at_the_start(self, rank):
        job = self.stopping("images.yaml", *LIMITS, rank=rank, LPSGD_START_TIMEOUT=str(LIMIT))
        self.ends(job, job.wait_for_stop(rank), self.call("all_gather of 8 bytes", "start", "trainer/train.cc"),
                  waits_for=f"rank {rank}", by="LPSGD_START_TIMEOUT")
        self.assertFalse(os.path.exists(self.out), "nothing may start")

    def test_when_a_run_is_resumed(self):
        self.assertEqual(run("train", self.images_config, "--out", self.out, "--steps", "1", ranks=2).status, 0)
        job = self.stopping("manifest.json", *OUTSIDE, "--resume", LPSGD_START_TIMEOUT="600")
        self.ends(job, job.wait_for_stop(1), self.call("all_gather of 8 bytes", "start", "trainer/train.cc"))

    @of_either_rank
    def test_while_data_are_read(self, rank):
        job = self.stopping("/val/", *OUTSIDE, rank=rank, LPSGD_START_TIMEOUT="600")
        self.ends(job, job.wait_for_stop(rank), self.call("all_gather of 8 bytes", "data", "trainer/train.cc"),
                  waits_for=f"rank {rank}")

    @of_either_rank
    def test_in_a_step(self, rank):
        job = self.stopping("/train/", *IN_STEP, "--set", "train.epochs=1000", rank=rank,
                            once=os.path.join(self.out, "metrics.jsonl"))
        error = self.ends(job, job.wait_for_stop(rank),
                          f"(?:{self.STEP}|{self.call('all_gather of 32 bytes', 'training', 'trainer/step_agreement.cc')})",
                          waits_for=f"rank {rank}", by="exchange.timeout")
        self.assertRegex(error, "exchange of|in training")

    @of_either_rank
    def test_in_a_step_late(self, rank):
        """Stopped by somebody, among thousands of steps."""
        job = self.train(*IN_STEP, *LONG)
        job.wait_until(lambda: os.path.exists(os.path.join(self.out, "metrics.jsonl")))
        time.sleep(2.5)  # by then the ranks ask each other once a second only
        os.kill(job.ranks()[rank], signal.SIGSTOP)
        self.ends(job, job.wait_for_stop(rank), self.STEP, waits_for=f"rank {rank}", by="exchange.timeout")

    def test_in_a_step_of_a_block(self):
        """Ranks 2 and 3 are a block; rank 2 waits for what is rank 1 of its block."""
        job = self.train(*IN_STEP, *LONG, "--set", "sync={kind: hierarchical_local_sgd, steps: 1, block_steps: 100000, ranks_per_block: 2}",
                         ranks=4)
        job.wait_until(lambda: os.path.exists(os.path.join(self.out, "metrics.jsonl")))
        time.sleep(2.5)  # the file is there shortly before the first step
        os.kill(job.ranks()[3], signal.SIGSTOP)
        stopped = job.wait_for_stop(3)
        status = job.wait_until_gone(stopped + LIMIT + SLACK)
        self.assertNotEqual(status, 0, job.text())
        self.assertRegex(job.error(), rf"^rank [0-2]: .* has waited {LIMIT} s for rank(?: 3|s 2-3), as long as exchange.timeout allows$")
        self.assertRegex(job.err(), rf"\[rank 2\] warning: (?:{self.STEP}|all_gather of .*) has waited [0-9] s for rank 3\n")
        self.assertNotRegex(job.err(), r"for ranks? 1\b")

    @of_either_rank
    def test_in_an_evaluation(self, rank):
        job = self.stopping("/val/", *OUTSIDE, rank=rank, once=os.path.join(self.out, "metrics.jsonl"))
        self.ends(job, job.wait_for_stop(rank), self.call("all_gather of [0-9]+ bytes", "evaluation", r"trainer/[a-z_]+\.cc"),
                  waits_for=f"rank {rank}")

    # A checkpoint is written beside training; of the last one the ranks wait for each other at its end.
    LAST_CHECKPOINT = (*LIMITS, "--set", "checkpoint.every_epochs=0")
    WHILE_WRITING = (r"(?:all_gather of 8 bytes in checkpoint \(trainer/checkpoint_writer.cc:\d+, call \d+\)|"
                     r"all_gather of \d+ bytes in training \(trainer/step_agreement.cc:\d+, call \d+\))")
    EITHER_LIMIT = r"exchange\.timeout(?:_outside_step)?"

    def test_in_a_checkpoint(self):
        job = self.stopping("state-rank0001", *self.LAST_CHECKPOINT)
        self.ends(job, job.wait_for_stop(1), self.WHILE_WRITING, by=self.EITHER_LIMIT)

    @of_either_rank
    def test_at_the_end(self, rank):
        job = self.stopping(f"rank000{rank}.json", *OUTSIDE, "--trace", self.path(f"trace{rank}"), rank=rank)
        self.ends(job, job.wait_for_stop(rank), self.call("all_gather of 8 bytes", "end", "trainer/rank_trace.cc"),
                  waits_for=f"rank {rank}")

    def test_rank_0_of_three(self):
        """Two ranks reach their limit together; one speaks."""
        job = self.stopping("state-rank0000", *self.LAST_CHECKPOINT, rank=0, ranks=3)
        error = self.ends(job, job.wait_for_stop(0), self.WHILE_WRITING, waits_for="rank 0", by=self.EITHER_LIMIT)
        self.assertTrue(error.startswith("rank 1: "), error)

    def test_a_rank_that_never_starts(self):
        job = Job(self, [MPIRUN, "-n", 1, LPSGD, "train", self.config, "--out", self.out, ":", "-n", 1, "sleep", 1000],
                  LPSGD_START_TIMEOUT=str(LIMIT))
        begun = job.wait_until(lambda: any(words[0] == LPSGD for words in job.processes().values()))
        self.assertNotEqual(job.wait_until_gone(begun + LIMIT + SLACK), 0, job.text())
        self.assertEqual(job.error(), f"rank 0: MPI has not started within the {LIMIT} s that LPSGD_START_TIMEOUT allows: a rank "
                                      "does not start or cannot be reached")
        self.assertIn("waiting for all ranks to start MPI: ", job.err())
        self.assertGreaterEqual(time.monotonic() - begun, LIMIT - 1)
        result = run("train", self.config, "--out", self.out, ranks=2, env={"LPSGD_START_TIMEOUT": "soon"})
        self.assertEqual(result.err.count("LPSGD_START_TIMEOUT: expected seconds, got 'soon'"), 1, result)
        self.assertEqual(result.status, 2, result)

    def test_a_job_that_is_suspended_as_a_whole(self):
        """The time in which all ranks are stopped does not count."""
        job = self.train(*LIMITS, "--set", "data.train_samples=48000")
        job.wait_until(lambda: os.path.exists(os.path.join(self.out, "metrics.jsonl")))
        ranks = job.ranks()
        for stop in (signal.SIGSTOP, signal.SIGCONT):
            for pid in ranks.values():
                os.kill(pid, stop)
            time.sleep(LIMIT + 4 if stop == signal.SIGSTOP else 0)
        self.assertEqual(job.wait_until_gone(time.monotonic() + 120), 0, job.text())
        self.assertNotIn("has waited", job.err())

    def test_without_a_limit(self):
        job = self.train("--set", "exchange.timeout=0s", "--set", "exchange.timeout_outside_step=0s", "--set",
                         "data.train_samples=4800")
        job.wait_until(lambda: os.path.exists(os.path.join(self.out, "metrics.jsonl")))
        pid = job.ranks()[1]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(LIMIT + 3)
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(job.wait_until_gone(time.monotonic() + 120), 0, job.text())
        with open(os.path.join(self.out, "config.yaml")) as file:
            self.assertRegex(file.read(), r"timeout: 0s\n *timeout_outside_step: 0s\n")

    def test_a_crash_ends_the_job(self):
        for number in (signal.SIGSEGV, signal.SIGKILL):
            self.out = self.path(f"out{number}")
            job = self.train(*LONG)
            job.wait_until(lambda: os.path.exists(os.path.join(self.out, "metrics.jsonl")))
            os.kill(job.ranks()[1], number)
            self.assertNotEqual(job.wait_until_gone(time.monotonic() + SLACK), 0, job.text())
            self.assertNotIn("UCX", job.out() + job.err())


class OwnDisk(Stopping, Disturbed):
    """A rank's own disk is slow or does not answer."""

    def train_on_files(self, *arguments, **environment):
        return Job(self, mpirun(2, LPSGD, "train", self.images_config, "--out", self.path("out"), *arguments), **environment)

    def test_samples_that_do_not_come(self):
        """The other rank reaches its limit at the same time, but this one's message names the cause."""
        for at, limits in (("/train/", IN_STEP), ("/val/", OUTSIDE)):
            with self.subTest(at=at):
                log = self.path("reads" + at.replace("/", "-"))
                job = self.train_on_files(*limits, "--set", "data.workers=1", FAULT_AFTER=self.path("out", "metrics.jsonl"),
                                          **self.faults(at, "read:3:HANG", 1, log))
                job.wait_until(lambda: os.path.exists(log) and Path(log).read_text().count("\n") >= 3)
                self.assertNotEqual(job.wait_until_gone(time.monotonic() + LIMIT + SLACK), 0, job.text())
                self.assertRegex(job.error(), rf"^rank 1: the samples of batch 1 of epoch 1 have not been read for {LIMIT} s, as long as "
                                              r"exchange\.timeout(?:_outside_step)? allows$")
                shutil.rmtree(self.path("out"))

    def test_a_checkpoint_that_is_not_written(self):
        job = self.train_on_files(*OUTSIDE, "--set", "checkpoint.every_epochs=0", **self.faults("/checkpoints", "write:1:HANG", 1))
        job.wait_until(lambda: os.path.exists(self.path("out", "checkpoints")))
        self.assertNotEqual(job.wait_until_gone(time.monotonic() + LIMIT + SLACK), 0, job.text())
        self.assertRegex(job.error(), rf"^rank 1: checkpoint epoch-0002: writing this rank's files takes {LIMIT} s, as long as "
                                      "exchange.timeout_outside_step allows$")

    def test_an_evaluation_alone(self):
        trained = self.train("trained", config=self.images_config)
        result = run("eval", self.images_config, "--checkpoint", trained, "--set", "data.workers=1", *LIMITS,
                     env=self.faults("/val/", "read:3:HANG"), timeout=60)
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.err, rf"(?m)\Alpsgd: error: the samples of batch 1 of epoch 1 have not been read for {LIMIT} s, as long as "
                                     r"exchange\.timeout\w* allows\n\Z")

    def test_what_training_waits_before_a_checkpoint_is_its_time(self):
        """Ranks that train by themselves wait for each other only when they ask: after steps 1 and 3, and for the checkpoint
        after step 5. Rank 1 reads one of that step's two files slowly."""
        def waited(out, faults, **environment):
            result = run("train", self.images_config, "--out", self.path(out), "--steps", "6",
                         "--set", "train.batch_size=4", "--set", "data.workers=1", "--set", "data.prefetch=1",
                         "--set", "sync={kind: local_sgd, steps: 100}",
                         "--set", "checkpoint={every_steps: 10, every_epochs: 0, every_minutes: 0}", ranks=2, env={**faults, **environment})
            self.assertEqual(result.status, 0, result)
            (seconds,) = re.findall(r"^checkpoint step-000005: training waited ([\d.]+) s", result.out, re.M)
            return float(seconds)

        log = self.path("reads")
        undisturbed = waited("undisturbed", self.faults("/train/", "read:0:SLOW", 1, log))  # none
        read = [line.split()[2] for line in Path(log).read_text().splitlines()]
        self.assertEqual(len(read), 24 + 12)  # all for the checksum, then those of its batches
        slow = waited("slow", self.faults(read[24 + 8], "read:1+:SLOW", 1), FAULT_SECONDS="3",
                      FAULT_AFTER=self.path("slow", "metrics.jsonl"))
        self.assertLess(undisturbed, 1)
        self.assertGreater(slow, 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
