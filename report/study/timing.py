"""Seconds of a step, measured: a few steps of each run that is not done, in a folder that is removed
again."""

import contextlib
import copy
import dataclasses
import json
import os
import re
import tempfile

import program
import synchronisation
import warmup
from configuration import section
from words import is_of

from . import children, estimate, grid, tables
from .yaml_file import StudyError

LINE = re.compile(r"step (\d+)/\d+ \|.*\| ([0-9.]+) ms \|")


def measure(launcher, runs, folders, count, tell, out, jobs=1):
    """{digest: seconds}. Runs that differ in seed and epochs only are timed once: as many copies at once as
    there will be jobs, since these share the machine. A failure is told, and is no estimate. The folders go
    into `out`, which all hosts have."""
    left = [run for run in runs if not tables.is_done(folders[run.digest], run.digest)]
    if not left:
        return {}
    at_once = min(jobs, len(left))
    parts = {run.digest: all_parts(run, *estimate.rest(run, folders[run.digest]), count) for run in left}
    seconds = {}  # of what has been timed
    with children.signals_unwind(), made(out):
        for form, steps in dict.fromkeys(part[1:] for each in parts.values() for part in each):
            seconds[form.key, steps] = one(launcher, form.run, steps, at_once, tell, out)
    found = {}
    for digest, each in parts.items():
        known = [(share, seconds[form.key, steps]) for share, form, steps in each]
        if all(value is not None for _, value in known):
            found[digest] = sum(share * value for share, value in known)
    return found


@dataclasses.dataclass(frozen=True)
class Form:
    """Of a run: with one way to synchronise."""

    key: str
    run: object = dataclasses.field(compare=False)


def form(run, sync=None):
    """`sync`: in place of the run's."""
    if sync is not None:
        run = with_values(run, {"sync": sync})
    return Form(alike(run), run)


def with_values(run, changed):
    """The run with other values of these keys."""
    sets = {key: value for key, value in run.sets.items() if not is_of(key, changed)}
    settings = copy.deepcopy(run.settings)
    for key, value in changed.items():
        grid.assign(settings, key.split("."), value)
    return dataclasses.replace(run, sets={**sets, **changed}, settings=settings)


def all_parts(run, rest, warm, count):
    """As parts_of(), where the steps of `warm` send float32."""
    if not warmup.epochs(run.settings):
        return parts_of(run, rest, count)
    return [
        (share * part.steps / rest.steps, *more)
        for part, changed in ((warm, warmup.FLOAT32), (rest - warm, warmup.NONE))
        if part.steps
        for share, *more in parts_of(with_values(run, changed), part, count)
    ]


def parts_of(run, rest, count):
    """[(share of the steps that are left, form, steps to time)]. Local steps are timed over whole phases,
    with the H that they end with. More exchanges than these have, as in a warm-up, count as steps of
    every_step."""
    kind, sync = synchronisation.kind_of(run.settings), section(run.settings, "sync")
    h = synchronisation.whole(sync, "steps", 1)
    phase = h * synchronisation.whole(sync, "block_steps", 1)
    if kind == "every_step" or phase == 1:
        return [(1.0, form(run), count)]
    settled = {key: value for key, value in sync.items() if key not in ("warmup", "warmup_epochs", "from")}
    settled["distance"] = False  # is measured once an epoch, which in a few steps would be too often
    if kind == "post_local_sgd":
        settled["kind"] = "local_sgd"
    every = rest.total / rest.steps if rest.steps else 0.0
    share = min(1.0, max(0.0, (every - 1 / h) / (1 - 1 / h))) if h > 1 else 0.0
    whole_phases = 1 + phase * -(-(count - 1) // phase)
    parts = [(share, form(run, {"kind": "every_step"}), count), (1 - share, form(run, settled), whole_phases)]
    return [part for part in parts if part[0] > 0]


@contextlib.contextmanager
def made(out):
    """The folder; what had to be made for it is removed again, if nothing was put there meanwhile."""
    missing, path = [], os.path.abspath(out)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    try:
        os.makedirs(out, exist_ok=True)
    except OSError as error:
        raise StudyError(f"--out {out}: cannot be made: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                os.rmdir(path)


def one(launcher, run, count, at_once, tell, out):
    """Seconds of a step, or None."""
    trials = steps(launcher, run, count, at_once, out)
    times = [mean_step(said) for _, said, _ in trials]
    failed = [(status, errors) for (status, _, errors), each in zip(trials, times) if status or each is None]
    if not failed:
        return sum(times) / len(times)
    status, errors = failed[0]
    tell(f"{run.name}: not timed: {(program.last_error(errors) or f'status {status}')[:300]}")
    return None


def steps(launcher, run, count, at_once, out):
    """Trains so many steps in so many jobs: (status, output, errors) of each. An exception ends them all, and their
    folders are removed."""
    with contextlib.ExitStack() as stack:

        def text():
            return stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))

        started = []
        folders = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="time-steps-", dir=out)) for _ in range(at_once)
        ]
        stack.callback(lambda: children.end([process for process, *_ in started if process.poll() is None]))
        for slot, folder in enumerate(folders):
            command = [*launcher.command(run, folder), "--steps", str(count)]
            said, errors = text(), text()
            process = children.start(command, stdout=said, stderr=errors, env=launcher.environment(slot))
            started.append((process, said, errors))
        return [(process.wait(), whole(said), whole(errors)) for process, said, errors in started]


def whole(file):
    file.seek(0)
    return file.read()


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
