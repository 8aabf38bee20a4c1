#!/usr/bin/python3
"""The report of one or more runs or studies of lpsgd.

    lpsgd report DIR|RUN... --out DIR            every figure and table, and one page: DIR/index.html
    lpsgd report RUN... --out figure.png         one figure: accuracy, and time per epoch
    lpsgd report DIR|RUN... --table              one line per run

Needs Debian's python3-matplotlib, python3-pandas, python3-scipy and python3-yaml. Ends with 2 and one line on standard
error when one of them is missing or a folder cannot be read.
"""

import os
import sys

import command
import modules
from errors import UserError

modules.require(__file__, "matplotlib", "pandas", "scipy", "yaml")
import runs  # noqa: E402


def arguments():
    parser = command.Parser(
        prog="lpsgd report",
        description="Figures and tables of runs: accuracy, time, bytes, and mean and deviation over seeds.",
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR|RUN", help="a run's folder, or a folder that lpsgd study wrote"
    )
    parser.add_argument(
        "--out", metavar="DIR|FIGURE", help="a folder for the whole report; or one figure: .png, .pdf or .svg"
    )
    parser.add_argument("--table", action="store_true", help="print one line per run")
    parser.add_argument(
        "--target",
        metavar="METRIC=VALUE",
        help="time and bytes to this, such as val_top1=90 (default: the study's)",
    )
    parser.add_argument(
        "--price",
        metavar="DOLLARS",
        type=command.number(0, 1e9, "a positive number", is_open=True),
        help="of one rank for an hour: adds the runs to price against accuracy",
    )
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="the runs trained beside other work: leave out seconds, samples per second and prices",
    )
    parser.add_argument(
        "--outlook",
        metavar="GIVEN.csv",
        help="adds the figures of lpsgd predict --outlook, calibrated on these cells",
    )
    parsed = parser.parse_args()
    if parsed.outlook and (not parsed.out or is_figure(parsed.out)):
        parser.error("--outlook belongs to --out DIR")
    if parsed.price and (not parsed.out or is_figure(parsed.out)):
        parser.error("--price belongs to --out DIR")
    if parsed.target and not parsed.table and is_figure(parsed.out or ""):
        parser.error("--target belongs to --out DIR or --table")
    if not parsed.out and not parsed.table:
        parser.error("nothing to do: give --out, --table or both")
    return parsed


def is_figure(path):
    """A file's ending; a folder that is there, or a name without one, is a folder."""
    return bool(os.path.splitext(path)[1][1:].isalpha()) and not os.path.isdir(path)


def outlook_items(cells):
    from costmodel import outlook

    return outlook.items(cells)[0]


@command.refuses("lpsgd: error: report", UserError, OSError)
def main():
    options = arguments()
    from view import gather, report

    asked = report.read_target(options.target) if options.target else None
    has_page = options.out and not is_figure(options.out)  # which names the runs that are left out
    read, target, unfinished = gather.read(options.folders, not options.untimed, not has_page)
    if asked:
        target = asked
        report.check_target(target, read)
    runs.label_runs(read)
    if options.table:
        import table

        print(table.text(read, target))
    if options.out and is_figure(options.out):
        import figure

        figure.save(read, options.out)
    elif options.out:
        outlook = outlook_items(options.outlook) if options.outlook else ()
        names = report.make(read, unfinished, options.out, target, options.price, outlook)
        page = os.path.join(options.out, "index.html")
        print(f"{page}: {len(names)} figures and tables, also in figures/ and tables/")


if __name__ == "__main__":
    sys.exit(main())
