"""Which runs a report pools, and what it calls them."""

import json
import unittest

import yaml
from harness import run_main
from report_harness import FOUR, NONE, ReportTest

import figure
import lpsgd_report
import runs
import table
import words
from view import curves, gather, report, scale

EIGHT = {**FOUR, "bits": 8}
PLACES = ("network", "ranks", "transport")


class Groups(ReportTest):
    def variant(self, name, codec, axes, **options):
        return self.run_folder(name, [50, 60], codec, study={"study": "s", "axes": axes}, **options)

    def over_nccl(self, name, codec, label, exchange, **options):
        axes = {"codec": label, "transport": exchange, "ranks": 2}
        return self.variant(name, codec, axes, transport="nccl", **options)

    def nccl(self):
        """As configs/studies/edbt2018.yaml: the transport's labels tell the collective."""
        return [
            self.variant("one", NONE, {"codec": "32 bit", "transport": "MPI", "ranks": 1}, ranks=1),
            self.over_nccl("sum", NONE, "32 bit", "NCCL all-reduce", collective="allreduce", speed=450.0),
            self.over_nccl(
                "simulated", EIGHT, "QSGD 8 bit", "NCCL simulated", collective="simulated", speed=500.0
            ),
            self.over_nccl("real", EIGHT, "QSGD 8 bit", "NCCL", speed=600.0),
        ]

    def test_simulated_and_real_exchange_are_two_rows(self):
        groups = [g for g in self.groups(self.nccl(), PLACES) if g.transport == "nccl"]
        self.assertEqual(
            [g.label for g in groups], ["32 bit, allreduce", "QSGD 8 bit (simulated)", "QSGD 8 bit"]
        )
        self.assertEqual([g.simulated for g in groups], [False, True, False])
        self.assertEqual([g.collective for g in groups], ["allreduce", "simulated", "reduce_broadcast"])
        data = scale.table(groups, "nccl").data
        self.assertEqual(
            data[["codec", "2"]].values.tolist(),
            [["32 bit, allreduce", 450.0], ["QSGD 8 bit (simulated)", 500.0], ["QSGD 8 bit", 600.0]],
        )
        every = self.groups([str(self.root / name) for name in ("one", "sum", "simulated", "real")], PLACES)
        data = scale.scalability(groups, every, "nccl").data
        self.assertEqual(data[data.of == "here"]["scalability"].tolist(), [4.5, 5.0, 6.0])

    def test_epochs_of_seeds_are_matched_by_number(self):
        folders = [self.run_folder(f"s{seed}", [10, 20, 30, 40], seed=seed) for seed in (1, 2)]
        path = self.root / "s2" / "metrics.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
        (group,) = self.groups(folders)
        x, mean, deviation = group.curve("val_top1", "epoch")
        self.assertEqual((list(x), list(mean), list(deviation)), ([3.0, 4.0], [30.0, 40.0], [0.0, 0.0]))
        self.assertEqual(curves.data([group], "val_top1", "seconds")["epoch"].tolist(), [3, 4])

    def test_blocks_of_ranks_are_told(self):
        folders = [self.run_folder("plain", [50, 60], FOUR, ranks=4)]
        for blocks in ("node", 2):
            more = {"collective": "hierarchical", "ranks_per_block": blocks}
            folders.append(self.run_folder(f"b{blocks}", [50, 60], FOUR, ranks=4, **more))
        self.assertEqual(
            [group.label for group in self.groups(folders)],
            [f"qsgd 4 bit, bucket 512{more}" for more in ("", ", hierarchical", ", hierarchical, blocks of 2 ranks")],
        )
        for folder, name in zip(folders, ("plain", "four", "four")):
            study = {"study": "s", "axes": {"codec": name}}
            (self.root / folder / "study.json").write_text(json.dumps(study))
        labels = [group.label for group in self.groups(folders)]
        self.assertEqual(labels, ["plain", "four", "four, blocks of 2 ranks"])

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
            config = (
                (self.root / name / "config.yaml")
                .read_text()
                .replace("name: net", f"name: net\n  width: {width}")
            )
            (self.root / name / "config.yaml").write_text(config)
            folders.append(folder)
        self.assertEqual([g.label for g in self.groups(folders[-2:])], ["none, narrow", "none, wide"])
        paths = []
        for name in ("narrow", "wide"):
            (self.root / "in" / name).mkdir(parents=True)
            paths.append(str((self.root / name).rename(self.root / "in" / name / "run")))
        self.assertEqual([g.label for g in self.groups(paths)], [f"none, {path}" for path in paths])

    def test_where_data_lie_and_how_long_is_waited_make_no_other_group(self):
        """Nor does a key that an older version's record does not have, where it has its usual value."""
        axes = {"codec": "4 bit"}
        folders = [self.variant("a", FOUR, axes), self.variant("b", FOUR, axes, timeout="20min", seed=2)]
        config = self.root / "b" / "config.yaml"
        settings = yaml.safe_load(config.read_text())
        settings["data"] = {"root": "/elsewhere"}
        settings["schedule"] = {"lr_scaling": "none"}
        settings["train"] = {**settings.get("train", {}), "freeze": []}
        config.write_text(yaml.safe_dump(settings))
        self.assertEqual([(g.label, len(g.runs)) for g in self.groups(folders)], [("qsgd 4 bit, bucket 512", 2)])
        settings["schedule"] = {"lr_scaling": "sqrt"}
        config.write_text(yaml.safe_dump(settings))
        self.assertEqual(
            [g.label for g in self.groups(folders)],
            [f"qsgd 4 bit, bucket 512, lr_scaling {scaling}" for scaling in ("none", "sqrt")],
        )
        settings["schedule"] = {"lr_scaling": "none"}
        settings["train"]["freeze"] = ["conv1", "layer?"]
        config.write_text(yaml.safe_dump(settings))
        self.assertEqual(
            [g.label for g in self.groups(folders)],
            ["qsgd 4 bit, bucket 512", "qsgd 4 bit, bucket 512, conv1, layer? frozen"],
        )

    def test_rules_and_error_feedback_make_another_codec(self):
        rule = [{"kind": "conv", "codec": FOUR}]
        onebit = {"kind": "onebit", "bucket": 64}
        folders = [self.run_folder("a", [10, 50], NONE, rules=rule, network="resnet110")]
        for name, codec in (
            ("b", NONE),
            ("c", FOUR),
            ("d", {**FOUR, "error_feedback": True}),
            ("e", {**onebit, "error_feedback": True}),
            ("f", {**onebit, "error_feedback": False}),
        ):
            folders.append(self.run_folder(name, [10, 60], codec, network="resnet110"))
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
        self.assertEqual(
            items["summary"].data["codec"].tolist(), ["none; conv: qsgd 4 bit, bucket 512", "none"]
        )
        self.assertEqual(runs.read_run(folders[0]).codec, words.exchange_text({"codec": NONE, "rules": rule}))

    def at_once(self, name, top1, jobs, codec=NONE, seed=1, **options):
        study = {"study": "s", "axes": {"codec": codec["kind"], "seed": seed}, "jobs": jobs}
        return self.run_folder(name, top1, codec, seed=seed, study=study, **options)

    def test_seconds_of_runs_that_trained_at_once_are_left_out(self):
        folders = [
            self.at_once("a", [80, 92], 1, computation=3.0),
            self.at_once("b", [80, 92], 2, seed=2, computation=9.0),
            self.at_once("c", [70, 91], 2, FOUR, computation=9.0),
        ]
        read, target, _ = gather.read(folders)
        items = {item.name: item for item in report.collect(read, ("val_top1", 90.0), 1.0)}
        summary = items["summary"].data
        self.assertEqual(summary["computation_s"].tolist()[0], 3.0)
        self.assertTrue(summary[["samples_per_s", "communication_s", "computation_s"]].iloc[1].isna().all())
        self.assertEqual(summary["val_top1"].tolist(), [92, 91])
        reached = items["to_target"].data
        self.assertEqual(reached["reached"].tolist(), [2, 1])
        self.assertEqual((reached["seconds"][0], reached["bytes"].tolist()), (8.0, [200, 200]))
        self.assertTrue(reached["seconds"].isna()[1])
        self.assertEqual(len(items["to_target_net"].figure.axes), 3)  # two panels, and the legend's
        self.assertEqual(set(items["top1_by_seconds_net"].data["label"]), {"none"})
        self.assertEqual(set(items["top1_by_bytes_net"].data["label"]), {"none", "qsgd"})
        self.assertEqual(items["time_per_epoch_mpi"].data["computation_s"].tolist(), [3.0])
        self.assertEqual(items["samples_per_s_mpi"].data["codec"].tolist(), ["none"])
        price = items["price_against_accuracy"].data
        self.assertEqual(price[price.of == "here"]["label"].tolist(), ["none"])
        self.assertIn("2 of them trained beside other work", " ".join(report.notes(read, [])))
        lines = table.text(read).splitlines()
        self.assertEqual(lines[2].split()[4:7], ["200", "1.00", "3.00"])
        self.assertEqual(lines[3].split()[4:7], ["-", "-", "-"])
        self.assertIn("-: trained beside other work", lines[-1])

    def test_seconds_beside_other_work_are_left_out(self):
        """By the run's record, by its grid's, or by the option."""
        folders = [self.at_once(f"grid/runs/{name}", [80, 92], 1, seed=i) for i, name in enumerate("ab")]
        grid = self.root / "grid"
        (grid / "study.json").write_text(json.dumps({"name": "s", "runs": ["a", "b"]}))

        def timed(*given):
            return [run.is_timed for run in gather.read(*given)[0]]

        self.assertEqual([timed([str(grid)]), timed(folders)], [[True, True]] * 2)
        self.assertEqual([timed([str(grid)], False), timed(folders, False)], [[False, False]] * 2)
        (grid / "study.json").write_text(json.dumps({"name": "s", "runs": ["a", "b"], "timed": False}))
        self.assertEqual(timed([str(grid)]), [False, False])
        about = grid / "runs" / "a" / "study.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "timed": False}))
        self.assertEqual(timed(folders), [False, True])
        lines = run_main(lpsgd_report, *folders, "--table", "--untimed")[1].splitlines()
        self.assertEqual([line.split()[4:7] for line in lines[2:4]], [["-"] * 3] * 2)

    def test_no_run_is_timed(self):
        folders = [self.at_once("a", [80, 92], 3), self.at_once("b", [80, 92], 3, FOUR)]
        out = self.root / "out"
        names = report.make(gather.read(folders)[0], [], str(out), ("val_top1", 90.0), 1.0)
        self.assertFalse({"top1_by_seconds_net", "time_per_epoch_mpi", "samples_per_s_mpi"} & set(names))
        self.assertIn("All trained beside other work", (out / "index.html").read_text())
        read = gather.read(folders)[0]
        runs.label_runs(read)
        figure.save(read, str(self.root / "one.png"))

    def test_a_report_removes_what_an_earlier_one_wrote(self):
        out = self.root / "out"
        first = [self.run_folder("a", [1]), self.run_folder("b", [2], FOUR, network="other")]
        report.make(gather.read(first)[0], [], str(out))
        (out / "figures" / "mine.png").write_text("mine")
        (out / "notes.txt").write_text("mine")
        (self.root / "outside.csv").write_text("mine")
        self.assertTrue((out / "figures" / "top1_by_epoch_other.svg").is_file())
        manifest = json.loads((out / "report.json").read_text())
        manifest["files"] += ["../outside.csv", "figures/../../outside.csv", "notes.txt", 7]
        (out / "report.json").write_text(json.dumps(manifest))
        report.make(gather.read(first[:1])[0], [], str(out))
        there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        files = set(json.loads((out / "report.json").read_text())["files"])
        self.assertEqual(there, files | {"report.json", "notes.txt", "figures/mine.png"})
        self.assertFalse([name for name in there if "other" in name])
        self.assertTrue((self.root / "outside.csv").is_file())


if __name__ == "__main__":
    unittest.main()
