"""What folders of runs may hold: runs that are not finished, given twice, diverged, damaged, or named oddly. 77 is a skip."""

import json
import math
import unittest

import yaml
from harness import rows_of, run_main
from report_harness import FOUR, NONE, ReportTest

import lpsgd_report
import runs
from view import curves, differences, gather, report


class Mixed(ReportTest):
    def report(self, *words):
        return run_main(lpsgd_report, *map(str, words))

    def with_epochs(self, folder, count):
        path = self.root / folder / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["train"]["epochs"] = count
        path.write_text(yaml.safe_dump(config))

    def test_seeds_that_are_not_finished_are_not_pooled(self):
        folders = [self.run_folder("a", [10, 20]), self.run_folder("b", [11, 22], seed=2), self.run_folder("c", [90], seed=3)]
        for name in "abc":
            self.with_epochs(name, 2)
        found = {g.label: g.finals("val_top1") for g in self.groups(folders)}
        self.assertEqual(found, {"none": [20, 22], "none, 1 of 2 epochs": [90]})

    def test_a_seed_counts_once(self):
        first, again = self.run_folder("a", [50, 60]), self.run_folder("again", [50, 70])
        other = self.run_folder("b", [50, 62], seed=2)
        (group,) = self.groups([first, first, f"{first}/", other])
        self.assertEqual([run.name for run in group.runs], ["a", "b"])
        # A run that was repeated, on another machine for example, is beside them.
        found = {g.label: [run.name for run in g.runs] for g in self.groups([first, again, other])}
        self.assertEqual(found, {"none, a": ["a", "b"], "none, again": ["again"]})
        status, out, err = self.report(first, again, other, "--table")
        self.assertEqual((status, err, out.count("\nagain ")), (0, "", 1))

    def test_the_reference_is_full_precision_in_every_step(self):
        folders = [
            self.run_folder("simulated", [1, 2], NONE, collective="simulated"),
            self.run_folder("local", [50, 60], NONE),
            self.run_folder("every", [50, 61], NONE, bucket=1),
            self.run_folder("four", [50, 62], FOUR),
        ]
        path = self.root / "local" / "config.yaml"
        config = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**config, "sync": {"kind": "local_sgd", "steps": 4}}))
        self.assertEqual(curves.reference(self.groups(folders)).runs[0].name, "every")
        self.assertEqual(curves.reference(self.groups(folders[:2] + folders[3:])).runs[0].name, "local")
        self.assertIsNone(curves.reference(self.groups([folders[0], folders[3]])))

    def test_a_seed_whose_perplexity_is_no_number(self):
        """In tables of seeds there is then no deviation, and no difference to others."""
        folders = [
            self.run_folder(f"{name}{seed}", [1, 2], codec, seed=seed, perplexity=[900.0, last])
            for name, codec, lasts in (("a", NONE, (None, 200.0)), ("b", FOUR, (210.0, 220.0)))
            for seed, last in enumerate(lasts, start=1)
        ]
        out = self.root / "report"
        status, _, err = run_main(lpsgd_report, *folders, "--out", str(out), "--target", "val_perplexity=205")
        self.assertEqual((status, err), (0, ""))
        rows = rows_of(out / "tables" / "summary.csv")
        self.assertEqual([(r["val_perplexity"], r["deviation"]) for r in rows], [("", ""), ("215.0", "7.07")])
        (row,) = rows_of(out / "tables" / "differences_perplexity_net.csv")
        self.assertEqual([row[key] for key in ("difference", "plus_minus", "plus_minus_of_same_seeds", "visible")], [""] * 4)
        self.assertEqual([r["reached"] for r in rows_of(out / "tables" / "to_target.csv")], ["1", "0"])
        self.assertEqual(gather.mean_and_deviation([1.0, math.inf]), (math.inf, None))
        self.assertEqual(differences.welch([1.0, math.nan], [1.0, 2.0]), (None, None))
        self.assertIsNone(differences.paired([1.0, math.inf], [1.0, 2.0]))

    def test_a_perplexity_that_is_no_number(self):
        folders = [self.run_folder("a", [1, 2], perplexity=[100.0, 50.0]), self.run_folder("b", [1, 1], FOUR, perplexity=[9.0, None])]
        status, out, err = self.report(*folders, "--table", "--out", self.root / "out")
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"\nb .* inf ")

    def test_names_that_are_no_paths(self):
        folder = self.run_folder("a", [50, 60], network="../my/net v2")
        self.assertEqual(self.report(folder, "--out", self.root / "out")[::2], (0, ""))
        names = [path.name for path in (self.root / "out" / "figures").iterdir()]
        self.assertIn("top1_by_epoch_..-my-net-v2.svg", names)

    def test_names_that_differ_in_odd_characters(self):
        """Their files and their sections of the page have names of their own."""
        folders = [self.run_folder(f"run{i}", [50, 60 + i], network=n) for i, n in enumerate(("a b", "a-b"))]
        self.assertEqual(self.report(*folders, "--out", self.root / "out")[::2], (0, ""))
        finals = [rows_of(self.root / "out" / "figures" / f"final_top1_{name}.csv") for name in ("a-b", "a-b-2")]
        self.assertEqual([row["val_top1_mean"] for (row,) in finals], ["60.0", "61.0"])
        page = (self.root / "out" / "index.html").read_text()
        self.assertEqual([page.count(f'<section id="final_top1_{name}">') for name in ("a-b", "a-b-2")], [1, 1])

    def test_a_dollar_is_a_dollar(self):
        folders = [self.run_folder(name, [50, 60], codec, study={"study": "s", "axes": {"codec": f"{name} $\\x{{$"}})
                   for name, codec in (("a", NONE), ("b", FOUR))]
        self.assertEqual(self.report(*folders, "--out", self.root / "out")[::2], (0, ""))

    def study(self, *names, **more):
        (self.root / "study").mkdir(exist_ok=True)
        (self.root / "study" / "study.json").write_text(json.dumps({"runs": list(names), **more}))
        return self.root / "study"

    def test_a_studys_run_that_failed_at_its_start(self):
        self.run_folder("study/runs/a", [50, 60])
        failed = self.root / "study" / "runs" / "b"
        failed.mkdir()
        (failed / "study.json").write_text(json.dumps({"study": "s", "digest": "d"}))
        status, out, err = self.report(self.study("a", "b"), "--table")
        self.assertEqual((status, err), (0, f"lpsgd report: {failed}: holds no finished epoch yet; skipped\n"))
        self.assertIn("\na ", out)

    def test_runs_of_a_study_that_are_not_finished_are_named(self):
        for name in "ab":
            self.run_folder(f"study/runs/{name}", [50, 60])
        other = self.root / "study" / "runs" / "b"
        (other / "summary.json").write_text(json.dumps({"finished": False}))
        study = self.study("a", "b")
        for words in (("--table",), ("--out", self.root / "one.png")):
            status, _, err = self.report(study, *words)
            self.assertEqual((status, err), (0, f"lpsgd report: {other}: is not finished; skipped\n"))
        self.assertEqual(self.report(study, "--out", self.root / "out")[2], "")  # its page names it

    def test_side_files_of_other_types(self):
        folder = self.run_folder("a", [50, 60], {"kind": "topk", "density": "abc"}, study={"study": ["x"], "axes": {"a": "b"}})
        (self.root / "a" / "environment.json").write_text(json.dumps({"command": 5, "ranks": True}))
        (self.root / "a" / "summary.json").write_text("{}")
        self.assertEqual(self.report(folder, self.run_folder("b", [1, 2]), "--out", self.root / "out")[::2], (0, ""))
        self.assertIsNone(runs.read_run(folder).ranks)

    def test_options_without_an_effect_are_refused(self):
        folder = self.run_folder("a", [50, 60])
        for words in (("--table", "--price", "3"), ("--out", "one.png", "--price", "3"), ("--out", "one.png", "--target", "val_top1=9")):
            status, _, err = self.report(folder, *words)
            self.assertEqual((status, err.count("belongs to --out DIR")), (2, 1), err)
        for price in ("0", "-1", "nan", "inf", "x"):
            status, _, err = self.report(folder, "--out", "out", "--price", price)
            self.assertEqual((status, err.count("is not a positive number")), (2, 1), err)

    def test_items_have_names_of_their_own(self):
        read = gather.read([self.run_folder("a", [50, 60]), self.run_folder("b", [50, 61], FOUR)])[0]
        names = [item.name for item in report.collect(read, None, None)]
        self.assertEqual(len(names), len(set(names)))


if __name__ == "__main__":
    unittest.main()
