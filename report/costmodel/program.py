"""Asks the lpsgd program: `lpsgd show --json` and `lpsgd bench codec --json`."""

import functools
import glob
import json
import os
import subprocess

from costmodel.errors import CostModelError

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def path():
    """The program that started this one, else the newest build of this source folder."""
    given = os.environ.get("LPSGD_PROGRAM")
    if given:
        return given
    built = sorted(glob.glob(os.path.join(ROOT, "build", "*", "lpsgd")), key=os.path.getmtime)
    if not built:
        raise CostModelError(f"no lpsgd program in {ROOT}/build; build it, or set LPSGD_PROGRAM to its path")
    return built[-1]


def ask(*words):
    """What the program prints as JSON."""
    command = [path(), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CostModelError(f"{command[0]}: cannot be run: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[0]
        raise CostModelError(said.removeprefix("lpsgd: error: "))
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise CostModelError(f"'{' '.join(command)}' did not print JSON") from None


@functools.lru_cache(maxsize=None)
def show(config, overrides=()):
    """`lpsgd show CONFIG --json` with --set for each of `overrides`."""
    words = [word for override in overrides for word in ("--set", override)]
    return ask("show", config, "--json", *words)
