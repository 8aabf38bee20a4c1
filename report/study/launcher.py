"""The command of a run, and what it needs: the program, an mpirun, and a configuration that the program
accepts."""

import itertools
import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import configuration
import program

from . import variables
from .yaml_file import StudyError


class Launcher:
    def __init__(self, study, executable):
        self.study = study
        self.executable = executable
        self.mpirun = study.mpirun
        self.is_open_mpi = False
        self.hosts = list(study.hosts)

    def check(self, runs):
        """{digest: why} of the runs whose configuration cannot be read, or that need an mpirun that is
        missing."""
        refused = {run.digest: run.problem or batch_problem(run) for run in runs}
        refused = {digest: problem for digest, problem in refused.items() if problem}
        need = [run for run in runs if self.needs_mpirun(run)]
        if need:
            try:
                self._check_mpirun()
            except StudyError as error:
                refused = {**{run.digest: str(error) for run in need}, **refused}
        return refused

    def _check_mpirun(self):
        where = self.study.where.get("launcher.mpirun", self.study.path)
        if not self.mpirun:
            self.mpirun = program.ask("version", "--json", executable=self.executable)["mpirun"]
        path = shutil.which(self.mpirun)
        if not path:
            raise StudyError(
                f"{where}: launcher.mpirun: no program '{self.mpirun}'; "
                "give the mpirun of the MPI library that lpsgd is linked with"
            )
        try:
            result = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StudyError(f"{where}: launcher.mpirun: {path} --version: {error}") from None
        self.is_open_mpi = "Open MPI" in result.stdout or "OpenRTE" in result.stdout

    def check_environment(self, runs):
        """{digest: why} of the runs that would end with an error when they read a quoted "${NAME}" of a
        variable that is not set."""
        refused = {}
        for run in runs:
            for key, name in variables.named(run.written):
                if name not in os.environ and name not in self.study.env:
                    refused[run.digest] = (
                        f"{self.study.path}: run '{run.label}': {key} needs the environment variable {name}, "
                        "which is not set"
                    )
                    break
        return refused

    def environment(self, slot):
        """Of a job, by its number from 0; the variables' values are used in turn."""
        return {**os.environ, **{name: values[slot % len(values)] for name, values in self.study.env.items()}}

    @staticmethod
    def needs_mpirun(run):
        return run.ranks > 1 and run.transport != "threads"

    def command(self, run, folder):
        words = [
            self.executable,
            "train",
            run.config,
            *run.set_options(),
            "--out",
            folder,
            "--resume",
            "--progress",
            "plain",
        ]
        if not self.needs_mpirun(run):
            return words
        hosts = []
        if self.hosts:
            hosts = ["--host" if self.is_open_mpi else "-hosts", ",".join(self.hosts)]
        return [self.mpirun, "-n", str(run.ranks), *hosts, *self.study.options, *words]

    def show(self, study, runs):
        """({digest: what `lpsgd show` says}, {digest: why it refuses}). The runs of several seeds are asked
        for once."""
        asked = {}
        for run in runs:
            sets = {key: value for key, value in run.sets.items() if key != "train.seed"}
            asked.setdefault(json.dumps([run.config, sets]), []).append(run)
        with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
            answers = list(pool.map(lambda group: self._show_one(study, group[0]), asked.values()))
        by_run = {run.digest: answer for group, answer in zip(asked.values(), answers) for run in group}
        shown = {digest: answer for digest, answer in by_run.items() if isinstance(answer, dict)}
        return shown, {digest: answer for digest, answer in by_run.items() if digest not in shown}

    def _show_one(self, study, run):
        """A dictionary, or why the program refuses the configuration."""
        try:
            words = ("show", run.config, *run.set_options(), "--json")
            shown = program.ask(*words, executable=self.executable, environment=variables.known(study.env))
            return data_problem(study, run) or shown
        except program.Refused as message:
            place = place_of(study, run, str(message))
            return f"{place}: {message}" if place else str(message)


def data_problem(study, run):
    """Training needs data, `lpsgd show` does not. None where the run names a data set."""
    if "dataset" in configuration.section(run.settings, "data"):
        return None
    return f"{place_of(study, run, '')}: {run.config}: data: the key 'dataset' is missing"


def batch_problem(run):
    """Why the program would refuse the batch size for the run's ranks; None if it would not."""
    batch, parts = run.batch_size, configuration.micro_batches(run.settings)
    ranks = "1 rank" if run.ranks == 1 else f"{run.ranks} ranks"
    sizes = configuration.section(run.settings, "train").get("batch_size")
    if isinstance(sizes, dict) and sizes and not {run.ranks, str(run.ranks)} & sizes.keys():
        known = ", ".join(map(str, sizes))
        return f"run '{run.label}': train.batch_size: has no batch size for {ranks}; it has those for {known}"
    if not batch or type(parts) is not int or parts < 1 or batch % (run.ranks * parts) == 0:
        return None
    more = f" with {parts} micro-batches each" if parts > 1 else ""
    return f"run '{run.label}': train.batch_size: {batch} samples cannot be divided evenly over {ranks}{more}"


def host_of_each_rank(hosts, ranks):
    """MPI fills the slots of one host after the other: A:2 has two, A has one."""
    slots = []
    for host in hosts:
        name, _, count = host.partition(":")
        slots += [name] * (int(count) if count.isdigit() and int(count) else 1)
    return list(itertools.islice(itertools.cycle(slots), ranks))


def place_of(study, run, message):
    """Where the study sets the key that the program's message names; nothing for one of the command line."""
    match = re.match(r"--set ([\w.\[\]]+)=", message)
    if match:
        for axis in study.axes:
            choice = next(c for c in axis.choices if c.label == run.choices[axis.name])
            if match[1] in choice.sets:
                return f"{choice.where}: axes.{axis.name}"
        if match[1] in study.given:
            return ""
        if match[1] in study.sets:
            return f"{study.where['set']}: set"
    return f"{study.where.get('config', study.path)}: config"
