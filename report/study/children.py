"""Processes that a study starts: they end with it, and each leads a process group of its own."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.1
STOP_SECONDS = 60  # a run may write a checkpoint before it ends
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def start(command, **options):
    """A process that ends with the calling thread, also if that is killed."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
        **options,
    )


def die_with_parent(parent):
    def prepare():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def send(processes, number):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def end(processes):
    """SIGTERM to their groups; those that are still there after a minute are killed."""
    send(processes, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    send(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def handle_signals(handler):
    """What the process was started to ignore, such as SIGHUP under nohup, remains ignored. Returns the handlers
    before."""
    caught = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in caught}


@contextlib.contextmanager
def signals_unwind():
    """Within it a signal ends the program by an exception, so that what is open is closed; its status is 128 and
    the signal's number."""

    def leave(number, _frame):
        sys.exit(128 + number)

    before = handle_signals(leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
