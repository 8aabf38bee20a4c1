"""lpsgd predict CONFIG from runs whose config.yaml the program has written. 77 is a skip."""

import json
import os
import sys
import unittest
from unittest import mock

from harness import SOURCE
from predict_harness import TrainedTest

from costmodel import links, pipeline, run_folder, scaling
from costmodel.errors import CostModelError


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


class Measurements(unittest.TestCase):
    """docs/results/predicted-links: the file holds what the page's command reads, and no more."""

    def test_each_file_of_the_command_has_a_line(self):
        sys.path.insert(0, str(SOURCE / "bench" / "link"))
        import predict_check

        words = ["predict_check", "--out", "FOLDER"]
        with mock.patch.object(sys, "argv", words), mock.patch.object(predict_check, "measure") as measure:
            with mock.patch.object(predict_check, "report"), mock.patch.dict(os.environ):
                measure.return_value = ({}, {})
                self.assertEqual(predict_check.main(), 0)
        options = measure.call_args.args[0]
        linked, local = predict_check.rows_of(options)
        keys = [row.key for row in (*linked, *local.values())]
        expected = {f"{key}-{number}.json" for key in keys for number in range(options.rounds)}
        page = SOURCE / "docs" / "results" / "predicted-links"
        lines = (page / "measurements.jsonl").read_text().splitlines()
        self.assertEqual(sorted(json.loads(line)["file"] for line in lines), sorted(expected))


if __name__ == "__main__":
    unittest.main()
