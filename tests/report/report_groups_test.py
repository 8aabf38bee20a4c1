"""Which runs a report pools, and what it calls them."""

import unittest

from report_harness import FOUR, NONE, ReportTest

import runs
import words
from view import curves, gather, report, scale

EIGHT = {**FOUR, "bits": 8}
PLACES = ("network", "ranks", "transport")


class Groups(ReportTest):
    def groups(self, folders, omit=()):
        return gather.groups(gather.read(folders)[0], omit)

    def variant(self, name, codec, axes, **options):
        return self.run_folder(name, [50, 60], codec, study={"study": "s", "axes": axes}, **options)

    def nccl(self):
        """As configs/studies/edbt2018.yaml: the transport's labels tell the collective."""
        return [
            self.variant("one", NONE, {"codec": "32 bit", "transport": "MPI", "ranks": 1}, ranks=1),
            self.variant(
                "sum",
                NONE,
                {"codec": "32 bit", "transport": "NCCL all-reduce", "ranks": 2},
                transport="nccl",
                collective="allreduce",
                speed=450.0,
            ),
            self.variant(
                "simulated",
                EIGHT,
                {"codec": "QSGD 8 bit", "transport": "NCCL simulated", "ranks": 2},
                transport="nccl",
                collective="simulated",
                speed=500.0,
            ),
            self.variant(
                "real",
                EIGHT,
                {"codec": "QSGD 8 bit", "transport": "NCCL", "ranks": 2},
                transport="nccl",
                speed=600.0,
            ),
        ]

    def test_simulated_and_real_exchange_are_two_rows(self):
        groups = [g for g in self.groups(self.nccl(), PLACES) if g.transport == "nccl"]
        self.assertEqual([g.label for g in groups], ["32 bit, allreduce", "QSGD 8 bit (simulated)", "QSGD 8 bit"])
        self.assertEqual([g.simulated for g in groups], [False, True, False])
        self.assertEqual([g.collective for g in groups], ["allreduce", "simulated", "reduce_broadcast"])
        table = scale.table(groups, "nccl").data
        self.assertEqual(
            table[["codec", "2"]].values.tolist(),
            [["32 bit, allreduce", 450.0], ["QSGD 8 bit (simulated)", 500.0], ["QSGD 8 bit", 600.0]],
        )
        every = self.groups([str(self.root / name) for name in ("one", "sum", "simulated", "real")], PLACES)
        data = scale.scalability(groups, every, "nccl").data
        self.assertEqual(data[data.of == "here"]["scalability"].tolist(), [4.5, 5.0, 6.0])

    def test_the_collective_of_one_codec_is_told(self):
        axes = [{"codec": "32 bit", "transport": name} for name in ("NCCL all-reduce", "NCCL")]
        folders = [
            self.variant("a", NONE, axes[0], transport="nccl", collective="allreduce"),
            self.variant("b", NONE, axes[1], transport="nccl"),
            self.variant("c", FOUR, {"codec": "4 bit", "transport": "NCCL"}, transport="nccl"),
        ]
        self.assertEqual(
            [g.label for g in self.groups(folders, ("transport",))], ["32 bit, allreduce", "32 bit", "4 bit"]
        )

    def test_labels_that_would_be_equal_say_what_differs(self):
        axes = {"codec": "4 bit"}
        folders = [
            self.variant("a", FOUR, axes, min_elements=0),
            self.variant("b", FOUR, axes),
            self.variant("c", {**FOUR, "bucket": 64}, axes),
            self.variant("d", NONE, {"codec": "none"}),
        ]
        self.assertEqual(
            [g.label for g in self.groups(folders)],
            [
                "4 bit, qsgd 4 bit, bucket 512, from 0 elements",
                "4 bit, qsgd 4 bit, bucket 512",
                "4 bit, qsgd 4 bit, bucket 64",
                "none",
            ],
        )
        # Networks of one name that differ inside have their runs' names.
        for name, width in (("narrow", 32), ("wide", 64)):
            folder = self.run_folder(name, [1])
            config = (self.root / name / "config.yaml").read_text().replace("name: net", f"name: net\n  width: {width}")
            (self.root / name / "config.yaml").write_text(config)
            folders.append(folder)
        self.assertEqual([g.label for g in self.groups(folders[-2:])], ["none, narrow", "none, wide"])

    def test_rules_and_error_feedback_make_another_codec(self):
        rule = [{"kind": "conv", "codec": FOUR}]
        folders = [
            self.run_folder("a", [10, 50], NONE, rules=rule, network="resnet110"),
            self.run_folder("b", [10, 60], NONE, network="resnet110"),
            self.run_folder("c", [10, 60], FOUR, network="resnet110"),
            self.run_folder("d", [10, 60], {**FOUR, "error_feedback": True}, network="resnet110"),
            self.run_folder(
                "e", [10, 60], {"kind": "onebit", "bucket": 64, "error_feedback": True}, network="resnet110"
            ),
            self.run_folder(
                "f", [10, 60], {"kind": "onebit", "bucket": 64, "error_feedback": False}, network="resnet110"
            ),
        ]
        groups = self.groups(folders)
        self.assertEqual(
            [g.codec for g in groups],
            [
                "none; conv: qsgd 4 bit, bucket 512",
                "none",
                "qsgd4",
                "qsgd 4 bit, bucket 512, error feedback",
                "onebit64",
                "onebit, bucket 64, no error feedback",
            ],
        )
        self.assertIs(curves.reference(groups), groups[1])
        self.assertIsNone(curves.reference(groups[:1]))
        items = {item.name: item for item in report.collect(gather.read(folders[:2])[0], None, None)}
        self.assertEqual(items["summary"].data["codec"].tolist(), ["none; conv: qsgd 4 bit, bucket 512", "none"])
        self.assertEqual(runs.read_run(folders[0]).codec, words.exchange_text({"codec": NONE, "rules": rule}))


if __name__ == "__main__":
    unittest.main()
