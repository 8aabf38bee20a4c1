"""Samples per second of codecs over those of full precision, against parameters per arithmetic."""

import contextlib
import io
import os
import unittest

import yaml
from harness import SOURCE, find_program
from report_harness import FOUR, NONE, ReportTest

from costmodel import networks, outlook
from view import speedup

os.environ["LPSGD_PROGRAM"] = find_program()
PLACES = ("network", "ranks", "transport")
# Dense layers of n x n: (n^2 + n) parameters, 2 n^2 + n FLOP; a convolution of 1 to 2 channels over 8 x 8.
DENSE = {"name": "dense", "input": [16], "classes": 16, "layers": [{"dense": "fc", "units": 16}]}
CONV = {
    "name": "conv",
    "input": [8, 8, 1],
    "classes": 2,
    "layers": [{"conv": "c", "filters": 2, "kernel": 3, "pad": 1}, "average_pool", "flatten", {"dense": "fc", "units": 2}],
}
OF_DENSE = 4 * (16 * 16 + 16) / 1e6 / (3 * (2 * 16 * 16 + 16) / 1e9)
EIGHT = {**FOUR, "bits": 8}


class Speedup(ReportTest):
    def run_of(self, name, network, codec, speed, ranks=2, data=None, **options):
        folder = self.run_folder(name, [50, 60], codec, ranks=ranks, speed=speed, network=network["name"], **options)
        path = self.root / name / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["network"] = network
        config["data"] = {"dataset": "noise", **(data or {})}
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return folder

    def pairs(self, *networks, codec=FOUR):
        """Of each network a run in full precision and one with the codec, which is twice as fast."""
        speeds = ((NONE, 10.0), (codec, 20.0))
        return [self.run_of(f"{net['name']}{i}", net, *pair) for net in networks for i, pair in enumerate(speeds)]

    def item(self, folders, transport="mpi"):
        groups = self.groups(folders, PLACES)
        return speedup.item([group for group in groups if group.transport == transport], transport)

    def found(self, folders):
        """{(network, codec's label, ranks): (MB per GFLOP, speed-up)} of the runs here."""
        data = self.item(folders).data
        return {(r.network, r.label, r.ranks): (r.mb_per_gflop, r.speedup) for r in data.itertuples() if r.of == "here"}

    def test_codecs_are_divided_by_full_precision(self):
        folders = [
            self.run_of("d", DENSE, NONE, 100.0),
            self.run_of("d4", DENSE, FOUR, 250.0),
            self.run_of("d8", DENSE, EIGHT, 200.0),
            self.run_of("c", CONV, NONE, 40.0),
            self.run_of("c4", CONV, FOUR, 44.0),
        ]
        found = self.found(folders)
        self.assertEqual(len(found), 3)
        values = {(network, "4" in label): value for (network, label, _), (_, value) in found.items()}
        self.assertEqual(values, {("dense", True): 2.5, ("dense", False): 2.0, ("conv", True): 1.1})
        for (network, _, ranks), (size, _) in found.items():
            self.assertEqual(ranks, 2)
            if network == "dense":
                self.assertAlmostEqual(size, OF_DENSE)

    def test_the_largest_number_of_ranks_that_both_have(self):
        folders = [
            self.run_of(f"{network['name']}-{name}-{k}", network, codec, speed * k, k)
            for network in (DENSE, CONV)
            for name, codec, speed, ranks in (("none", NONE, 10.0, (1, 2, 4)), ("four", FOUR, 15.0, (2, 4, 8)))
            for k in ranks
        ]
        self.assertEqual({(network, ranks) for network, _, ranks in self.found(folders)}, {("dense", 4), ("conv", 4)})

    def test_the_base_has_the_same_settings(self):
        """Another link, or another batch, is no base; another collective is, where there is none of the own."""
        slow, fast = {"link": {"bandwidth": "1Gbit"}}, {"link": {"bandwidth": "10Gbit"}}
        folders = [
            self.run_of("d", DENSE, NONE, 100.0, **slow),
            self.run_of("df", DENSE, NONE, 400.0, **fast),
            self.run_of("d4", DENSE, FOUR, 250.0, **slow),
            self.run_of("d4f", DENSE, FOUR, 440.0, **fast),
            self.run_of("c", CONV, NONE, 40.0, collective="allreduce", **slow),
            self.run_of("c4", CONV, FOUR, 44.0, **slow),
            self.run_of("c4f", CONV, FOUR, 99.0, **fast),
        ]
        found = self.found(folders)
        self.assertEqual(sorted((network, value) for (network, _, _), (_, value) in found.items()),
                         [("conv", 1.1), ("dense", 1.1), ("dense", 2.5)])

    def test_what_belongs_to_a_codec_may_differ_from_the_base(self):
        rules = [{"kind": "dense", "codec": {"kind": "fp16"}}]
        blocks = {"collective": "hierarchical", "ranks_per_block": 2}
        for name, options in (("w", {"warmup_epochs": 1}), ("r", {"rules": rules}), ("b", blocks), ("m", {"min_elements": 0})):
            with self.subTest(name):
                folders = [self.run_of(f"{name}-{net['name']}-{i}", net, codec, 10.0 * (1 + i), **(options if i else {}))
                           for net in (DENSE, CONV) for i, codec in enumerate((NONE, FOUR))]
                self.assertEqual([value for _, value in self.found(folders).values()], [2.0, 2.0])

    def test_the_base_is_of_the_same_machine(self):
        """Whatever the order of folders."""
        folders = [
            self.run_of("a", DENSE, NONE, 100.0, machine="A"),
            self.run_of("b", DENSE, NONE, 1000.0, machine="B"),
            self.run_of("b4", DENSE, FOUR, 1500.0, machine="B"),
            self.run_of("c", CONV, NONE, 10.0, machine="A"),
            self.run_of("c4", CONV, FOUR, 20.0, machine="A"),
        ]
        for order in (folders, folders[::-1]):
            found = {network: value for (network, _, _), (_, value) in self.found(order).items()}
            self.assertEqual(found, {"dense": 1.5, "conv": 2.0})

    def test_simulated_runs_are_no_base(self):
        folders = [self.run_of("d", DENSE, NONE, 100.0, collective="simulated"), self.run_of("d4", DENSE, FOUR, 150.0),
                   self.run_of("c", CONV, NONE, 10.0), self.run_of("c4", CONV, FOUR, 20.0)]
        self.assertIsNone(self.item(folders))

    def test_one_network_or_full_precision_alone_makes_no_figure(self):
        dense = [self.run_of("d", DENSE, NONE, 100.0), self.run_of("d4", DENSE, FOUR, 250.0)]
        self.assertIsNone(self.item(dense))
        conv = self.run_of("c", CONV, NONE, 40.0)
        self.assertIsNone(self.item([*dense, conv]))
        self.assertIsNotNone(self.item([*dense, conv, self.run_of("c4", CONV, FOUR, 44.0)]))

    def test_variants_of_one_network(self):
        wide = {**DENSE, "input": [64]}
        folders = [self.run_of("d", DENSE, NONE, 100.0), self.run_of("d4", DENSE, FOUR, 150.0)]
        folders += [self.run_of("w", wide, NONE, 50.0), self.run_of("w4", wide, FOUR, 100.0)]
        values = sorted(self.found(folders).values())
        self.assertEqual([value for _, value in values], [2.0, 1.5])
        self.assertAlmostEqual(values[1][0], OF_DENSE)
        self.assertAlmostEqual(values[0][0], 4 * (64 * 16 + 16) / 1e6 / (3 * (2 * 64 * 16 + 16) / 1e9))

    def test_sequences_of_any_length_are_left_out(self):
        lstm = {"name": "lstm", "input": ["any", 4], "classes": 3, "layers": [{"lstm": "l", "cell": 5}, {"dense": "fc", "units": 3}]}
        folders = self.pairs(DENSE, CONV)
        whole = [self.run_of("l", lstm, NONE, 10.0), self.run_of("l4", lstm, FOUR, 20.0)]
        self.assertEqual({network for network, _, _ in self.found([*folders, *whole])}, {"dense", "conv"})
        cut = {"truncate": 20}
        pieces = [self.run_of("p", lstm, NONE, 10.0, data=cut), self.run_of("p4", lstm, FOUR, 20.0, data=cut)]
        self.assertEqual({network for network, _, _ in self.found([*folders, *pieces])}, {"dense", "conv", "lstm"})

    def test_a_network_that_the_program_refuses_is_left_out(self):
        bad = {**DENSE, "name": "bad", "layers": [{"nothing": "n"}]}
        folders = self.pairs(DENSE, CONV, bad)
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            found = self.found(folders)
        self.assertEqual({network for network, _, _ in found}, {"dense", "conv"})
        self.assertIn("lpsgd report: no speed-up against parameters for bad: ", err.getvalue())
        self.assertEqual(err.getvalue().count("\n"), 1)

    def test_the_studys_cells_are_beside(self):
        """Of its networks and the codecs that are here, at its largest number of ranks; with the size of ours."""
        files = [SOURCE / "configs" / "networks" / f"{name}.yaml" for name in ("alexnet", "resnet50")]
        data = self.item(self.pairs(*(yaml.safe_load(file.read_text()) for file in files), codec=EIGHT)).data
        study = {row.network: row for row in data.itertuples() if row.of != "here"}
        self.assertEqual({n: (row.label, row.ranks) for n, row in study.items()},
                         {"alexnet": ("QSGD 8 bit", 16), "resnet50": ("QSGD 8 bit", 16)})
        self.assertAlmostEqual(study["alexnet"].speedup, 535.0 / 192.1)
        self.assertAlmostEqual(study["resnet50"].speedup, 416.8 / 272.3)
        self.assertAlmostEqual(study["alexnet"].mb_per_gflop, outlook.intensity(networks.study_network("alexnet")))


if __name__ == "__main__":
    unittest.main()
