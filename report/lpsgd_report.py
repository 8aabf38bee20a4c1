#!/usr/bin/python3
"""One figure, and a table, from one or more run folders of lpsgd.

    lpsgd_report.py RUN_FOLDER... --out figure.png [--table]

Needs Debian's python3-matplotlib, python3-pandas and python3-yaml. Ends with 2 and one line on standard
error when one of them is missing or a folder cannot be read.
"""

import argparse
import sys

import modules

modules.require(__file__, "matplotlib", "pandas", "yaml")
import runs  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(
        description="Accuracy per epoch, and communication and computation per epoch, of lpsgd's runs."
    )
    parser.add_argument("folders", nargs="+", metavar="RUN_FOLDER", help="holds metrics.jsonl and config.yaml")
    parser.add_argument("--out", metavar="FIGURE", help="write the figure here: .png, .pdf or .svg")
    parser.add_argument("--table", action="store_true", help="print one line per run")
    parsed = parser.parse_args()
    if not parsed.out and not parsed.table:
        parser.error("nothing to do: give --out FIGURE, --table or both")
    return parsed


def main():
    options = arguments()
    try:
        read = [runs.read_run(folder) for folder in options.folders]
        runs.label_runs(read)
        if options.table:
            import table

            print(table.text(read))
        if options.out:
            import figure

            figure.save(read, options.out)
    except (runs.RunError, OSError) as error:
        print(f"lpsgd_report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
