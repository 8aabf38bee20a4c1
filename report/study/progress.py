"""What a study prints: one line that is rewritten on a terminal, else a line for each run that starts or
ends."""

import os
import shutil
import sys
import time

import command
import run_length

from . import measures


def duration(seconds):
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours // 24}d{hours % 24:02}h" if hours >= 48 else f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{seconds % 60:02}s"


class Clock:
    """The time left for the grid, from the epochs measured so far."""

    def __init__(self, runs, jobs):
        self.runs = runs
        self.jobs = jobs
        self.measured = {}  # digest -> (epochs, seconds)

    def measure(self, run, folder):
        records = measures.read_epochs(folder)
        self.measured[run.digest] = len(records), sum(measures.total_seconds(record) for record in records)

    def seconds_per_epoch(self, run):
        """Its own, else the mean over runs of the same task, ranks, batch, exchange and way to synchronise,
        else without regard to these two, else over runs of the task."""
        same = [r for r in self.runs if r.task == run.task]
        shaped = [r for r in same if (r.ranks, r.batch_size) == (run.ranks, run.batch_size)]
        alike = [r for r in shaped if exchange_of(r) == exchange_of(run)]
        for others in ([run], alike, shaped, same):
            known = [self.measured[r.digest] for r in others if self.measured.get(r.digest, (0, 0))[0]]
            if known:
                return sum(seconds for _, seconds in known) / sum(epochs for epochs, _ in known)
        return None

    def left(self, unfinished):
        """Seconds, or None where no run of a task has trained an epoch yet."""
        total = 0.0
        for run in unfinished:
            each = self.seconds_per_epoch(run)
            if each is None:
                return None
            total += each * max(0, epochs_of(run) - self.measured.get(run.digest, (0, 0))[0])
        return total / max(1, min(self.jobs, len(unfinished)))


def exchange_of(run):
    """What decides the seconds of its communication."""
    sync = run.settings.get("sync") or {"kind": "every_step"}
    return run.settings.get("exchange"), sync


def epochs_of(run):
    return run_length.epochs(run.settings)


class Progress:
    def __init__(self, clock, total, stream=None):
        self.clock = clock
        self.total = total
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self.shown = ""
        self.next_line = 0.0

    def line(self, text):
        """A line that stays."""
        try:
            self.stream.write(("\r\x1b[K" if self.shown else "") + text + "\n")
            self.stream.flush()
        except OSError:  # a reader that is gone, or a full disk behind a redirection: the runs go on
            self._drop()
        self.shown = ""

    def _drop(self):
        if self.stream is sys.stdout:
            command.drop_output()

    def update(self, done, failed, running, unfinished, folder_of):
        """On a terminal, at most once a second: done and total, the epochs of those that run, the time
        left."""
        if not self.is_terminal or time.monotonic() < self.next_line:
            return
        self.next_line = time.monotonic() + 1
        self._measure(running, folder_of)
        parts = [f"{done}/{self.total} runs"]
        if failed:
            parts.append(f"{failed} failed")
        for run in running:
            parts.append(f"{run.label} {self.clock.measured[run.digest][0]}/{epochs_of(run)}")
        parts.append(self.left_text(unfinished))
        text = " | ".join(part for part in parts if part)[: shutil.get_terminal_size().columns - 1]
        try:
            self.stream.write("\r\x1b[K" + text)
            self.stream.flush()
        except OSError:
            return self._drop()
        self.shown = text

    def _measure(self, runs, folder_of):
        for run in runs:
            self.clock.measure(run, folder_of(run))

    def left_text(self, unfinished):
        left = self.clock.left(unfinished) if unfinished else None
        return f"{duration(left)} left" if left is not None else ""

    def finished(self, number, run, running, unfinished, folder_of, note=""):
        """`note`: what went wrong after the run had written everything."""
        self._measure([run, *running], folder_of)
        records = measures.read_epochs(folder_of(run))
        parts = [f"run {number}/{self.total} done: {run.name}"]
        for key, text in (("val_top1", "top-1 {:.2f} %"), ("val_perplexity", "perplexity {:.2f}")):
            value = measures.number(records[-1], key) if records else None
            if value is not None:
                parts.append(text.format(value))
        parts += [
            duration(sum(measures.total_seconds(record) for record in records)),
            self.left_text(unfinished),
            f"ended with {note} after its summary was written" if note else "",
        ]
        self.line(" | ".join(part for part in parts if part))


def relative(path):
    """The shorter of the path and the path from here."""
    near = os.path.relpath(path)
    return near if len(near) < len(path) else path
