#!/usr/bin/python3
"""Ten mishaps, each as small as it can be, and what a program makes of them. For each: what happened, and whether that is
right. The program may be of any revision; what it lacks counts as wrong.

    LPSGD=build/release/lpsgd tests/cli/mishaps_test.py [NAME]...     the status is 1 if anything is wrong

Two jobs on the same cores are measured only if they are named (shared-cores): that needs a machine with nothing else on it.
"""

import glob
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

from harness import CONFIG, LPSGD, MPIRUN, Case, checkpoints, load, np
from jobs import Job, mpirun

LONG = ("--set", "train.epochs=1000000", "--set", "checkpoint.every_epochs=0")
MEMORY = 8 << 30  # of a program's addresses, for those that read without end


class Mishap(Case):
    """One of them: a folder, and ways to run the program."""

    def runTest(self):
        pass

    def run_for(self, seconds, *command, limited=False):
        """(status, output); "runs on" if it has not ended by then. It is killed then."""
        job = Job(self, command) if not limited else LimitedJob(self, command)
        deadline = time.monotonic() + seconds
        while job.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        status = "runs on" if job.process.poll() is None else job.process.returncode
        text = job.out() + job.err()
        job.end()
        return status, text

    def train(self, *arguments, seconds=60, ranks=2, out="out"):
        return self.run_for(seconds, *mpirun(ranks, LPSGD, "train", self.config, "--out", self.path(out), *arguments))

    def training(self, *arguments, ranks=2, out="out"):
        """A run in whose steps something shall happen."""
        command = [LPSGD, "train", self.config, "--out", self.path(out), *LONG, *arguments]
        job = Job(self, mpirun(ranks, *command) if ranks else command)
        try:
            job.wait_until(lambda: self.epochs(out) > 1, 30)
        except AssertionError:
            raise Wrong(f"does not train: {last_line(job.out() + job.err())}") from None
        return job

    def ended(self, job, seconds):
        deadline = time.monotonic() + seconds
        while (job.process.poll() is None or job.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return "runs on" if job.process.poll() is None else job.process.returncode

    def epochs(self, out="out"):
        try:
            with open(self.path(out, "metrics.jsonl")) as file:
                return file.read().count("\n")
        except OSError:
            return 0

    def saved(self, out="out"):
        try:
            return [name for name in checkpoints(self.path(out)) if not name.startswith(".")]
        except OSError:
            return []


class LimitedJob(Job):
    def __init__(self, case, command):
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
        try:
            super().__init__(case, command)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


class Wrong(Exception):
    pass


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Abort(")]
    errors = [line for line in lines if re.search(r"error:|terminate called|Segmentation|BAD TERM", line)]
    return (errors or lines or ["nothing"])[-1].strip()[:160]


def happened(status, text):
    return f"status {status}: {last_line(text)}" if status != "runs on" else "runs on"


def check(right, what):
    if not right:
        raise Wrong(what)
    return what


def other_settings(at):
    """One rank has another learning rate, number of steps, or `--resume`."""
    said = []
    for option in (["--set", "schedule.lr=0.1"], ["--steps", "3"], ["--resume"]):
        command = [LPSGD, "train", at.config, "--out", at.path("out")]
        status, text = at.run_for(15, MPIRUN, "-n", 1, *command, ":", "-n", 1, *command, *option)
        name = option[-1].split("=")[0]
        said.append(check(status == 2 and name in text, f"{name} on one rank: {happened(status, text)}"))
    return "; ".join(said)


def one_folder(at):
    """A second job in the folder of one that runs: a new one, and one that resumes."""
    first = at.training("--set", "checkpoint.every_epochs=1")
    said = []
    for how in ((), ("--resume",)):
        status, text = at.train(*how, "--steps", "1", seconds=20)
        said.append(f"the second{' with --resume' if how else ''}: {happened(status, text)}")
        check(first.process.poll() is None, said[-1] + "; the first has ended")
        check(status == 2, "; ".join(said))
    return "; ".join(said)


def signals(at):
    """SIGTERM at a rank, long before the first checkpoint is due."""
    job = at.training()
    os.kill(job.ranks()[1], signal.SIGTERM)
    status = at.ended(job, 30)
    return check(status == 143 and at.saved(), f"{happened(status, job.out())}; checkpoints: {at.saved() or 'none'}")


def stopped_rank(at):
    """A rank that stands still. Others may wait for five seconds."""
    try:
        job = at.training("--set", "exchange.timeout=5s", "--set", "exchange.timeout_outside_step=5s")
    except Wrong as e:
        raise Wrong(f"there is no limit: {e}") from None
    os.kill(job.ranks()[1], signal.SIGSTOP)
    status = at.ended(job, 25)
    errors = [line for line in job.err().splitlines() if "lpsgd: error" in line]
    return check(status not in (0, "runs on") and len(errors) == 1 and "rank 1" in errors[0] and not job.processes(),
                 happened(status, job.err()))


def nested_brackets(at):
    """A manifest of 300,000 brackets, read by two ranks under UCX's signal handlers."""
    at.train("--set", "train.epochs=1")
    paths = glob.glob(at.path("out", "checkpoints", "*", "manifest.json"))
    check(paths, "there is no manifest to change")
    for path in paths:
        with open(path) as file:
            manifest = json.load(file)
        with open(path, "w") as file:
            file.write(json.dumps(dict(manifest, step="@")).replace('"@"', "[" * 300_000 + "]" * 300_000))
    status, text = at.train("--resume", "--set", "train.epochs=1")
    told = text.count("is passed over") >= len(paths) if status == 0 else text.count("lpsgd: error") == 1
    return check(status in (0, 1, 2) and told and "Segmentation" not in text and "BAD TERMINATION" not in text, happened(status, text))


def poisoned_checkpoint(at):
    """A step that makes weights overflow, after which the run ends."""
    status, text = at.train("--set", "schedule.lr=1.0e+38", "--set", "optimizer.weight_decay=1.0e+10", "--steps", "1")
    bad = [name for name in at.saved() for tensor in load(at.path("out", "checkpoints", name, "model.safetensors")).values()
           if not np.isfinite(tensor).all()]
    return check(status == 1 and not bad, f"{happened(status, text)}; checkpoints that are not finite: {sorted(set(bad)) or 'none'}")


def damaged_checkpoint(at):
    """A damaged checkpoint and a strange folder beside the newest one; then the newest damaged."""
    at.train()
    said = []
    os.makedirs(at.path("out", "checkpoints", "epoch-0077"))
    for name, epochs in (("epoch-0001", 3), ("epoch-0003", 4)):
        model = at.path("out", "checkpoints", name, "model.safetensors")
        if os.path.exists(model):
            os.truncate(model, 100)
        status, text = at.train("--resume", "--set", f"train.epochs={epochs}", "--set", "checkpoint.keep=9")
        said.append(check(status == 0 and at.epochs() == epochs, f"{name} damaged: {happened(status, text)}, {at.epochs()} epochs"))
    return "; ".join(said)


def sigusr1_without_mpirun(at):
    """As Slurm sends it before the end of a job's time."""
    job = at.training(ranks=None)
    job.process.send_signal(signal.SIGUSR1)
    status = at.ended(job, 20)
    return check(status == 138 and at.saved(), f"{happened(status, job.out())}; checkpoints: {at.saved() or 'none'}")


def endless_input(at):
    """A device and a pipe as configuration; a configuration of one long line; 40,000 keys."""
    os.mkfifo(at.path("pipe"))
    files = {"/dev/zero": "/dev/zero", "a pipe": at.path("pipe"),
             "50 MB in a line": at.write("long.yaml", "a: " + "x" * 50_000_000),
             "40,000 keys": at.write("keys.yaml", "a: {" + ", ".join(f"k{i}: 1" for i in range(40_000)) + "}\n")}
    said = []
    for name, path in files.items():
        began = time.monotonic()
        status, text = at.run_for(20, LPSGD, "show", path, limited=True)
        said.append(check(status == 2 and "memory" not in text and time.monotonic() - began < 15, f"{name}: {happened(status, text)}"))
    return "; ".join(said)


def junk_in_files(at):
    """A line of junk in metrics.jsonl, 4096 threads, and a link planted where config.yaml is written."""
    at.train("--set", "train.epochs=1")
    with open(at.path("out", "metrics.jsonl"), "w") as file:
        file.write("\x1b[2Junk\n")
    status, text = at.train("--resume")
    said = [check(status == 1 and "metrics.jsonl:1" in text and "parse_error" not in text and "\x1b" not in text,
                  f"junk: {happened(status, text)!r}")]
    status, text = at.train("--set", "train.threads=4096", out="threads", seconds=20)
    said.append(check(status == 2 and "train.threads" in text, f"4096 threads: {happened(status, text)}"))
    at.write("precious", "precious")
    os.makedirs(at.path("linked"))
    os.symlink(at.path("precious"), at.path("linked", "config.yaml.new"))
    status, text = at.train("--steps", "1", out="linked")
    with open(at.path("precious")) as file:
        kept = file.read() == "precious"
    said.append(check(kept, f"a planted link: the file it leads to is {'kept' if kept else 'overwritten'}"))
    return "; ".join(said)


def shared_cores(at):
    """Two jobs of two threads at once on two cores: of half a job's speed alone, each shall keep 0.8."""
    config = at.write("cores.yaml", CONFIG.replace("train_samples: 96", "train_samples: 2400").replace("threads: 1", "threads: 2"))
    cores = sorted(os.sched_getaffinity(0))[:2]

    def seconds(jobs):
        running = [subprocess.Popen(["taskset", "-c", ",".join(map(str, cores)), LPSGD, "train", config, "--out", at.path(f"c{jobs}-{i}")],
                                    stdout=subprocess.DEVNULL) for i in range(jobs)]
        began = time.monotonic()
        for job in running:
            job.wait(timeout=600)
        return time.monotonic() - began

    share = 2 * seconds(1) / seconds(2)
    return check(share >= 0.8, f"{share:.2f} of the fair share")


MISHAPS = {"other-settings": other_settings, "one-folder": one_folder, "signals": signals, "stopped-rank": stopped_rank,
           "nested-brackets": nested_brackets, "poisoned-checkpoint": poisoned_checkpoint, "damaged-checkpoint": damaged_checkpoint,
           "sigusr1-without-mpirun": sigusr1_without_mpirun, "endless-input": endless_input, "junk-in-files": junk_in_files,
           "shared-cores": shared_cores}


def main(names):
    for name in names:
        if name not in MISHAPS:
            sys.exit(f"{name}: no such mishap; there are {', '.join(MISHAPS)}")
    wrong = []
    for name in names or [name for name in MISHAPS if name != "shared-cores"]:
        at = Mishap()
        at.setUp()
        try:
            result, what = "right", MISHAPS[name](at)
        except (Wrong, AssertionError, KeyError, OSError) as e:
            result, what = "WRONG", str(e).split("\n--- out")[0].strip() or repr(e)
            wrong.append(name)
        finally:
            at.doCleanups()
        print(f"{result}  {name}: {MISHAPS[name].__doc__.strip()}\n       {what}", flush=True)
    print(json.dumps({"program": LPSGD, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
