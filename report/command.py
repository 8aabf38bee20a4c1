"""What the commands share: their mistakes are one line on standard error and status 2, and Ctrl-C ends them with 130.
It is imported before modules that take time to load."""

import interrupts  # isort: skip

import argparse
import contextlib
import functools
import math
import os
import signal
import sys


class Parser(argparse.ArgumentParser):
    """Mistakes in one line, as the lpsgd program's."""

    def error(self, message):
        name = self.prog.removeprefix("lpsgd ")
        print(f"lpsgd: error: {name}: {message}; '{self.prog} --help' lists the options", file=sys.stderr)
        sys.exit(2)

    def parse_args(self, args=None, namespace=None):
        found = super().parse_args(args, namespace)
        for action in self._actions:
            given = getattr(found, action.dest, None)
            if "" in (given if isinstance(given, list) else [given]):
                self.error(f"{'/'.join(action.option_strings) or action.metavar or action.dest}: is empty")
        return found


def whole(least, most):
    """A type of options."""

    def parse(text):
        if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} to {most}")

    return parse


def number(least, most, what, is_open=False):
    """A type of options: a number from `least` to `most`, or above `least` with `is_open`."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if least <= value <= most and not (is_open and value == least):
            return value
        raise argparse.ArgumentTypeError(f"'{text}' is not {what}")

    return parse


def open_standard_streams():
    """Nothing is read from those that were closed before the process started, such as by >&-, and what is written to
    them goes nowhere. Otherwise the next file that is opened would take their place."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free, which is the stream's.
            file = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


open_standard_streams()


class OutputError(OSError):
    """Standard output cannot be written."""


class Output:
    """A file whose errors are OutputError."""

    def __init__(self, file):
        self._file = file

    def write(self, text):
        return self._try(self._file.write, text)

    def flush(self):
        self._try(self._file.flush)

    def _try(self, call, *arguments):
        try:
            return call(*arguments)
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None

    def __getattr__(self, name):
        return getattr(self._file, name)


def drop_output():
    """What is still to be written to standard output goes nowhere. Python would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def lost_output(prefix, error):
    print(f"{prefix}: standard output cannot be written: {error.strerror}", file=sys.stderr)
    drop_output()
    return 1


def refuses(prefix, *mistakes):
    """Of a command's main: one of the mistakes is one line after the prefix, and status 2. Without a reader of what it
    prints it ends with 1."""

    def decorate(main):
        @functools.wraps(main)
        def run():
            try:
                interrupts.raise_from_now_on()
                with contextlib.redirect_stdout(Output(sys.stdout)):
                    status = main() or 0
                    sys.stdout.flush()
                return status
            except OutputError as error:
                return lost_output(prefix, error)
            except mistakes as error:
                print(f"{prefix}: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                return 128 + signal.SIGINT

        return run

    return decorate
