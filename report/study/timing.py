"""Seconds of a step, measured: a few steps of each run that is not done, in a folder that is removed
again."""

import json
import re
import subprocess
import tempfile

import program

from . import tables

LINE = re.compile(r"step (\d+)/\d+ \|.*\| ([0-9.]+) ms \|")


def measure(launcher, runs, folders, count, tell):
    """{digest: seconds}. Runs that differ in seed and epochs only are timed once. A failure is told, and is
    no estimate."""
    groups = {}
    for run in runs:
        if not tables.is_done(folders[run.digest], run.digest):
            groups.setdefault(alike(run), []).append(run)
    seconds = {}
    for group in groups.values():
        with tempfile.TemporaryDirectory(prefix="lpsgd-study-") as folder:
            command = [*launcher.command(group[0], folder), "--steps", str(count)]
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=launcher.environment(0),
                check=False,
            )
        each = mean_step(result.stdout)
        if result.returncode or each is None:
            reason = program.last_error(result.stderr) or f"status {result.returncode}"
            tell(f"{group[0].name}: not timed: {reason[:300]}")
        else:
            seconds.update({run.digest: each for run in group})
    return seconds


def alike(run):
    settings = {**run.settings}
    if isinstance(settings.get("train"), dict):
        settings["train"] = {k: v for k, v in settings["train"].items() if k not in ("seed", "epochs")}
    return json.dumps([settings, run.ranks], sort_keys=True)


def mean_step(text):
    """Of the program's lines, each the mean of the steps since the line before. The first step, which also
    allocates and tunes, is left out."""
    before, total = 1, 0.0
    for match in LINE.finditer(text):
        step = int(match[1])
        if step > before:
            total += float(match[2]) / 1000 * (step - before)
            before = step
    return total / (before - 1) if before > 1 else None
