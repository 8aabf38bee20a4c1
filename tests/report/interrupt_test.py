"""Ctrl-C at any moment of the commands in Python: no traceback, and the process ends. 77 is a skip."""

import os
import signal
import subprocess
import time
import unittest

import harness
from harness import FolderTest, SOURCE

LPSGD = harness.find_program()
DELAYS = (0.0, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.4)


class CtrlC(FolderTest):
    def commands(self):
        config = self.write("tiny.yaml", harness.TINY + "data: {dataset: shapes}\ntrain: {batch_size: 32, device: cpu}\n")
        module = self.write("net.py", "import torch\n\n\ndef net():\n    return torch.nn.Linear(4, 3)\n")
        study = self.write("grid.yaml", f"name: grid\nconfig: {config}\naxes: {{codec: [none, onebit], ranks: [1, 2]}}\n")
        return (
            ("report", str(self.root / "nowhere"), "--table"),
            ("predict", str(config), "--link", "1Gbit,50us"),
            ("study", str(study), "--dry-run"),
            ("import", f"{module}:net", "--input", "4", "--out", str(self.root / "net")),
            ("predict", "--calibrate", str(SOURCE / "report" / "published" / "samples_per_s.csv"), "--report"),
        )

    def test_no_traceback(self):
        stopped = 0
        for words in self.commands():
            for delay in DELAYS:
                with self.subTest(words=words[0], delay=delay):
                    process = subprocess.Popen([LPSGD, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                               start_new_session=True)
                    time.sleep(delay)
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                    out, err = process.communicate(timeout=60)
                    self.assertNotIn("Traceback", err)
                    self.assertNotIn("KeyboardInterrupt", err)
                    self.assertIn(process.returncode, (0, 2, 130, -signal.SIGINT), out + err)
                    stopped += process.returncode in (130, -signal.SIGINT)
        self.assertGreater(stopped, 10)


if __name__ == "__main__":
    unittest.main()
