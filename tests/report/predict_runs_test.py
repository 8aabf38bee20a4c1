"""lpsgd predict CONFIG from runs that the program has trained: the config.yaml that it writes. 77 is a skip."""

import json
import subprocess
import unittest

from harness import FolderTest
from predict_harness import LPSGD, predict

from costmodel import links, pipeline, run_folder, scaling
from costmodel.errors import CostModelError

CONFIG = """network:
  name: tiny
  input: [32, 32, 3]
  classes: 10
  layers:
    - {conv: conv1, filters: 4, kernel: 3, stride: 4}
    - {relu: relu1}
    - flatten
    - {dense: fc, units: 10}
data: {dataset: shapes, train_samples: 256, test_samples: 8}
train: {epochs: 2, batch_size: 32, device: cpu, threads: 1}
exchange: {transport: threads, ranks: 2, codec: {kind: qsgd, bits: 4}}
checkpoint: {every_epochs: 0}
"""


class TrainedTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.config = self.write("tiny.yaml", CONFIG)

    def train(self, name, *sets):
        folder = self.root / name
        words = [word for item in sets for word in ("--set", item)]
        command = [LPSGD, "train", str(self.config), "--out", str(folder), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        return folder

    def predicted(self, *words):
        status, out, err = predict(str(self.config), *words, "--ranks", "2", "--link", "1Gbit,50us", "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)


class Links(TrainedTest):
    def test_runs_with_and_without_a_link(self):
        for name, given, expected in (
            ("none", None, None),
            ("latency", "{latency: 1ms}", (scaling.NO_LINK.bandwidth, 1e-3, 0.0)),
            ("bandwidth", "{bandwidth: 1Gbit}", (1e9, 0.0, 262500.0)),
            ("slow", "{bandwidth: 100Mbit}", (1e8, 0.0, 65536.0)),
            ("all", "{bandwidth: 1.5Gbit, latency: 30us, burst: 2097152B}", (1.5e9, 30 * 1e-6, 2097152.0)),
        ):
            with self.subTest(link=given):
                run = self.train(name, *([f"exchange.link={given}"] if given else []))
                found = self.predicted("--run", str(run))
                self.assertEqual([row["codec"] for row in found["rows"]], ["none", "qsgd4"])
                link = links.emulated(run_folder.read(str(run)).config["exchange"], "there")
                self.assertEqual(link, expected and pipeline.Link(*expected))

    def test_what_is_no_quantity(self):
        for link in ({"bandwidth": "fast"}, {"latency": "1h"}, {"bandwidth": 7}, {"latency": "..us"}):
            with self.assertRaisesRegex(CostModelError, "^there: exchange.link.(bandwidth|latency): '"):
                links.emulated({"link": link}, "there")
        for exchange in ({}, {"link": {}}, {"link": None}, {"link": {"burst": "1kB"}}):
            self.assertIsNone(links.emulated(exchange, "there"))


if __name__ == "__main__":
    unittest.main()
