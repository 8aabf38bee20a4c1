"""What the commands share: their mistakes are one line on standard error and status 2, and Ctrl-C ends them with 130.
It is imported before modules that take time to load."""

import interrupts  # isort: skip

import argparse
import functools
import math
import signal
import sys


class Parser(argparse.ArgumentParser):
    """Mistakes in one line, as the lpsgd program's."""

    def error(self, message):
        name = self.prog.removeprefix("lpsgd ")
        print(f"lpsgd: error: {name}: {message}; '{self.prog} --help' lists the options", file=sys.stderr)
        sys.exit(2)


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


def refuses(prefix, *mistakes):
    """Of a command's main: one of the mistakes is one line after the prefix, and status 2."""

    def decorate(main):
        @functools.wraps(main)
        def run():
            try:
                interrupts.raise_from_now_on()
                return main() or 0
            except mistakes as error:
                print(f"{prefix}: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                return 128 + signal.SIGINT

        return run

    return decorate
