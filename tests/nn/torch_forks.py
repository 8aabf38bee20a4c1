"""Processes that start with PyTorch, which takes seconds to load: one process loads it, and they are forks of that process."""

import multiprocessing
import os
import sys
import time

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch.distributed", "torch.fx", "torch.nn.parallel"])


def start(function, *arguments, stdout, stderr):
    """A process that calls the function, with these files as its streams. The two may be one file."""
    process = PROCESSES.Process(target=_call, args=(function, arguments, stdout, stderr), daemon=True)
    process.start()
    return process


def _call(function, arguments, stdout, stderr):
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream.fileno())
    function(*arguments)


def wait(processes, seconds):
    """The exit status of each; None of one that had to be killed because it did not end in time."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0, end - time.monotonic()))
    statuses = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return statuses
