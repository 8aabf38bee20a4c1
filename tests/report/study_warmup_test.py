"""The warm-up of codecs in studies, predictions and labels: report/warmup.py. 77 is a skip."""

import math
import subprocess
import unittest

from harness import require
from study_harness import HEAD, LPSGD, StudyTest

import warmup
import words
from view import gather
from study import estimate, runner, timing

SYNCS = (
    "every_step",
    "{kind: local_sgd, steps: 5}",
    "{kind: hierarchical_local_sgd, steps: 2, block_steps: 3, ranks_per_block: 2}",
)


class Text(unittest.TestCase):
    def test_labels(self):
        configs = [{"exchange": {"codec": {"kind": "sign"}, "warmup_epochs": e}} for e in (0, 0.25, 1, 2)]
        self.assertEqual(
            words.labels(configs, [2] * 4),
            ["sign", "sign, 0.25 epochs as float32", "sign, 1 epoch as float32", "sign, 2 epochs as float32"],
        )
        self.assertEqual(words.exchange_text(configs[1]["exchange"]), "sign, 0.25 epochs as float32")
        self.assertEqual(words.exchange_text({"codec": "none", "warmup_epochs": 1}), "none")
        configs = [{"exchange": {"codec": "none", "warmup_epochs": e}} for e in (0, 1)]
        self.assertEqual(words.labels(configs, [2, 2]), ["none", "none"])

    def test_steps(self):
        for epochs, steps in ((0, 0), (0.05, 20), (0.25, 98), (1, 390), (1.5, 585), (True, 0), ("1", 0), (math.inf, 0)):
            exchange = {"warmup_epochs": epochs, "codec": {"kind": "sign"}}
            self.assertEqual(warmup.steps({"exchange": exchange}, 390), steps, epochs)
        for codec in ({"codec": "none"}, {"codec": {"kind": "none"}}, {}):
            self.assertEqual(warmup.epochs({"exchange": {**codec, "warmup_epochs": 1}}), 0, codec)
            rules = [{"kind": "conv", "codec": "onebit"}]
            self.assertEqual(warmup.epochs({"exchange": {**codec, "warmup_epochs": 1, "rules": rules}}), 1, codec)

    def test_it_is_no_published_codec(self):
        for epochs, name in ((0, "onebit64"), (1, "onebit, bucket 64, 1 epoch as float32")):
            exchange = {"codec": {"kind": "onebit", "bucket": 64}, "warmup_epochs": epochs}
            self.assertEqual(gather.published_codec(exchange), name)


class Estimates(StudyTest):
    def test_bytes_are_those_of_the_runs(self):
        """Of four ranks with seven steps in each of three epochs."""
        text = (
            HEAD + "set: {train.epochs: 3, data.train_samples: 224, data.test_samples: 4, checkpoint.every_epochs: 0}\n"
            f"axes: {{exchange.warmup_epochs: [1.5, 1, 9], sync: [{', '.join(SYNCS)}], ranks: 4}}\n"
        )
        for run, shown, records in self.trained(text):
            with self.subTest(run.label):
                for done in range(4):
                    found, warm = estimate.exchanges(run, done), estimate.warmup_exchanges(run, done)
                    self.assertEqual(
                        estimate.bytes_of(run, shown, found, (), warm),
                        sum(record["bytes_sent"] for record in records[done:]),
                    )

    def test_the_time_has_both(self):
        """Over a slow link, nearly all of a step is its bytes."""
        require("numpy", "scipy")
        self.study(HEAD + "axes: {seed: 1, ranks: 2}\n")
        (folder,) = (self.root / "out" / "runs").iterdir()
        text = HEAD + (
            "set: {exchange.link: {bandwidth: 100kbit, burst: 1B}}\n"
            "axes: {exchange.warmup_epochs: [0, 0.5, 1, 2], ranks: 2}\n"
        )
        study, runs = self.expand(text)
        shown = self.shown(study, runs)
        _, (done,) = self.expand(HEAD + "axes: {seed: 1, ranks: 2}\n")
        model = estimate.CostModel([done], {done.digest: str(folder)}, 1)
        seconds = [
            model.seconds_per_step(run, shown[run.digest], *estimate.rest(run, str(self.root / "none"))) for run in runs
        ]
        one = shown[runs[0].digest]
        ratio = 4 * one["parameters"] / one["wire_bytes"]
        for found, share in zip(seconds, (0, 1 / 4, 1 / 2, 1)):
            self.assertAlmostEqual(found / seconds[0], 1 + share * (ratio - 1), delta=0.05 * ratio)

    def test_a_run_that_says_too_little_is_left_out(self):
        require("numpy", "scipy")
        text = HEAD + "axes: {exchange.warmup_epochs: [0, 2], seed: SEED, ranks: 2}\n"
        self.study(text.replace("SEED", "1"))
        study, runs = self.expand(text.replace("SEED", "[1, 2]"))
        folders = runner.find_folders(str(self.root / "out"), runs)
        lines = estimate.lines(runs, self.shown(study, runs), 1, folders)
        self.assertEqual([line.split()[-1] for line in (lines[1], lines[3])], ["done", "done"])
        self.assertNotIn("?", "".join(lines), lines)

    def test_a_study_goes_on_without_a_reader(self):
        self.write("study.yaml", HEAD + "axes: {seed: [1, 2], ranks: 2}\n")
        with open("/dev/full", "w") as full:
            done = subprocess.run([LPSGD, "study", str(self.root / "study.yaml"), "--out", str(self.root / "out")],
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(list((self.root / "out" / "runs").glob("*/summary.json"))), 2)

    def test_each_part_is_timed_by_itself(self):
        _, runs = self.expand(
            HEAD + "axes: {exchange.warmup_epochs: [0, 0.5, 2], sync: [every_step, {kind: local_sgd, steps: 4}], ranks: 2}\n"
        )
        codec = {"kind": "qsgd", "bits": 4}

        def parts(run):
            rest = estimate.rest(run, str(self.root / "none"))
            found = timing.all_parts(run, *rest, 10)
            for _, form, _ in found:  # what the program is given
                self.assertEqual(form.run.sets.get("exchange.codec", codec), form.run.settings["exchange"]["codec"])
            return [
                (share, form.run.settings["exchange"]["codec"], form.run.settings["exchange"].get("warmup_epochs"), n)
                for share, form, n in found
            ]

        self.assertEqual(parts(runs[0]), [(1, codec, 0, 10)])
        self.assertEqual(parts(runs[1]), [(1, codec, 0, 13)])
        self.assertEqual(parts(runs[2]), [(1 / 4, "none", 0, 10), (3 / 4, codec, 0, 10)])
        self.assertEqual(parts(runs[3]), [(1 / 4, "none", 0, 13), (3 / 4, codec, 0, 13)])
        self.assertEqual(parts(runs[4]), [(1, "none", 0, 10)])

    def test_a_prediction_leaves_the_warmup_out(self):
        require("numpy", "scipy")
        from costmodel import run_folder
        from costmodel.errors import CostModelError

        def trained(name, *sets):
            words_ = [word for item in sets for word in ("--set", item)]
            command = [LPSGD, "train", str(self.root / "tiny.yaml"), "--out", str(self.root / name), *words_]
            subprocess.run(command, check=True, capture_output=True, timeout=100)
            return str(self.root / name)

        run = run_folder.read(trained("behind", "train.epochs=4", "exchange.warmup_epochs=1.5"))
        self.assertEqual((run.steps, run.is_cold), (16, False))
        run = run_folder.read(trained("none", "train.epochs=2", "exchange.warmup_epochs=2", "exchange.codec=none"))
        self.assertEqual(run.steps, 8)
        folder = trained("within", "train.epochs=3", "exchange.warmup_epochs=2.5")
        with self.assertRaisesRegex(CostModelError, "fewer than 8 steps are measured behind the epochs of exchange"):
            run_folder.read(folder)


if __name__ == "__main__":
    unittest.main()
