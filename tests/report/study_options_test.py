"""lpsgd study --only and --set: a part of a grid, and settings for all of its runs, without another file."""

import unittest

import harness
from study_harness import HEAD, StudyTest

from study import definition, grid
from study.yaml_file import StudyError

AXES = """
axes:
  codec: [none, {name: four, value: {kind: qsgd, bits: 4}}, fp16]
  ranks: [1, 2, 4]
  link: [none, "1Gbit,50us"]
"""
TWO_RANKS = HEAD + "axes: {transport: threads, ranks: [1, 2]}\n"


class OptionsTest(StudyTest):
    def given(self, text, sets=(), only=()):
        """The study and the runs that are asked for."""
        study = definition.load(str(self.write("study.yaml", text)), sets, only)
        return study, grid.chosen(study, grid.expand(study))

    def refused(self, text, expected, sets=(), only=()):
        with self.assertRaises(StudyError) as caught:
            self.given(text, sets, only)
        self.assertEqual(str(caught.exception), expected.replace("STUDY", str(self.root / "study.yaml")))


class Only(OptionsTest):
    def chosen(self, *only):
        _, runs = self.given(HEAD + AXES, only=only)
        return [tuple(run.choices.values()) for run in runs]

    def test_values_are_written_as_in_exclude(self):
        every = self.chosen()
        self.assertEqual(len(every), 18)
        for only, expected in (
            (["ranks=2"], lambda codec, ranks, link: ranks == "2"),
            (["ranks=[1, 4]"], lambda codec, ranks, link: ranks != "2"),
            (["ranks=1", "ranks=4"], lambda codec, ranks, link: ranks != "2"),
            (["codec=four", "ranks=4"], lambda codec, ranks, link: (codec, ranks) == ("four", "4")),
            (["codec={kind: qsgd, bits: 4}"], lambda codec, ranks, link: codec == "four"),
            (["link=1Gbit,50us", "codec=[none, fp16]"], lambda codec, ranks, link: link != "none" and codec != "four"),
        ):
            with self.subTest(only=only):
                self.assertEqual(self.chosen(*only), [choices for choices in every if expected(*choices)])

    def test_the_runs_are_those_of_the_whole_grid(self):
        whole = {run.name: run.digest for run in self.given(HEAD + AXES)[1]}
        for run in self.given(HEAD + AXES, only=["ranks=4"])[1]:
            self.assertEqual(whole[run.name], run.digest)

    def test_what_it_refuses(self):
        for only, expected in (
            ("ranks", "--only ranks: expected --only AXIS=VALUES"),
            ("=2", "--only =2: expected --only AXIS=VALUES"),
            ("rank=2", "--only rank=2: there is no axis 'rank', did you mean 'ranks'?; there are: codec, ranks, link"),
            ("ranks=3", "--only ranks=3: the axis has no '3'; it has: 1, 2, 4"),
            ("codec=for", "--only codec=for: the axis has no 'for', did you mean 'four'?; it has: none, four, fp16"),
            ("ranks=[1", "--only ranks=[1: not YAML: expected ',' or ']', but got '<stream end>'"),
        ):
            with self.subTest(only=only):
                self.refused(HEAD + AXES, expected, only=[only])
        self.refused(HEAD, "--only ranks=2: there is no axis 'ranks'; there are: none", only=["ranks=2"])
        excluded = HEAD + AXES + "exclude: [{codec: none, ranks: 4}]\n"
        self.refused(
            excluded,
            "STUDY: no run has all the values of --only; --dry-run without it lists the runs",
            only=["codec=none", "ranks=4"],
        )

    def test_a_part_is_trained_and_then_the_rest(self):
        _, said, _ = self.study(TWO_RANKS, "--dry-run", "--only", "ranks=1")
        self.assertIn("the time is not known", said)
        status, said, err = self.study(TWO_RANKS, "--only", "ranks=2")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("1 of 1 runs done", said)
        rows = harness.rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([(row["ranks"], row["status"]) for row in rows], [("1", "pending"), ("2", "done")])
        _, said, _ = self.study(TWO_RANKS, "--dry-run", "--only", "ranks=1")
        self.assertIn("1_rank", said)
        self.assertNotIn("2_ranks", said)
        self.assertNotIn("not known", said, "a finished run counts, though it is not chosen")
        status, said, err = self.study(TWO_RANKS)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("1 of 2 runs are done already", said)
        rows = harness.rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([row["status"] for row in rows], ["done", "done"])


class Set(OptionsTest):
    def test_it_is_as_if_the_file_had_it(self):
        def digests(text, *sets):
            return [run.digest for run in self.given(text, sets)[1]]

        written = HEAD + "set: {train.epochs: 3, schedule: {lr: 0.5}, exchange.codec.bits: 2}\naxes: {ranks: [1, 2]}\n"
        other = HEAD + "set: {train.epochs: 9, schedule: {lr: 0.25}}\naxes: {ranks: [1, 2]}\n"
        self.assertEqual(digests(written), digests(other, "train.epochs=3", "schedule.lr=0.5", "exchange.codec.bits=2"))
        self.assertEqual(digests(written), digests(other, "schedule={lr: 0.5}", "exchange.codec.bits=2", "train.epochs=3"))
        self.assertEqual(digests(written), digests(written, "train.epochs=3"))
        self.assertNotEqual(digests(written), digests(written, "train.epochs=4"))

    def test_an_axis_that_does_not_always_set_it(self):
        text = HEAD + "axes: {codec: [{name: own, set: {train.epochs: 1}}, fp16]}\n"
        _, runs = self.given(text, ["exchange.codec.bits=2", "train.epochs=7"])
        self.assertEqual([run.settings["train"]["epochs"] for run in runs], [1, 7])
        self.assertEqual([run.settings["exchange"]["codec"] for run in runs], [{"kind": "qsgd", "bits": 2}, "fp16"])

    def test_a_map_is_not_shared_by_the_runs(self):
        text = HEAD + "axes: {codec: [{name: fast, value: fp16, set: {schedule.lr: 0.5}}, bf16]}\n"
        for given, written in ((["schedule={lr: 0.1}"], ""), ([], "set: {schedule: {lr: 0.1}}\n")):
            _, runs = self.given(text + written, given)
            self.assertEqual([run.settings["schedule"]["lr"] for run in runs], [0.5, 0.1])
            self.assertEqual([run.sets["schedule"] for run in runs], [{"lr": 0.1}] * 2)

    def test_what_it_refuses(self):
        sections = "network, data, train, optimizer, schedule, exchange, sync, checkpoint, metrics"
        for sets, expected in (
            (["train.epochs"], "--set train.epochs: expected --set KEY=VALUE"),
            (["tran.epochs=1"], "--set tran.epochs=1: unknown key, did you mean 'train'?; expected a key of the "
             f"configuration: {sections}"),
            (["exchange.codec=fp16"], "--set exchange.codec=fp16: has no effect: the axis 'codec' sets it for each run"),
            (["exchange.codec.bits=2"], "--set exchange.codec.bits=2: has no effect: the axis 'codec' sets it for each run"),
            (["exchange.ranks=8"], "--set exchange.ranks=8: has no effect: the axis 'ranks' sets it for each run"),
            (["train.epochs=1", "train.epochs=2"], "--set train.epochs=2: is given twice"),
        ):
            with self.subTest(sets=sets):
                self.refused(HEAD + AXES, expected, sets)

    def test_what_the_program_refuses(self):
        for word, expected in (
            ("train.epochs=-1", "train.epochs: expected an integer from"),
            ("train.epoch=1", "train.epoch: unknown key"),
        ):
            status, _, err = self.study(TWO_RANKS, "--set", word, "--dry-run")
            self.assertEqual((status, err.count("\n")), (2, 1), err)
            self.assertIn("lpsgd: error: study: --set ", err)
            self.assertIn(expected, err)

    def test_runs_are_trained_with_it(self):
        status, _, err = self.study(TWO_RANKS, "--set", "train.epochs=1", "--only", "ranks=1")
        self.assertEqual((status, err), (0, ""))
        rows = harness.rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([row["epochs"] for row in rows if row["status"] == "done"], ["1"])


if __name__ == "__main__":
    unittest.main()
