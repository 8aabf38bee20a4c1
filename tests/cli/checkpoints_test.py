"""Checkpoints: which one is resumed, what a signal leaves, states that are not finite, when they are written, commands."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy as np

from harness import LPSGD, MPIRUN, Case, checkpoints, equal, load, model, run

THREADS = ("--set", "exchange.transport=threads", "--set", "exchange.ranks=2")


def damage(path):
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


class Checkpoints(Case):
    def at(self, folder, *names):
        return os.path.join(folder, "checkpoints", *names)

    def preloaded(self, name, function):
        """The environment of a run in which these C functions stand in for the system's."""
        library, source = self.path(name + ".so"), self.write(name + ".c", function)
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source], check=True)
        return {"LD_PRELOAD": library}


class Resuming(Checkpoints):
    def test_a_damaged_newest_is_passed_over(self):
        folder = self.train("out")
        whole = model(folder, "epoch-0002")
        damage(self.at(folder, "epoch-0002", "state-rank0001.safetensors"))
        result = run("train", self.config, "--out", folder, "--resume-required", ranks=2)
        self.assertEqual(result.status, 0, result)
        file = self.at(folder, "epoch-0002", "state-rank0001.safetensors")
        self.assertEqual(result.err.count("is passed over"), 1, result)
        self.assertIn(f"{self.at(folder, 'epoch-0002')} is passed over: {file}: is damaged", result.err)
        self.assertIn(f"resuming from {self.at(folder, 'epoch-0001')}", result.err)
        self.assertTrue(equal(model(folder, "epoch-0002"), whole))
        self.assertEqual(run("checkpoint", "verify", folder).status, 0)

    def test_what_lies_beside_a_checkpoint_blocks_nothing(self):
        folder = self.train("out", "--set", "train.epochs=3")
        with open(self.at(folder, "epoch-0001", "manifest.json"), "w") as file:
            file.write("{")
        damage(self.at(folder, "epoch-0002", "model.safetensors"))
        os.mkdir(self.at(folder, "epoch-0099"))
        os.makedirs(self.at(folder, "epoch-0050", "manifest.json"))
        os.symlink("/nowhere", self.at(folder, "epoch-0077"))
        os.mkdir(self.at(folder, ".step-000009.tmp"))
        with open(self.at(folder, "step-000001"), "w") as file:
            file.write("no folder")
        result = run("train", self.config, "--out", folder, "--resume", "--set", "train.epochs=4",
                     "--set", "checkpoint.keep=1", ranks=2)
        self.assertEqual(result.status, 0, result)
        passed_over = re.findall(r"(\S+) is passed over", result.err)
        self.assertEqual(sorted(map(os.path.basename, passed_over)), ["epoch-0050", "epoch-0099"], result)
        self.assertIn(f"resuming from {self.at(folder, 'epoch-0003')}", result.err)
        # What is readable and older goes; what lpsgd cannot read stays.
        self.assertEqual(checkpoints(folder), ["epoch-0001", "epoch-0004", "epoch-0050", "epoch-0077", "epoch-0099", "step-000001"])

    def test_where_none_verifies(self):
        folder = self.train("out", "--steps", "1")
        damage(self.at(folder, "step-000001", "model.safetensors"))
        result = run("train", self.config, "--out", folder, "--resume-required", ranks=2)
        self.assertEqual((result.status, result.out), (2, ""), result)
        self.assertIn(f"lpsgd: error: --resume-required: {folder} holds no checkpoint that verifies\n", result.err)
        result = run("train", self.config, "--out", folder, "--resume", "--steps", "1", ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.out.splitlines()[0], f"{folder}: holds no checkpoint that verifies: starting from random weights")
        self.assertEqual(run("checkpoint", "verify", folder).status, 0, "the damaged one has been replaced")

    def test_the_old_one_stays_until_the_new_one_verifies(self):
        env = self.preloaded("flip", """#include <string.h>
            #include <stdio.h>
            #include <sys/syscall.h>
            #include <unistd.h>
            int fsync(int file) {
              char link[64], path[4096] = "";
              snprintf(link, sizeof link, "/proc/self/fd/%d", file);
              readlink(link, path, sizeof path - 1);
              if (strstr(path, ".epoch-0002.tmp/model.safetensors")) ftruncate(file, lseek(file, 0, SEEK_END) - 1);
              return syscall(SYS_fsync, file);
            }
            """)
        result = run("train", self.config, "--out", self.path("out"), "--set", "checkpoint.keep=1", *THREADS, env=env)
        self.assertEqual(result.status, 1, result)
        self.assertIn("model.safetensors: is damaged", result.err)
        self.assertEqual(checkpoints(self.path("out")), ["epoch-0001"])

    def test_an_old_one_that_cannot_be_removed_is_a_warning(self):
        env = self.preloaded("busy", "#include <errno.h>\nint unlinkat(int f, const char* p, int o) { errno = EBUSY; return -1; }\n")
        result = run("train", self.config, "--out", self.path("out"), "--set", "checkpoint.keep=1", *THREADS, env=env)
        self.assertEqual(result.status, 0, result)
        self.assertIn(f"{self.at(self.path('out'), '.epoch-0001.old')}: cannot be removed: Device or resource busy", result.err)
        self.assertEqual(run("checkpoint", "verify", self.path("out")).status, 0)


class NonFinite(Checkpoints):
    LARGE = ("--set", "schedule.lr=1.0e+38", "--set", "schedule.decay={1: 1.0}")
    HUGE = (*LARGE, "--set", "optimizer.weight_decay=1.0e+10")  # weights overflow in one step
    MESSAGE = r"lpsgd: error: step {step}: the \w+( \w+)? of '[\w.]+' on rank 0 hold a NaN or an infinity; {last}\n"

    def refused(self, result, step, last):
        self.assertEqual(result.status, 1, result)
        text = "".join(line + "\n" for line in result.err.splitlines() if "error" in line)
        self.assertRegex(text, r"\A" + self.MESSAGE.format(step=step, last=last) + r"\Z")

    def test_an_overflow_in_the_last_update_is_not_saved(self):
        for name, arguments in (("steps", ["--steps", "1"]), ("epoch", ["--set", "train.epochs=1"])):
            result = run("train", self.config, "--out", self.path(name), *self.HUGE, "--set", "data.train_samples=24", *arguments,
                         ranks=2)
            self.refused(result, 0, "no checkpoint was written yet")
            self.assertFalse(os.path.exists(self.path(name, "checkpoints")))
            self.assertNotIn("nan", result.out)

    def test_finite_weights_with_which_the_evaluation_overflows(self):
        result = run("train", self.config, "--out", self.path("out"), *self.LARGE, "--set", "data.train_samples=24",
                     "--set", "train.epochs=1", ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.err, r"lpsgd: error: step 0: .* (not finite|an infinity).*; no checkpoint was written yet\n")
        self.assertEqual((result.err.count("error"), self.metrics(self.path("out"))), (1, []), result)
        self.assertFalse(os.path.exists(self.path("out", "checkpoints")))

    def test_the_last_checkpoint_stands(self):
        folder = self.train("out", "--set", "train.epochs=1")
        result = run("train", self.config, "--out", folder, "--resume", "--steps", "5", "--set", "checkpoint.keep=1", *self.HUGE,
                     ranks=2)
        self.refused(result, 4, "the last checkpoint is " + re.escape(self.at(folder, "epoch-0001")))
        self.assertEqual(checkpoints(folder), ["epoch-0001"])


class When(Checkpoints):
    def test_every_few_steps(self):
        for every, expected in ((3, ["epoch-0002", "step-000003", "step-000006"]), (4, ["epoch-0001", "epoch-0002"])):
            folder = self.train(f"out{every}", "--set", f"checkpoint={{every_epochs: 0, every_steps: {every}, keep: 9}}")
            self.assertEqual(checkpoints(folder), expected)

    def test_by_time_on_all_ranks_at_the_same_step(self):
        plain = self.train("plain")
        folder = self.train("out", "--set", "checkpoint={every_epochs: 0, every_minutes: 1.0e-5, keep: 99}", ranks=2)
        self.assertTrue(any(name.startswith("step-") for name in checkpoints(folder)), checkpoints(folder))
        self.assertTrue(equal(model(folder, "epoch-0002"), model(plain, "epoch-0002")))
        for checkpoint in checkpoints(folder):
            if checkpoint.startswith("step-"):
                alone = self.path("from-" + checkpoint)
                shutil.copytree(folder, alone)
                for other in checkpoints(alone):
                    if other != checkpoint:
                        shutil.rmtree(self.at(alone, other))
                self.train("from-" + checkpoint, "--resume-required")
                self.assertTrue(equal(model(alone, "epoch-0002"), model(plain, "epoch-0002")), checkpoint)
                break
        self.assertEqual(checkpoints(self.train("off", "--set", "checkpoint={every_epochs: 0, every_minutes: 0}")), ["epoch-0002"])


class Signals(Checkpoints):
    MPICH = "mpich" in json.loads(run("version", "--json").out)["mpi_version"].lower()
    LONG = ("--set", "train.epochs=1000000", "--set", "checkpoint.every_epochs=0")

    def start(self, out, *arguments, ranks=None, ignored=()):
        command = [MPIRUN, "-n", str(ranks)] if ranks else []
        printed = open(out + ".printed", "w+")  # a pipe that nobody reads would fill, and hold the run
        self.addCleanup(printed.close)
        process = subprocess.Popen(
            [*command, LPSGD, "train", self.config, "--out", out, *arguments], stdout=printed, stderr=subprocess.PIPE,
            text=True, env=dict(os.environ, OMP_NUM_THREADS="1"),
            preexec_fn=lambda: [signal.signal(s, signal.SIG_IGN if s in ignored else signal.SIG_DFL)
                                for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)])
        process.printed = printed
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def wait_for(self, condition, process):
        deadline = time.time() + 90
        while not condition():
            self.assertLess(time.time(), deadline)
            self.assertIsNone(process.poll(), process.poll() is not None and process.communicate())
            time.sleep(0.05)

    def lines(self, out):
        try:
            return len(self.metrics(out))
        except (OSError, ValueError):
            return 0

    def rank(self, out, rank):
        """The process of a rank under mpirun."""
        for folder in glob.glob("/proc/[0-9]*"):
            try:
                with open(folder + "/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
                with open(folder + "/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:
                continue
            names = {f"{name}={rank}".encode() for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")}
            if words[0] == LPSGD.encode() and out.encode() in words and names & set(variables):
                return int(os.path.basename(folder))
        self.fail("no such rank")

    def ended(self, process, number, out, to_mpirun=False):
        """What the run printed, after it has saved once and ended as it must."""
        _, err = process.communicate(timeout=90)
        process.printed.seek(0)
        text = process.printed.read()
        # MPICH's mpirun now and then returns 0 after a signal to itself with which all ranks ended.
        self.assertIn(process.returncode, (128 + number, 0) if to_mpirun else (128 + number,), (text, err))
        (name,) = checkpoints(out)
        self.assertIn(f"stopped by {signal.Signals(number).name} after step ", text)
        self.assertIn(f"; checkpoint {self.at(out, name)}\n", text)
        self.assertEqual(run("checkpoint", "verify", out).status, 0)
        return text

    def test_each_signal_at_mpirun_at_a_rank_and_without_mpirun(self):
        for number, target in ((signal.SIGTERM, "rank"), (signal.SIGTERM, "mpirun"), (signal.SIGINT, "rank"), (signal.SIGINT, "mpirun"),
                               (signal.SIGUSR1, "mpirun"), (signal.SIGUSR1, "process"), (signal.SIGINT, "threads"),
                               (signal.SIGHUP, "rank"), (signal.SIGHUP, "process")):
            if target == "mpirun" and number != signal.SIGUSR1 and not self.MPICH:
                continue  # Open MPI's kills the ranks after a second
            with self.subTest(signal=number, target=target):
                out = self.path(f"out-{number}-{target}")
                process = self.start(out, *self.LONG, *(THREADS if target == "threads" else ()),
                                     ranks=2 if target in ("rank", "mpirun") else None)
                self.wait_for(lambda: self.lines(out) > 1, process)
                if target == "rank":
                    os.kill(self.rank(out, 1), number)
                else:
                    process.send_signal(number)
                self.ended(process, number, out, target == "mpirun")

    def test_signals_that_are_ignored_stay_ignored(self):
        """MPI, which handles some signals itself, is started with them ignored. (mpirun would handle them anew.)"""
        out = self.path("out")
        process = self.start(out, *self.LONG, ignored=(signal.SIGUSR1, signal.SIGINT, signal.SIGHUP))
        self.wait_for(lambda: self.lines(out) > 1, process)
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            process.send_signal(number)
            before = self.lines(out)
            time.sleep(1.5)
            self.wait_for(lambda: self.lines(out) > before + 1, process)
        process.send_signal(signal.SIGTERM)
        self.ended(process, signal.SIGTERM, out)

    def test_the_command_that_it_prints_goes_on_bit_for_bit(self):
        slow = ("--set", "data.train_samples=2400", "--set", "exchange.link.latency=4ms")
        whole = self.train("whole", *slow, "--steps", "150")
        out = self.path("out")
        process = self.start(out, *slow, "--steps", "150", ranks=2)
        self.wait_for(lambda: os.path.exists(self.path("out", "metrics.jsonl")), process)
        time.sleep(0.3)
        os.kill(self.rank(out, 0), signal.SIGTERM)
        text = self.ended(process, signal.SIGTERM, out)
        self.assertRegex(checkpoints(out)[0], "step-0000[0-9]+|step-0001[0-4][0-9]")
        (command,) = re.findall(r"^to go on: (.*)$", text, re.M)
        self.assertIn(" -n 2 ", command)
        subprocess.run(command, shell=True, check=True, capture_output=True, timeout=120)
        self.assertTrue(equal(model(out, "step-000150"), model(whole, "step-000150")))

    def test_an_evaluation_is_abandoned_and_made_anew(self):
        # An epoch is one step and seconds of evaluation.
        arguments = ("--set", "data.train_samples=24", "--set", "data.test_samples=60000", "--set", "train.epochs=2",
                     "--set", "checkpoint.every_epochs=0")
        whole, out = self.train("whole", *arguments), self.path("out")
        process = self.start(out, *arguments, ranks=2)
        self.wait_for(lambda: self.lines(out) == 1, process)
        time.sleep(0.2)
        os.kill(self.rank(out, 1), signal.SIGTERM)
        text = self.ended(process, signal.SIGTERM, out)
        self.assertEqual((checkpoints(out), self.lines(out)), (["step-000002"], 1), text)
        self.train("out", "--resume-required", *arguments)
        results = [[{k: line[k] for k in ("epoch", "step", "train_loss", "val_loss", "val_top1")} for line in self.metrics(folder)]
                   for folder in (whole, out)]
        self.assertEqual(results[0], results[1])

    def test_a_second_signal_ends_at_once(self):
        out = self.path("out")
        process = self.start(out, *self.LONG, ranks=2)
        self.wait_for(lambda: self.lines(out) > 1, process)
        first, second = self.rank(out, 0), self.rank(out, 1)
        os.kill(second, signal.SIGSTOP)  # so that rank 0 cannot finish its step
        self.addCleanup(lambda: subprocess.run(["kill", "-KILL", str(second)], capture_output=True))
        for pause in (0.3, 1.2):
            os.kill(first, signal.SIGTERM)
            time.sleep(pause)
            self.assertTrue(os.path.exists(f"/proc/{first}"), "two signals within a second are one")
        os.kill(first, signal.SIGTERM)
        self.wait_for(lambda: process.poll() is not None or not os.path.exists(f"/proc/{first}/exe"), process)
        self.assertFalse(os.path.exists(self.at(out)))


class Commands(Checkpoints):
    def test_list_verify_and_diff(self):
        folder = self.train("out")
        listed = run("checkpoint", "list", folder)
        self.assertEqual(listed.status, 0, listed)
        self.assertEqual([line.split(",")[0] for line in listed.out.splitlines()], ["epoch-0001  step 4", "epoch-0002  step 8"])
        entries = json.loads(run("checkpoint", "list", folder, "--json").out)
        self.assertEqual([(e["name"], e["step"], e["epoch"], e["ranks"]) for e in entries],
                         [("epoch-0001", 4, 1, 2), ("epoch-0002", 8, 2, 2)])
        self.assertEqual(run("checkpoint", "verify", folder).out, "epoch-0001: verifies\nepoch-0002: verifies\n")

        a, b = self.at(folder, "epoch-0001"), self.at(folder, "epoch-0002")
        for arguments in ([folder, "epoch-0001", "epoch-0002"], [a, b]):
            result = run("checkpoint", "diff", *arguments, "--json")
            self.assertEqual(result.status, 0, result)
            diff = json.loads(result.out)
            self.assertEqual({d["key"]: (d["a"], d["b"]) for d in diff["metadata"]}["step"], ("4", "8"))
            of_model = {d["name"]: d for d in diff["tensors"] if d["file"] == "model.safetensors"}
            x, y = load(os.path.join(a, "model.safetensors")), load(os.path.join(b, "model.safetensors"))
            self.assertEqual(set(of_model), {k for k in x if not np.array_equal(x[k], y[k])})
            for name, d in of_model.items():
                delta = np.abs(x[name].astype("f8") - y[name])
                self.assertEqual((d["largest"], d["different"], d["values"]), (delta.max(), (delta > 0).sum(), delta.size))
                self.assertAlmostEqual(d["relative"], np.linalg.norm(delta) / np.linalg.norm(x[name].astype("f8")), places=9)
        self.assertEqual(run("checkpoint", "diff", a, a).out, "no difference\n")
        self.assertIn("model.safetensors fc.bias: ", run("checkpoint", "diff", a, b).out)

        damage(os.path.join(a, "model.safetensors"))
        os.remove(os.path.join(b, "state-rank0000.safetensors"))
        result = run("checkpoint", "verify", folder)
        self.assertEqual((result.status, len(result.out.splitlines())), (1, 2), result)
        self.assertIn("epoch-0001: " + os.path.join(a, "model.safetensors") + ": is damaged", result.out)
        self.assertIn("epoch-0002: " + os.path.join(b, "state-rank0000.safetensors") + ": cannot be read", result.out)
        verified = json.loads(run("checkpoint", "verify", a, "--json").out)
        self.assertEqual([(v["name"], v["verifies"], len(v["errors"])) for v in verified], [("epoch-0001", False, 1)])
        self.assertEqual(run("checkpoint", "list", self.path("absent")).status, 1)
        self.assertEqual(run("checkpoint", "diff", folder).status, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
