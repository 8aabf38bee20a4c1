"""Starts the runs of a grid, so many at once, and waits for them. What is done is skipped, what was
interrupted is resumed.

A run's processes die with the study (children.py), so a study that was killed leaves nothing behind that
holds a run's folder.
"""

import errno
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass

import files
import program
from words import counted

from . import children
from .measures import number
from .progress import Clock, Progress, epochs_of
from .tables import Tables, is_done
from .yaml_file import StudyError

IN_USE_SECONDS = 120  # processes of a killed study end within this time


@dataclass
class Child:
    run: object
    process: subprocess.Popen
    log: str
    log_start: int  # where this attempt's lines begin
    slot: int  # which of the jobs, from 0


class Lock:
    """At most one study writes to a folder."""

    def __init__(self, out):
        try:
            os.makedirs(os.path.join(out, "runs"), exist_ok=True)
            self.file = open(os.path.join(out, "study.lock"), "a+", encoding="utf-8")
        except OSError as error:
            raise StudyError(f"--out {out}: cannot be made: {error.strerror}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.file.seek(0)
            holder = self.file.read(200).strip()
            if error.errno == errno.EWOULDBLOCK:
                self.file.close()
                raise StudyError(
                    f"--out {out}: is in use by {holder or 'another study'}; wait for it to end, or give another folder"
                ) from None
            other = f"; {holder} has not released it" if holder else ""
            print(
                f"lpsgd study: --out {out}: this file system has no locks ({error.strerror}){other}. Only one study "
                "may write there at a time",
                file=sys.stderr,
            )
        try:
            self.file.truncate(0)
            self.file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
            self.file.flush()
        except OSError:
            pass  # the text only improves the message of other studies

    def release(self):
        try:
            self.file.truncate(0)
        except OSError:
            pass
        self.file.close()


def find_folders(out, runs):
    """{digest: folder}, by the digest at the end of their names, whose readable part changes with the study's
    axes. Its first 16 digits, or, of earlier studies, 8, where the folder's study.json names no other digest.
    """
    folder = os.path.join(out, "runs")
    try:
        there = {name.rsplit("-", 1)[-1]: os.path.join(folder, name) for name in sorted(os.listdir(folder))}
    except OSError:
        there = {}

    def find(run):
        able = [there[digits] for digits in (run.digest[:16], run.digest[:8]) if digits in there]
        return next((path for path in able if _is_of(path, run.digest)), os.path.join(folder, run.name))

    return {run.digest: find(run) for run in runs}


def _is_of(folder, digest):
    """Whether the folder is of a run with this digest, as far as it says."""
    return files.read_json(os.path.join(folder, "study.json")).get("digest", digest) == digest


class Runner:

    def __init__(self, study, grid, runs, launcher, out, jobs, refused):
        """`runs`: those of the grid that are to be trained. `refused`: digest -> why the run cannot start."""
        self.study = study
        self.grid = grid
        self.runs = runs
        self.launcher = launcher
        self.out = out
        self.jobs = min(jobs, len(runs))
        self.folders = find_folders(out, grid)
        self.tables = Tables(study, grid, self.folder_of)
        self.clock = Clock(grid, jobs)
        self.progress = Progress(self.clock, len(runs))
        self.refused = refused
        self.failures = {}  # digest -> (run, error)
        self.problems = set()  # of writing the tables: each is said once
        self.children = []
        self.stopped_by = None

    def folder_of(self, run):
        return self.folders[run.digest]

    def is_done(self, run):
        return is_done(self.folder_of(run), run.digest)

    def all(self):
        """Runs the grid. Returns the exit status."""
        children.handle_signals(self._stop)
        done = {run.digest for run in self.runs if self.is_done(run)}
        for run in self.grid:
            self.clock.measure(run, self.folder_of(run))
        pending = [run for run in self.runs if run.digest not in done and run.digest not in self.refused]
        about_grid = about_study(self.study, self.folders, self.jobs)
        self._guarded(lambda: files.replace(os.path.join(self.out, "study.json"), about_grid))
        for run in self.grid:
            self._guarded(lambda run=run: rename(self.study, run, self.folder_of(run)))
        if done:
            self.progress.line(f"{len(done)} of {len(self.runs)} runs are done already")
        for run in self.runs:
            if run.digest in self.refused and run.digest not in done:
                self._fail(run, self.refused[run.digest])
        self._write_tables()
        waiting_since = time.monotonic()
        while (pending or self.children) and self.stopped_by is None:
            while pending and len(self.children) < self.jobs:
                run = next((r for r in pending if not in_use(self.folder_of(r))), None)
                if run is None and (self.children or time.monotonic() - waiting_since < IN_USE_SECONDS):
                    break
                run = run or pending[0]
                pending.remove(run)
                self._start(run)
                waiting_since = time.monotonic()
            self._collect(done, pending)
            unfinished = [child.run for child in self.children] + pending
            self.progress.update(
                len(done), len(self.failures), [c.run for c in self.children], unfinished, self.folder_of
            )
            if self.children or pending:
                time.sleep(children.POLL_SECONDS)
        if self.stopped_by is not None:
            self._end_children()
        for run in self.runs:
            if run.digest not in done and run.digest not in self.failures and self.is_done(run):
                done.add(run.digest)
        self._write_tables()
        return self._finish(done)

    def _stop(self, number, _frame):
        self.stopped_by = number

    def _number(self, run):
        return self.runs.index(run) + 1

    def _start(self, run):
        folder = self.folder_of(run)
        slot = min(set(range(self.jobs)) - {child.slot for child in self.children})
        command = self.launcher.command(run, folder)
        log = os.path.join(folder, "log.txt")
        try:
            os.makedirs(folder, exist_ok=True)
            content = about(self.study, run, command, *self._beside(folder))
            files.replace(os.path.join(folder, "study.json"), content)
            with open(log, "ab") as file:
                file.write(f"$ {shlex.join(command)}\n".encode())
                file.flush()
                start = file.tell()
                environment = self.launcher.environment(slot)
                process = children.start(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        except OSError as error:
            return self._fail(run, f"{error.filename or log}: {error.strerror}")
        self.children.append(Child(run, process, log, start, slot))
        if not self.progress.is_terminal:
            self.progress.line(f"run {self._number(run)}/{len(self.runs)} started: {run.name}")
        return None

    def _beside(self, folder):
        """The jobs in force, and whether seconds count; of a run that goes on, the most jobs in force in any
        part of it, and whether the seconds of every part count."""
        if not os.path.isdir(os.path.join(folder, "checkpoints")):
            return self.jobs, self.study.is_timed
        before = files.read_json(os.path.join(folder, "study.json"))
        is_timed = self.study.is_timed and before.get("timed") is not False
        return max(self.jobs, number(before, "jobs") or 1), is_timed

    def _collect(self, done, pending):
        for child in list(self.children):
            status = child.process.poll()
            if status is None:
                continue
            self.children.remove(child)
            run = child.run
            if self.is_done(run):
                done.add(run.digest)
                running = [c.run for c in self.children]
                # The last thing that a run does is to end MPI, which may fail after everything is written.
                note = failure(child, status) if status else ""
                self.progress.finished(
                    self._number(run), run, running, running + pending, self.folder_of, note
                )
            else:
                self._fail(run, failure(child, status))
            self._write_tables()

    def _fail(self, run, error):
        self.failures[run.digest] = run, error
        self.tables.failed.add(run.digest)
        self.progress.line(f"run {self._number(run)}/{len(self.runs)} failed: {run.name}: {error}")

    def _write_tables(self):
        self._guarded(lambda: self.tables.write(self.out))

    def _guarded(self, write):
        """A disk that is full stops no run; it is said once, until writing works again."""
        try:
            write()
        except OSError as error:
            problem = f"{error.filename or self.out}: {error.strerror}; "
            problem += "the tables are not up to date, the runs go on"
            if problem not in self.problems:
                self.progress.line(f"lpsgd study: {problem}")
            self.problems.add(problem)
        else:
            self.problems.clear()

    def _end_children(self):
        self.progress.line(f"stopping {counted(len(self.children), 'run')}")
        children.end([child.process for child in self.children])
        self.children = []

    def _finish(self, done):
        total = len(self.runs)
        if self.stopped_by is not None:
            self.progress.line(
                f"interrupted: {len(done)} of {total} runs are done; the same command goes on from here"
            )
            return 128 + self.stopped_by
        left = f", {len(self.failures)} failed" if self.failures else ""
        where = "" if self.problems else f"; tables: {os.path.join(self.out, 'runs.csv')}, epochs.csv"
        self.progress.line(f"{len(done)} of {total} runs done{left}{where}")
        for run, error in self.failures.values():
            log = os.path.join(self.folder_of(run), "log.txt")
            self.progress.line(f"failed: {run.name}: {error}" + (f" ({log})" if os.path.isfile(log) else ""))
        return 1 if self.failures or self.problems else 0


def about_study(study, folders, jobs):
    """study.json of the grid: its axes, and its runs' folders in order."""
    target = {study.target[0]: study.target[1]} if study.target else None
    value = {
        "name": study.name,
        "target": target,
        "jobs": jobs,
        "timed": study.is_timed,
        "file": study.path,
        "axes": {axis.name: [choice.label for choice in axis.choices] for axis in study.axes},
        "runs": [os.path.basename(folder) for folder in folders.values()],
    }
    return json_text(value)


def rename(study, run, folder):
    """Gives a run's study.json the names of the study's present file: the report tells settings apart by them."""
    path = os.path.join(folder, "study.json")
    before = files.read_json(path)
    after = {**before, **names(study, run)}
    if before.get("digest") == run.digest and after != before:
        files.replace(path, json_text(after))


def names(study, run):
    """What a run's study.json says that may change without its settings."""
    return {"study": study.name, "label": run.label, "axes": run.values}


def json_text(value):
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def about(study, run, command, jobs, is_timed):
    """study.json of a run: what it is in the grid."""
    value = {
        **names(study, run),
        "digest": run.digest,
        "ranks": run.ranks,
        "epochs": epochs_of(run),
        "jobs": jobs,
        "timed": is_timed,
        "config": study.relative(run.config),
        "set": run.sets,
        "command": command,
    }
    return json_text(value)


def in_use(folder):
    """Whether a job holds the run's folder: one that a killed study has left, for a moment."""
    try:
        with open(os.path.join(folder, ".lock"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def failure(child, status):
    """How the attempt ended, and its last error."""
    if status == 0:
        return "ended without a whole summary.json"
    how = f"killed by signal {-status}" if status < 0 else f"status {status}"
    text = program.last_error(last_lines(child))
    return f"{how}: {text[:300]}" if text else how


def last_lines(child):
    """Of the attempt's log."""
    try:
        with open(child.log, "rb") as file:
            file.seek(child.log_start)
            return file.read()[-100_000:].decode(errors="replace")
    except OSError:
        return ""
