"""What users put into a run's folder, or give as a file to write: nothing of theirs is lost, and a resume says what it does."""

import json
import os
import stat
import unittest
from pathlib import Path

from harness import Case, checkpoints, run


class Folder(Case):
    def refused(self, *arguments, status=2):
        result = run("train", self.config, *arguments)
        self.assertEqual((result.status, result.err.count("lpsgd: error:")), (status, 1), result)
        return result.err

    def test_an_empty_name(self):
        self.assertIn("train: --out: is empty;", self.refused("--out", "", "--resume"))
        for words, option in ((("eval", self.config, "--checkpoint", ""), "eval: --checkpoint"),
                              (("export", self.path("out"), "--onnx", ""), "export: --onnx"),
                              (("checkpoint", "list", ""), "checkpoint list: run"),
                              (("train", ""), "train: config")):
            result = run(*words)
            self.assertEqual((result.status, result.err.count("lpsgd: error:")), (2, 1), result)
            self.assertIn(f"{option}: is empty;", result.err)

    def test_a_users_own_configuration_is_not_overwritten(self):
        os.mkdir(self.path("mine"))
        text = Path(self.config).read_text().replace("network: ", "network: ../") + "# a remark\n"
        mine = self.write("mine/config.yaml", text)
        for more in ([], ["--resume"]):
            result = run("train", mine, "--out", self.path("mine"), *more)
            self.assertEqual(result.status, 2, result)
            self.assertIn(f"--out {self.path('mine')}: has a config.yaml that is of no run", result.err)
            self.assertEqual((Path(mine).read_text(), os.listdir(self.path("mine"))), (text, ["config.yaml"]))

    def test_a_link_that_leads_nowhere(self):
        os.symlink("/nowhere", self.path("link"))
        text = self.refused("--out", self.path("link"), status=1)
        self.assertIn("link: cannot be made: " + self.path("link") + " is a link that leads nowhere", text)

    def test_checkpoints_on_a_disk_that_is_not_there(self):
        out, elsewhere = self.train("out", "--steps", "2", ranks=None), self.path("elsewhere")
        link, environment = os.path.join(out, "checkpoints"), Path(out, "environment.json")
        before = environment.read_text()
        os.rename(link, elsewhere)
        os.symlink(self.path("nowhere"), link)
        self.assertIn("checkpoints: cannot be read: No such file or directory", self.refused("--out", out, "--resume", status=1))
        self.assertEqual((os.readlink(link), environment.read_text()), (self.path("nowhere"), before))
        os.rename(elsewhere, self.path("nowhere"))
        result = run("train", self.config, "--out", out, "--resume", "--steps", "3")
        self.assertEqual(result.status, 0, result)
        self.assertNotIn("random weights", result.out)


class Resuming(Case):
    def summary(self, folder):
        path = Path(folder, "summary.json")
        return json.loads(path.read_text()) if path.exists() else None

    def test_metrics_that_are_no_records_change_nothing(self):
        out = self.train("out", "--steps", "5", ranks=None)
        path = os.path.join(out, "metrics.jsonl")
        names = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json")
        for text, message in (("garbage\n", "metrics.jsonl:1: not JSON"), ('{"epoch": 1}\n', "metrics.jsonl:1: not an epoch's record")):
            Path(path).write_text(text)
            before = [Path(out, name).read_text() for name in names]
            result = run("train", self.config, "--out", out, "--resume", "--set", "schedule.lr=0.01")
            self.assertEqual(result.status, 1, result)
            self.assertIn(message, result.err)
            self.assertEqual([Path(out, name).read_text() for name in names], before)

    def test_records_that_are_missing_are_told(self):
        out = self.train("out", "--steps", "5", ranks=None)
        os.remove(os.path.join(out, "metrics.jsonl"))
        result = run("train", self.config, "--out", out, "--resume")
        self.assertEqual(result.status, 0, result)
        self.assertIn("has the records of 0 of 1 finished epochs", result.err)

    def test_a_run_that_goes_on_has_no_summary(self):
        out = self.train("out", ranks=None)
        self.assertTrue(self.summary(out)["finished"])
        self.train("out", "--resume", ranks=None)
        self.assertTrue(self.summary(out)["finished"])  # nothing was left to train
        result = run("train", self.config, "--out", out, "--resume", "--set", "train.epochs=3", "--set", "schedule.lr=1e30")
        self.assertEqual(result.status, 1, result)
        self.assertIsNone(self.summary(out))

    def test_the_seconds_of_no_step(self):
        self.assertLess(self.summary(self.train("out", "--steps", "0", ranks=None))["seconds"], 60)

    def test_what_is_left_is_said(self):
        self.train("out", "--steps", "8", ranks=None)
        result = run("train", self.config, "--out", self.path("out"), "--resume")
        self.assertIn("the steps of epoch 2 are done: its evaluation is left", result.err + result.out)
        self.assertEqual([m["epoch"] for m in self.metrics(self.path("out"))], [1, 2])
        result = run("train", self.config, "--out", self.path("out"), "--resume")
        self.assertIn("epoch 2 of 2 is done: nothing to train", result.err + result.out)

    def test_the_runs_own_configuration_keeps_its_name(self):
        out = self.train("out", "--steps", "2", ranks=None)
        self.assertEqual(self.summary(out)["name"], "tiny")
        self.train("out", "--resume", "--steps", "3", ranks=None, config=os.path.join(out, "config.yaml"))
        self.assertEqual(self.summary(out)["name"], "tiny")

    def test_a_damaged_checkpoint_does_not_count_for_keep(self):
        keep = ("--set", "checkpoint={every_epochs: 1, keep: 2}", "--set", "train.epochs=3")
        out = self.train("out", "--steps", "9", *keep, ranks=None)
        self.assertEqual(checkpoints(out), ["epoch-0002", "step-000009"])
        with open(os.path.join(out, "checkpoints", "step-000009", "model.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x77")
        result = run("train", self.config, "--out", out, "--resume", *keep)
        self.assertIn("step-000009 is passed over", result.err)
        self.assertEqual(checkpoints(out), ["epoch-0002", "epoch-0003", "step-000009"])

    def test_simulated_replicas_go_on_from_rank_0s(self):
        more = ("--set", "exchange.collective=simulated")
        self.train("out", "--steps", "2", *more)
        result = run("train", self.config, "--out", self.path("out"), "--resume", "--steps", "3", *more, ranks=2)
        self.assertIn("it holds rank 0's weights, from which all ranks go on", result.err)


class Export(Case):
    def test_what_is_no_regular_file_stays(self):
        run_folder, target = self.train("out", "--steps", "1", ranks=None), self.path("model.onnx")
        os.mkfifo(self.path("fifo"))
        os.symlink(target, self.path("link"))
        export = lambda path: run("export", run_folder, "--onnx", path)
        if "without ONNX" in export(target).err:
            self.skipTest("built without ONNX")
        for path in (self.path("fifo"), self.dir):
            result = export(path)
            self.assertEqual(result.status, 1, result)
            self.assertIn("is not a regular file", result.err)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("fifo")).st_mode))
        data = Path(target).read_bytes()
        Path(target).write_text("")
        self.assertEqual(export(self.path("link")).status, 0)
        self.assertTrue(os.path.islink(self.path("link")))
        self.assertEqual(Path(target).read_bytes(), data)
        os.remove(target)
        self.assertIn("is a link that leads nowhere", export(self.path("link")).err)


if __name__ == "__main__":
    unittest.main()
