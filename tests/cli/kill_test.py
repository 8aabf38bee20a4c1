"""Runs that are killed, anywhere, go on bit for bit. LPSGD_KILLS: how many kills; the default is ten, of every kind."""

import glob
import itertools
import os
import random
import re
import signal
import subprocess
import unittest

from faults import CODECS, EPOCHS, EVERY_STEPS, STEPS_PER_EPOCH, Disturbed, of_codec
from harness import LPSGD, MPIRUN

KILLS = int(os.environ.get("LPSGD_KILLS", "10"))
KINDS = ("SIGKILL of a rank", "SIGTERM of a rank", "SIGKILL of mpirun", "SIGTERM of mpirun", "SIGKILL while writing",
         "SIGKILL of all while writing", "SIGTERM while writing")


def cases():
    """Every kind with every codec, in an order in which the first few have as many kinds and codecs as possible."""
    draw = random.Random(5)
    codecs, ranks = itertools.cycle(CODECS), itertools.cycle((2, 2, 3))
    out = []
    for i in range(KILLS):
        out.append((KINDS[i % len(KINDS)], next(codecs), next(ranks), draw.randrange(1 << 30)))
    return out


class Kills(Disturbed):
    def start(self, folder, codec, ranks, env):
        # Each rank's log is a file: what mpirun has not read of it when it is killed is not lost.
        with_log = ["sh", "-c", f'exec "$0" "$@" 2>>{folder}.rank${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}']
        command = [MPIRUN, "-n", str(ranks), *with_log, LPSGD, "train", self.config, "--out", folder, *of_codec(codec)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env=dict(os.environ, OMP_NUM_THREADS="1", LPSGD_LOG="trace", **env))
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def lines(self, folder):
        try:
            with open(os.path.join(folder, "metrics.jsonl")) as file:
                return file.read().count("\n")
        except OSError:
            return 0

    def log(self, folder):
        """Of all ranks."""
        text = ""
        for path in glob.glob(folder + ".rank*"):
            with open(path, errors="replace") as file:
                text += file.read()
        return text

    def steps_done(self, folder):
        """The last step that a rank has done, by its log; also of an epoch that was never finished."""
        return max(map(int, re.findall(r"trace: step (\d+) is done", self.log(folder))), default=0)

    def calls_while_writing(self, codec, ranks):
        """How many calls change files under checkpoints/ in a whole run, for each rank."""
        if (codec, ranks) not in self.calls:
            log = self.path(f"calls-{codec}-{ranks}")
            self.train(f"counted-{codec}-{ranks}", *of_codec(codec), ranks=ranks, env=self.faults("/checkpoints", log=log))
            with open(log) as file:
                of = [int(line.split()[0]) for line in file]
            self.calls[codec, ranks] = [of.count(rank) for rank in range(ranks)]
        return self.calls[codec, ranks]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.calls = {}

    def kill(self, kind, codec, ranks, draw, folder):
        """Ends a run before its time; returns how many steps it had done."""
        rank, env = draw.randrange(ranks), {}
        while_writing = kind.endswith("while writing")
        if while_writing:
            at = draw.randrange(self.calls_while_writing(codec, ranks)[rank]) + 1
            action = {"SIGKILL while writing": "KILL", "SIGKILL of all while writing": "STOP", "SIGTERM while writing": "TERM"}[kind]
            env = self.faults("/checkpoints", f"any:{at}:{action}", rank)
        epochs = draw.randrange(EPOCHS)
        process = self.start(folder, codec, ranks, env)
        processes = {}

        def is_due():
            if process.poll() is not None:
                return True
            if kind == "SIGKILL of all while writing":
                processes.update(self.processes(folder))
                return rank in processes and self.is_stopped(processes[rank])
            return not while_writing and self.lines(folder) >= epochs

        self.wait_until(is_due, "the run neither ends nor comes to the kill")
        number = signal.SIGKILL if "SIGKILL" in kind else signal.SIGTERM
        if kind.endswith("of a rank"):
            self.wait_until(lambda: process.poll() is not None or len(self.processes(folder)) == ranks, "not all ranks start")
            processes = self.processes(folder)
            if rank in processes:
                os.kill(processes[rank], number)
        elif process.poll() is None and not kind == "SIGKILL while writing":
            for one in processes.values():
                os.kill(one, number)
            if not kind == "SIGTERM while writing":
                process.send_signal(number)
        out, err = process.communicate(timeout=60)
        self.wait_until(lambda: not self.processes(folder), "a rank stays when the others have been killed")
        if process.returncode == 0:  # also MPICH's mpirun, now and then, after a SIGTERM with which all ranks ended
            self.assertRegex(out, f"epoch {EPOCHS}/{EPOCHS}|stopped by SIGTERM")
        else:
            self.assertNotIn("lpsgd: error", err + self.log(folder))
        return self.steps_done(folder)

    def is_stopped(self, process):
        try:
            with open(f"/proc/{process}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "T"
        except OSError:
            return False

    def test_a_killed_run_goes_on_bit_for_bit(self):
        ended_early = most = 0
        for i, (kind, codec, ranks, seed) in enumerate(cases()):
            with self.subTest(number=i, kind=kind, codec=codec, ranks=ranks):
                folder = self.path(f"killed-{i}")
                done = self.kill(kind, codec, ranks, random.Random(seed), folder)
                step = self.goes_on(folder, codec, ranks)
                ended_early += done < EPOCHS * STEPS_PER_EPOCH
                twice = done - step
                most = max(most, twice)
                self.assertGreaterEqual(twice, 0, "the log has every step")
                self.assertLessEqual(twice, EVERY_STEPS)
        print(f"{ended_early} of {KILLS} runs ended early; at most {most} steps of {EVERY_STEPS} were done twice")
        self.assertGreaterEqual(2 * ended_early, KILLS, "most kills come before a run's end")


if __name__ == "__main__":
    unittest.main(verbosity=2)
