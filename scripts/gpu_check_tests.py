"""Runs the tests of a build that CTest knows, several at once, without CTest: each has its own time limit, and its result is
known as soon as it ends. Of CTest's properties ENVIRONMENT, WORKING_DIRECTORY, TIMEOUT, RUN_SERIAL, DISABLED and those of
skipping count."""
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path


@dataclasses.dataclass
class Test:
    """As `ctest --show-only=json-v1` lists it."""

    name: str
    command: list
    properties: dict

    @classmethod
    def of(cls, listed):
        properties = {one["name"]: one["value"] for one in listed.get("properties", [])}
        command = list(listed.get("command", []))  # none: its program is not built
        if command and Path(command[0]).name.startswith("python"):  # the one of the machine that built it may lack PyTorch here
            command[0] = os.environ.get("LPSGD_PYTHON", command[0])
        return cls(re.sub(r"\s+# GetParam\(\) = .*", "", listed["name"]), command, properties)

    def environment(self):
        return dict(text.split("=", 1) for text in self.properties.get("ENVIRONMENT", []))

    def state(self, status, output):
        """run, notrun (skipped), emulated (skipped because it needs the emulated GPU), or "fail: ...". (CTest also calls those
        skipped that print what the property says, and then fail.)"""
        skips = status == self.properties.get("SKIP_RETURN_CODE", -1000) or status == 0 and any(
            re.search(pattern, output) for pattern in self.properties.get("SKIP_REGULAR_EXPRESSION", []))
        if skips:
            return "emulated" if "needs the emulated GPU" in output else "notrun"
        return "run" if status == 0 else f"fail: status {status}"


def listed(text):
    """The tests in what `ctest --show-only=json-v1` prints."""
    return [Test.of(one) for one in json.loads(text)["tests"]]


class Running:
    """A test in a session of its own, so that its children end with it."""

    def __init__(self, test, limit, log, environment, prepare):
        self.test, self.limit, self.log = test, limit, log
        self.begin = time.monotonic()
        with open(log, "w") as file:
            self.process = subprocess.Popen(test.command, cwd=test.properties.get("WORKING_DIRECTORY"), stdout=file,
                                            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=prepare,
                                            env={**os.environ, **environment, **test.environment()})

    def state(self):
        """As Test.state(), or None while it goes on."""
        status = self.process.poll()
        if status is None and time.monotonic() - self.begin <= self.limit:
            return None
        self.kill()
        if status is None:
            return f"fail: not done after {self.limit:.0f} s"
        return self.test.state(status, Path(self.log).read_text(errors="replace"))

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, and so have its children
            pass
        self.process.wait()


def is_serial(test):
    return bool(test.properties.get("RUN_SERIAL"))


def run(tests, beside, limit, folder, environment, prepare, may_start, is_over, ended):
    """Runs `tests`, at most `beside` at once, each for at most `limit` seconds. What it prints is a file in `folder`. No more
    are started once may_start() is false. Tests with RUN_SERIAL come last, each by itself. Calls ended(test, state, log) for
    each, in any order. Ends when all have, or when is_over(). Returns those that were killed then, with the time at which each
    had begun."""
    folder.mkdir(exist_ok=True)
    waiting, running = sorted(tests, key=is_serial), []
    try:
        while True:
            if is_over():
                return [(one.test, one.begin) for one in running]
            while waiting and len(running) < (1 if is_serial(waiting[0]) else beside) and may_start():
                test = waiting.pop(0)
                if not test.command or test.properties.get("DISABLED"):
                    ended(test, "notrun", "")
                    continue
                log = folder / (re.sub(r"[^\w.-]+", "_", test.name) + ".log")
                try:
                    running.append(Running(test, min(limit, test.properties.get("TIMEOUT", limit)), log, environment, prepare))
                except OSError as error:
                    ended(test, f"fail: {error}", log)
            if not running:
                return []
            for one in list(running):
                if (state := one.state()) is not None:
                    running.remove(one)
                    ended(one.test, state, one.log)
            time.sleep(0.02)
    finally:
        for one in running:
            one.kill()
