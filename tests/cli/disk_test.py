"""Disks that are full or fail: one message, no hang, and the last checkpoint stands. LPSGD_FAULTS: how many calls of
each kind fail, one per run; the default is a few, "all" is every one."""

import os
import re
import shutil
import unittest

from faults import EPOCHS, Disturbed, of_codec
from harness import checkpoints, run

FAULTS = os.environ.get("LPSGD_FAULTS", "3")
RANKS, CODEC = 2, "onebit"
# Checkpoints after steps 12 and 24.
TWICE = (*of_codec(CODEC), "--set", "checkpoint={every_epochs: 3, keep: 1}")
FIRST, FIRST_STEP, SECOND = "epoch-0003", 12, "epoch-0006"


def calls_in(log):
    """The paths in a log of faults.c, for each rank."""
    with open(log) as file:
        lines = [line.rstrip("\n").split(" ", 2) for line in file]
    return [[path for of, _, path in lines if int(of) == rank] for rank in range(RANKS)]


class Disk(Disturbed):
    def calls(self, operation):
        """The paths of the calls of an undisturbed run, in order, for each rank."""
        log = self.path("calls-" + operation)
        self.train("counted-" + operation, *TWICE, ranks=RANKS,
                   env=self.faults("/counted-" + operation + "/", f"{operation}:0:EIO", log=log))
        return calls_in(log)

    def chosen(self, paths, operation):
        """Which of a rank's calls fail: all, or some with the last ones of each file first. Closing the lock releases it."""
        if FAULTS == "all":
            return [i for i, path in enumerate(paths) if not (operation == "close" and "/.lock" in path)]
        ends = [i for i in range(len(paths)) if (i + 1 == len(paths) or paths[i + 1] != paths[i])
                and not (operation == "close" and "/.lock" in paths[i])]
        count = min(int(FAULTS), len(ends))
        return sorted({ends[round(i * (len(ends) - 1) / max(1, count - 1))] for i in range(count)})

    def fails(self, operation, action, reason, persists):
        for rank, paths in enumerate(self.calls(operation)):
            for at in self.chosen(paths, operation):
                with self.subTest(rank=rank, call=at + 1, of=len(paths), path=paths[at]):
                    folder = self.path(f"out-{operation}-{rank}-{at}")
                    log = folder + ".log"
                    env = self.faults(folder + "/", f"{operation}:{at + 1}{'+' if persists else ''}:{action}", rank, log)
                    result = run("train", self.config, "--out", folder, *TWICE, ranks=RANKS, env=env, timeout=60)
                    failed = calls_in(log)[rank][at]
                    self.one_message(result, folder, reason, failed)
                    if SECOND in failed:
                        self.assertGreaterEqual(self.newest_step(folder), FIRST_STEP, "the first one stands")
                    self.goes_on(folder, CODEC, RANKS)

    def one_message(self, result, folder, reason, failed):
        self.assertEqual(result.status, 1, result)
        errors = [line for line in result.err.splitlines() if "error" in line]
        self.assertEqual(len(errors), 1, result)
        self.assertRegex(errors[0], rf"^lpsgd: error: (rank \d: )?{re.escape(folder)}/\S*: .*{reason}$")
        name = os.path.basename(failed).removesuffix(".new").removesuffix(".tmp").lstrip(".")
        self.assertIn(name, errors[0], failed)

    def test_training_goes_on_while_a_slow_disk_writes(self):
        every = (*of_codec(CODEC), "--set", "checkpoint={every_epochs: 0, every_steps: 10, keep: 9}")
        plain, slow = self.train("plain", *every), self.path("slow")
        result = run("train", self.config, "--out", slow, *every, ranks=RANKS, env=self.faults("/checkpoints", "any:1+:SLOW"))
        self.assertEqual(result.status, 0, result)
        self.assertLess(result.out.index("epoch 2/6"), result.out.index("checkpoint step-000005"), result)
        self.assertEqual(checkpoints(slow), checkpoints(plain))
        for name in checkpoints(plain):
            self.assertEqual(self.files(slow, name), self.files(plain, name), name)

    def waited(self, result, name):
        """For how long training waited for a checkpoint, as it says."""
        found = re.search(rf"^checkpoint {name}: training waited ([\d.]+) s, written in ([\d.]+) s$", result.out, re.M)
        self.assertTrue(found, result)
        return float(found[1]), float(found[2])

    def test_training_does_not_wait_for_a_disk_that_is_slow_to_sync(self):
        for under in ("/slow", "/slow/checkpoints"):  # the run's folder as well, and only what is below
            with self.subTest(under=under):
                shutil.rmtree(self.path("slow"), ignore_errors=True)
                env = {**self.faults(self.path(under[1:]), "fsync:1+:SLOW", 0), "FAULT_SECONDS": "0.4"}
                result = run("train", self.config, "--out", self.path("slow"), *of_codec(CODEC), "--set",
                             "checkpoint={every_epochs: 0, every_steps: 162, keep: 9}", "--set", "exchange.link.latency=20ms",
                             "--set", "data.train_samples=960", "--set", "train.epochs=4", ranks=RANKS, env=env)
                self.assertEqual(result.status, 0, result)
                waited, written = self.waited(result, "step-000081")
                self.assertLess(waited, 0.4, result)
                self.assertGreater(written, 1.5, "it syncs four times at least")

    def test_a_kill_while_an_old_one_is_removed(self):
        """It loses its name first, so what has a name is whole."""
        for at in (1, 2, 4):
            with self.subTest(call=at):
                folder = self.path(f"removing-{at}")
                result = run("train", self.config, "--out", folder, *TWICE, ranks=RANKS, env=self.faults(folder, f"remove:{at}:KILL", 0))
                self.assertNotEqual(result.status, 0, result)
                verified = run("checkpoint", "verify", folder)
                self.assertEqual(verified.status, 0, verified)
                self.goes_on(folder, CODEC, RANKS)

    def test_a_file_system_that_cannot_swap_folders(self):
        folder = self.train("out", *of_codec(CODEC), ranks=RANKS)
        newest = os.path.join(folder, "checkpoints", f"epoch-{EPOCHS:04}")
        with open(os.path.join(newest, "model.safetensors"), "r+b") as file:
            file.truncate(100)
        result = run("train", self.config, "--out", folder, "--resume", *of_codec(CODEC), ranks=RANKS,
                     env={**self.faults(folder), "FAULT_NO_SWAP": "1"})
        self.assertEqual(result.status, 0, result)
        self.assertIn("is passed over", result.err)
        self.assertEqual(self.contents(folder), self.whole(CODEC, RANKS))
        self.assertFalse([name for name in checkpoints(folder) if name.startswith(".")])

    def test_a_file_system_that_cannot_sync_folders(self):
        folder = self.train("out", *of_codec(CODEC), ranks=RANKS, env={**self.faults(self.path("out")), "FAULT_NO_FOLDER_SYNC": "1"})
        self.assertEqual(self.contents(folder), self.whole(CODEC, RANKS))
        self.assertEqual(run("checkpoint", "verify", folder).status, 0)

    def test_a_full_disk(self):
        self.fails("write", "ENOSPC", "No space left on device", persists=True)

    def test_no_room_for_a_folder(self):
        self.fails("mkdir", "ENOSPC", "No space left on device", persists=True)

    def test_no_room_for_a_file(self):
        self.fails("create", "ENOSPC", "No space left on device", persists=True)

    def test_a_file_that_cannot_be_closed(self):
        self.fails("close", "EIO", "Input/output error", persists=False)

    def test_a_disk_that_cannot_be_synced(self):
        self.fails("fsync", "EIO", "Input/output error", persists=False)

    def test_files_and_folders_that_cannot_be_renamed(self):
        self.fails("rename", "EIO", "Input/output error", persists=False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
