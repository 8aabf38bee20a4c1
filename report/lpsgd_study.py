#!/usr/bin/python3
"""Trains every run of a grid, and writes a table of all runs and epochs: docs/study.md.

    lpsgd study STUDY.yaml [--out DIR] [--jobs N] [--only AXIS=VALUES]... [--set KEY=VALUE]...
                [--dry-run [--time-steps N]]

Ends with 0 when all runs are done, 1 when some failed or cannot start, 2 for a mistake in the study's file,
or where no run can start, 128 + n when signal n ended it. The same command goes on where it stopped.
"""

import os
import sys

import command
import modules
import program
from errors import UserError

modules.require(__file__, "thrift", "yaml")
from study import definition, estimate, grid, launcher, runner, timing  # noqa: E402


def arguments():
    parser = command.Parser(
        prog="lpsgd study", description="Trains every run of a grid; resumes where it stopped."
    )
    parser.add_argument(
        "study", metavar="STUDY.yaml", help="axes, exclusions, target, launcher: docs/study.md"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="runs and tables go there (default runs/<name of the study>)"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=command.whole(1, 1024),
        help="so many runs at once (default: the study's, else 1)",
    )
    parser.add_argument(
        "--only",
        metavar="AXIS=VALUES",
        action="append",
        default=[],
        help="the runs with one of these values, as in ranks=[1, 2] and codec=none; several",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of the configuration for all runs, as in the study's `set`; several",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the runs, their bytes and estimated time, and stop"
    )
    parser.add_argument(
        "--time-steps",
        metavar="N",
        type=command.whole(2, 1_000_000),
        help="with --dry-run: train N steps of each kind of run to estimate the time",
    )
    parsed = parser.parse_args()
    if parsed.time_steps is not None and not parsed.dry_run:
        parser.error(f"--time-steps {parsed.time_steps} belongs to --dry-run")
    return parsed


def dry_run(start, every_run, runs, shown, out, jobs, steps, refused):
    def tell(text):
        print(f"lpsgd study: {text}", file=sys.stderr)

    folders = runner.find_folders(out, every_run)
    able = [run for run in runs if run.digest not in refused]
    timed = timing.measure(start, able, folders, steps, tell, out, jobs) if steps else None
    print("\n".join(estimate.lines(runs, shown, jobs, folders, timed, start.hosts, every_run)))
    for run in runs:
        if run.digest in refused:
            tell(f"{run.name}: {refused[run.digest]}")
    return 1 if refused else 0


def check(start, study, runs, needs_environment):
    """What `lpsgd show` says of the runs, and {digest: why} of those that cannot start. UserError where no
    run can start."""
    refused = start.check(runs)
    shown, more = start.show(study, [run for run in runs if not run.problem])
    refused = {**more, **refused}
    if needs_environment:
        refused = {**start.check_environment(runs), **refused}
    if len(refused) == len(runs):
        raise UserError(refused[runs[0].digest])
    return shown, refused


@command.refuses("lpsgd: error: study", UserError)
def main():
    options = arguments()
    lock = None
    try:
        study = definition.load(options.study, options.set, options.only)
        jobs = options.jobs or study.jobs
        every_run = grid.expand(study)
        runs = grid.chosen(study, every_run)
        start = launcher.Launcher(study, program.find())
        shown, refused = check(start, study, runs, not options.dry_run or options.time_steps)
        out = options.out or os.path.join("runs", study.name)
        if options.dry_run:
            return dry_run(start, every_run, runs, shown, out, jobs, options.time_steps, refused)
        lock = runner.Lock(out)
        return runner.Runner(study, every_run, runs, start, out, jobs, refused).all()
    finally:
        if lock:
            lock.release()


if __name__ == "__main__":
    sys.exit(main())
