"""What the tests of `lpsgd study` share: a folder with a tiny configuration, and running the command."""

import os
import pathlib
import subprocess
import sys
import time

from harness import REPORT, TINY, FolderTest, find_program, require

require("thrift", "yaml")
from study import definition, grid, launcher, measures, runner  # noqa: E402

LPSGD = find_program()

HEAD = "config: tiny.yaml\n"
CONFIG = TINY + """data: {dataset: shapes, train_samples: 256, test_samples: 64}
train: {epochs: 2, batch_size: 32, device: cpu, threads: 1}
exchange: {transport: threads, codec: {kind: qsgd, bits: 4}}
checkpoint: {every_epochs: 1, keep: 1}
"""


class StudyTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write("tiny.yaml", CONFIG)

    def expand(self, text):
        """The study and its runs."""
        study = definition.load(str(self.write("study.yaml", text)))
        return study, grid.expand(study)

    def shown(self, study, runs):
        """What the program shows of each run's configuration."""
        return launcher.Launcher(study, LPSGD).show(study, runs)[0]

    def trained(self, text):
        """(run, what is shown of it, its epochs' records) of each run of a study that is trained."""
        self.assertEqual(self.study(text)[0], 0)
        study, runs = self.expand(text)
        shown = self.shown(study, runs)
        folders = runner.find_folders(str(self.root / "out"), runs)
        return [(run, shown[run.digest], measures.read_epochs(folders[run.digest])) for run in runs]

    def command(self, text, *words, program=LPSGD):
        """Words and environment of a study in the test's folder."""
        study = self.write("study.yaml", text)
        environment = {
            **os.environ,
            "LPSGD_PROGRAM": os.path.abspath(program),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return [sys.executable, str(REPORT / "lpsgd_study.py"), str(study), *words], environment

    def study(self, text, *words, out="out", program=LPSGD):
        """Exit status, standard output, standard error."""
        command, environment = self.command(text, "--out", str(self.root / out), *words, program=program)
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=250, cwd=self.root
        )
        self.assertNotIn("Traceback", result.stderr)
        return result.returncode, result.stdout, result.stderr

    def processes(self):
        """Process numbers whose command names the test's folder, studies first."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if any(str(self.root) in word for word in words) and state != "Z":
                found.append(("lpsgd_study.py" not in " ".join(words), int(folder.name)))
        return [pid for _, pid in sorted(found)]

    def processes_left(self):
        """processes(), once those that a signal is ending have had time to end."""
        deadline = time.monotonic() + 20
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()
