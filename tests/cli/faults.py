"""Runs that are disturbed: a small configuration, a library that lets calls of the disk fail, comparing two runs."""

import glob
import json
import os
import subprocess
import time

from harness import LPSGD, SOURCE, Case, checkpoints, run

# Six epochs of four steps, some milliseconds each, with a checkpoint every five steps.
STEPS_PER_EPOCH, EPOCHS, EVERY_STEPS = 4, 6, 5
SMALL = ("--set", f"train.epochs={EPOCHS}", "--set", f"checkpoint={{every_epochs: 0, every_steps: {EVERY_STEPS}, keep: 2}}",
         "--set", "exchange.min_elements=0", "--set", "exchange.link.latency=1ms")
CODECS = {
    "none": "{kind: none}",
    "onebit": "{kind: onebit, bucket: 64}",
    "qsgd": "{kind: qsgd, bits: 4, bucket: 64}",
    "topk": "{kind: topk, density: 0.1}",
    "local_sgd": "{kind: qsgd, bits: 4, bucket: 64}",  # and ranks that train three steps by themselves
}
# And what copies with averaged weights sent: a signal makes another one.
TIMES = ("seconds", "seconds_min", "seconds_max", "samples_per_s", "communication_s", "computation_s", "bytes_average")


def of_codec(codec):
    local = ("--set", "sync={kind: local_sgd, steps: 3}") if codec == "local_sgd" else ()
    return (*SMALL, *local, "--set", f"exchange.codec={CODECS[codec]}")


class Disturbed(Case):
    @classmethod
    def setUpClass(cls):
        cls.wholes = {}

    def setUp(self):
        super().setUp()
        self.library = self.path("faults.so")
        source = os.path.join(SOURCE, "tests", "cli", "faults.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", self.library, source], check=True)

    def faults(self, under, fault=None, rank=None, log=None):
        """The environment of a run with a fault in files below `under`; see faults.c."""
        variables = {"LD_PRELOAD": self.library, "FAULT_UNDER": under, "FAULT": fault, "FAULT_LOG": log,
                     "FAULT_RANK": None if rank is None else str(rank)}
        return {name: value for name, value in variables.items() if value is not None}

    def files(self, folder, checkpoint):
        """The tensors of a checkpoint, as bytes."""
        out = {}
        for path in glob.glob(os.path.join(folder, "checkpoints", checkpoint, "*.safetensors")):
            with open(path, "rb") as file:
                out[os.path.basename(path)] = file.read()
        return out

    def contents(self, folder):
        """What an undisturbed run and a resumed one leave alike: the last checkpoint's tensors and the metrics less times."""
        out = self.files(folder, f"epoch-{EPOCHS:04}")
        out["metrics"] = [{k: v for k, v in line.items() if k not in TIMES} for line in self.metrics(folder)]
        return out

    def whole(self, codec, ranks):
        """The contents of an undisturbed run."""
        if (codec, ranks) not in self.wholes:
            self.wholes[codec, ranks] = self.contents(self.train(f"whole-{codec}-{ranks}", *of_codec(codec), ranks=ranks))
        return self.wholes[codec, ranks]

    def newest_step(self, folder):
        """The step of the checkpoint that --resume would take; 0: none verifies."""
        result = run("checkpoint", "verify", folder, "--json")
        good = {c["name"] for c in json.loads(result.out) if c["verifies"]} if result.out else set()
        steps = [c["step"] for c in json.loads(run("checkpoint", "list", folder, "--json").out or "[]") if c["name"] in good]
        return max(steps, default=0)

    def goes_on(self, folder, codec, ranks):
        """Resumes without the fault; the result is that of an undisturbed run."""
        expected = self.newest_step(folder) if os.path.isdir(os.path.join(folder, "checkpoints")) else 0
        result = run("train", self.config, "--out", folder, "--resume", *of_codec(codec), ranks=ranks)
        self.assertEqual(result.status, 0, result)
        if expected == 0:
            self.assertIn("starting from random weights", result.out)
        elif expected < EPOCHS * STEPS_PER_EPOCH:
            self.assertIn(f"(step {expected})", result.err)
        self.assertNotIn("is passed over", result.err)
        whole, resumed = self.whole(codec, ranks), self.contents(folder)
        self.assertEqual(resumed["metrics"], whole["metrics"])
        self.assertEqual(resumed.keys(), whole.keys())
        for name, content in whole.items():
            self.assertEqual(resumed[name], content, name)
        self.assertEqual(run("checkpoint", "verify", folder).status, 0)
        self.assertFalse([name for name in checkpoints(folder) if name.startswith(".")], "unfinished ones are removed")
        return expected

    def processes(self, folder):
        """Process ids of the ranks that train in this folder, by rank."""
        out = {}
        for entry in glob.glob("/proc/[0-9]*"):
            try:
                with open(entry + "/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(entry + "/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:
                continue
            if words[0] == LPSGD.encode() and folder.encode() in words:
                ranks = [v.split(b"=")[1] for v in variables if v.split(b"=")[0] in (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK")]
                out[int(ranks[0]) if ranks else 0] = int(os.path.basename(entry))
        return out

    def wait_until(self, condition, what, seconds=60):
        deadline = time.time() + seconds
        while not condition():
            self.assertLess(time.time(), deadline, what)
            time.sleep(0.002)
