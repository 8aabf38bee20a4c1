"""Jobs of several processes that are watched while they run, and whose processes are found wherever they are."""

import os
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path

from harness import CONFIG, LPSGD, MPIRUN, NETWORK, SOURCE, Case


class Job:
    """A command with a mark in its environment, which every process that it starts inherits."""

    def __init__(self, case, command, **environment):
        self.case, self.mark = case, f"LPSGD_TEST_MARK={uuid.uuid4().hex}"
        name, value = self.mark.split("=")
        self.paths = case.path(f"{value}.out"), case.path(f"{value}.err")
        with open(self.paths[0], "w") as out, open(self.paths[1], "w") as err:
            self.process = subprocess.Popen([str(c) for c in command], stdout=out, stderr=err, start_new_session=True,
                                            env={**os.environ, "OMP_NUM_THREADS": "1", **environment, name: value})
        case.addCleanup(self.end)

    def end(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(timeout=30)

    def processes(self):
        """By process number: the command line of each process of the job that runs (or is stopped)."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if self.mark.encode() not in file.read().split(b"\0"):
                        continue
                if self.state(int(name)) not in "ZX":
                    with open(f"/proc/{name}/cmdline", "rb") as file:
                        found[int(name)] = file.read().decode().split("\0")[:-1]
            except OSError:
                continue
        return found

    @staticmethod
    def state(pid):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def ranks(self):
        """By rank: its process number."""
        found = {}
        for pid, words in self.processes().items():
            if not words or os.path.basename(words[0]) != os.path.basename(LPSGD):  # none while it starts
                continue
            try:
                with open(f"/proc/{pid}/environ") as file:
                    rank = re.search(r"(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)", file.read())
            except OSError:
                continue
            if rank:
                found[int(rank[1])] = pid
        return found

    def out(self):
        return Path(self.paths[0]).read_text(errors="replace")

    def err(self):
        return Path(self.paths[1]).read_text(errors="replace")

    def text(self):
        return f"status {self.process.poll()}\n--- out\n{self.out()}\n--- err\n{self.err()}\n--- left\n{self.processes()}"

    def wait_until(self, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while not condition():
            self.case.assertLess(time.monotonic(), deadline, self.text())
            self.case.assertIsNone(self.process.poll(), self.text())
            time.sleep(0.02)
        return time.monotonic()

    def wait_for_stop(self, rank):
        """When the process of this rank was stopped."""
        def is_stopped():
            try:
                return self.state(self.ranks().get(rank, "none")) == "T"
            except OSError:
                return False
        return self.wait_until(is_stopped)

    def wait_until_gone(self, deadline):
        """Until no process of the job is left, neither ranks nor launcher. Returns the launcher's status."""
        while self.process.poll() is None or self.processes():
            self.case.assertLess(time.monotonic(), deadline, self.text())
            time.sleep(0.05)
        return self.process.returncode

    def error(self):
        """The one message of the job."""
        messages = re.findall(r"lpsgd: error: (.*)", self.err())
        self.case.assertEqual(len(messages), 1, self.text())
        return messages[0]


def mpirun(ranks, *command):
    return [MPIRUN, "-n", ranks, *command]


class Stopping(Case):
    """Runs on image files, of which a rank stops (SIGSTOP) at a file that it opens."""

    def setUp(self):
        super().setUp()
        self.write("two.yaml", NETWORK.replace("classes: 10", "classes: 2").replace("units: 10", "units: 2"))
        self.images_config = self.write("images.yaml", CONFIG.replace("tiny_network", "two").replace(
            "dataset: shapes", f"dataset: images, root: {self.path('data')}").replace(
            "{pad: 2, mirror: true}", "none").replace(", train_samples: 96, test_samples: 50", ""))
        for split in ("train", "val"):
            for number in range(24):
                folder = self.path("data", split, "ab"[number % 2])
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"{number:02}.ppm"), "wb") as file:
                    file.write(b"P6\n32 32\n255\n" + bytes([number]) * (32 * 32 * 3))

    def stops(self, at, once="", rank=1):
        """The environment in which this rank stops when it opens a file whose path holds `at`; see stop.c."""
        library, source = self.path("stop.so"), os.path.join(SOURCE, "tests", "cli", "stop.c")
        if not os.path.exists(library):
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        return {"LD_PRELOAD": library, "STOP_AT": at, "STOP_ONCE": once, "STOP_RANK": str(rank)}
