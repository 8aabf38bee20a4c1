"""What the tests of `lpsgd study` share: a folder with a tiny configuration, and running the command."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import thrift  # noqa: F401
    import yaml  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}: a study needs python3-thrift and python3-yaml")
    sys.exit(77)

sys.dont_write_bytecode = True
REPORT = pathlib.Path(__file__).resolve().parents[2] / "report"
sys.path.insert(0, str(REPORT))
LPSGD = os.environ.get("LPSGD", "build/release/lpsgd")
MPIRUN = os.environ.get("MPIRUN", "mpirun")

CONFIG = """network:
  name: tiny
  input: [32, 32, 3]
  classes: 10
  layers:
    - {conv: conv1, filters: 4, kernel: 3, stride: 4}
    - {relu: relu1}
    - flatten
    - {dense: fc, units: 10}
data: {dataset: shapes, train_samples: 256, test_samples: 64}
train: {epochs: 2, batch_size: 32, device: cpu, threads: 1}
exchange: {transport: threads, codec: {kind: qsgd, bits: 4}}
checkpoint: {every_epochs: 1, keep: 1}
"""


class StudyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("tiny.yaml", CONFIG)

    def write(self, name, text):
        path = self.root / name
        path.write_text(text)
        return path

    def command(self, text, *words, program=LPSGD):
        """Words and environment of a study in the test's folder."""
        study = self.write("study.yaml", text)
        environment = {**os.environ, "LPSGD_PROGRAM": os.path.abspath(program), "PYTHONDONTWRITEBYTECODE": "1"}
        return [sys.executable, str(REPORT / "lpsgd_study.py"), str(study), *words], environment

    def study(self, text, *words, out="out", program=LPSGD):
        """Exit status, standard output, standard error."""
        command, environment = self.command(text, "--out", str(self.root / out), *words, program=program)
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, cwd=self.root)
        self.assertNotIn("Traceback", result.stderr)
        return result.returncode, result.stdout, result.stderr
