"""Seconds of a step, measured: a few steps of each run that is not done, in a folder that is removed
again."""

import json
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import program

from . import tables

LINE = re.compile(r"step (\d+)/\d+ \|.*\| ([0-9.]+) ms \|")


def measure(launcher, runs, folders, count, tell, jobs=1):
    """{digest: seconds}. Runs that differ in seed and epochs only are timed once: as many copies at once as
    there will be jobs, since these share the machine. A failure is told, and is no estimate."""
    groups = {}
    for run in runs:
        if not tables.is_done(folders[run.digest], run.digest):
            groups.setdefault(alike(run), []).append(run)
    at_once = max(1, min(jobs, sum(map(len, groups.values()))))
    seconds = {}
    for group in groups.values():
        with ThreadPoolExecutor(at_once) as pool:
            results = list(
                pool.map(lambda slot, run=group[0]: steps(launcher, run, count, slot), range(at_once))
            )
        times = [mean_step(result.stdout) for result in results]
        failed = [result for result, each in zip(results, times) if result.returncode or each is None]
        if failed:
            reason = program.last_error(failed[0].stderr) or f"status {failed[0].returncode}"
            tell(f"{group[0].name}: not timed: {reason[:300]}")
        else:
            seconds.update({run.digest: sum(times) / len(times) for run in group})
    return seconds


def steps(launcher, run, count, slot):
    """Trains so many steps as one of the jobs."""
    with tempfile.TemporaryDirectory(prefix="lpsgd-study-") as folder:
        return subprocess.run(
            [*launcher.command(run, folder), "--steps", str(count)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=launcher.environment(slot),
            check=False,
        )


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
