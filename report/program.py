"""Asks the lpsgd program: `lpsgd show --json`, `lpsgd bench --json`."""

import functools
import json
import os
import re
import shutil
import subprocess

from errors import UserError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILDS = ("release", "cuda-release", "cpu-release", "cpu-openmpi")  # the optimised presets
SECONDS = 600  # more than any question takes


class Refused(UserError):
    """The program ended with an error: its message."""


def find():
    """LPSGD_PROGRAM, which the program sets; else an optimised build of these sources; else PATH's."""
    given = os.environ.get("LPSGD_PROGRAM")
    if given:
        if not os.access(given, os.X_OK):
            raise UserError(f"LPSGD_PROGRAM={given}: no program there")
        return given
    for build in BUILDS:
        path = os.path.join(ROOT, "build", build, "lpsgd")
        if os.access(path, os.X_OK):
            return path
    path = shutil.which("lpsgd")
    if not path:
        raise UserError("no program lpsgd; build it with scripts/build, or set LPSGD_PROGRAM to its path")
    return path


def ask(*words, executable=None, environment=None):
    """What the program prints as JSON. `environment`: in place of this process's."""
    command = [executable or find(), *words]
    said = " ".join(command)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env=environment,
            check=False,
        )
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"'{said}' did not end within {SECONDS} s") from None
    if done.returncode:
        message = last_error(done.stderr) or f"'{said}' ended with {done.returncode}"
        raise Refused(message.removeprefix("lpsgd: error: "))
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise UserError(f"'{said}' did not print JSON") from None


@functools.lru_cache(maxsize=None)
def show(config, overrides=()):
    """`lpsgd show CONFIG --json` with --set for each of `overrides`."""
    words = [word for override in overrides for word in ("--set", override)]
    return ask("show", config, "--json", *words)


# What a launcher says of a rank that ended, or of a program that cannot be started; advice follows.
LAUNCHER = re.compile(
    r"EXIT STRING: (.+)|(process rank .+ exited .+)|(execvp error on file .+)|(mpirun has detected .+)"
)


def last_error(text):
    """Of what the program wrote: the last line that is an error, else what the launcher says of it, else the last line,
    else nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    errors = [line for line in lines if "lpsgd: error:" in line]
    if not errors:
        errors = [next(filter(None, told.groups())) for told in map(LAUNCHER.search, lines) if told]
    return (errors or lines or [""])[-1]
