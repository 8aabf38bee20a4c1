"""What the tests of `lpsgd predict` share."""

import json
import os
import subprocess

import harness

harness.require("numpy", "scipy", "yaml")
LPSGD = harness.find_program()
os.environ["LPSGD_PROGRAM"] = LPSGD
import lpsgd_predict  # noqa: E402

TRAINED = harness.TINY + """data: {dataset: shapes, train_samples: 256, test_samples: 8}
train: {epochs: 2, batch_size: 32, device: cpu, threads: 1}
exchange: {transport: threads, ranks: 2, codec: {kind: qsgd, bits: 4}}
checkpoint: {every_epochs: 0}
"""
GIVEN = str(harness.REPORT / "published" / "samples_per_s.csv")


def predict(*words):
    """Status, output, errors of the command, within this process."""
    return harness.run_main(lpsgd_predict, *words)


class TrainedTest(harness.FolderTest):
    """Runs of a tiny network."""

    def setUp(self):
        super().setUp()
        self.config = self.write("tiny.yaml", TRAINED)

    def train(self, name, *sets, resume=False):
        folder = self.root / name
        words = [word for item in sets for word in ("--set", item)]
        command = [LPSGD, "train", str(self.config), "--out", str(folder), *words, *["--resume"] * resume]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        return folder

    def predicted(self, *words):
        status, out, err = predict(str(self.config), *words, "--ranks", "2", "--link", "1Gbit,50us", "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)
