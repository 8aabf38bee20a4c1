"""Accuracy and samples per second by the number of local steps."""

import unittest

import yaml
from report_harness import FOUR, NONE, ReportTest

from view import gather, local_steps, report

POST = {"kind": "post_local_sgd", "from": "first_decay"}


class LocalSteps(ReportTest):
    def train(self, steps, top1=90.0, sync=None, change=None, **options):
        """One run; an exchange in every step with one local step and no `sync`."""
        name = f"run-{len(list(self.root.iterdir()))}"
        folder = self.run_folder(name, [50.0, top1], **options)
        config = self.root / name / "config.yaml"
        settings = yaml.safe_load(config.read_text())
        every = {"kind": "every_step"}
        settings["sync"] = every if steps == 1 and not sync else {"kind": "local_sgd", **(sync or {}), "steps": steps}
        for section, values in (change or {}).items():
            settings[section] = {**settings.get(section, {}), **values}
        config.write_text(yaml.safe_dump(settings))
        return folder

    def item(self, folders):
        items = {item.name: item for item in report.collect(gather.read(folders)[0], None, None)}
        return items.get("top1_by_local_steps_net")

    def curves(self, item):
        """{(panel, curve): (H, means)}"""
        found = {}
        for panel, axes in enumerate(item.figure.axes[:-1]):
            for i, bars in enumerate(axes.containers):
                line = bars.lines[0]
                found[panel, i] = list(line.get_xdata()), list(line.get_ydata())
        return found

    def test_runs_that_are_stopped_or_copies_do_not_take_a_place(self):
        """A run that was stopped, and one of another machine, have H = 8, and both an exchange in every step."""
        mine = [self.train(steps, top1=90.0 - steps) for steps in (1, 4, 8)]
        whole = {"train": {"epochs": 3}}
        stopped = [self.train(steps, top1=20.0 + steps, change=whole, seed=2) for steps in (1, 8)]
        copies = [self.train(steps, top1=40.0 + steps) for steps in (1, 8)]
        expected = {(0, 0): ([1, 4, 8], [89.0, 86.0, 82.0])}
        self.assertEqual(self.accuracies([*mine, *stopped, *copies]), expected)
        copies.append(self.train(4, top1=44.0))
        expected[0, 1] = [1, 4, 8], [41.0, 44.0, 48.0]
        self.assertEqual(self.accuracies([*mine, *stopped, *copies]), expected)

    def accuracies(self, folders):
        item = local_steps.item(gather.groups(gather.read(folders)[0], ("network",)), "net")
        return {place: curve for place, curve in self.curves(item).items() if place[0] == 0}

    def seeds(self, **options):
        """Two seeds of each H, in another order than that of H."""
        speeds = {8: 400.0, 1: 100.0, 4: 300.0}
        return [
            self.train(steps, 90 - steps + seed, seed=seed, speed=speed + 20 * seed, **options)
            for steps, speed in speeds.items()
            for seed in (1, 3)
        ]

    def test_means_and_deviations_over_seeds(self):
        item = self.item(self.seeds())
        self.assertEqual(self.curves(item), {
            (0, 0): ([1, 4, 8], [91.0, 88.0, 84.0]), (1, 0): ([1, 4, 8], [140.0, 340.0, 440.0])})
        data = item.data
        self.assertEqual((data["local_steps"].tolist(), data["seeds"].tolist()), ([1, 4, 8], [2, 2, 2]))
        self.assertAlmostEqual(data["val_top1_deviation"][0], 2**0.5)
        self.assertAlmostEqual(data["samples_per_s_deviation"][2], 800**0.5)
        bars = item.figure.axes[0].containers[0].lines[2][0].get_segments()
        self.assertAlmostEqual(bars[0][1][1] - bars[0][0][1], 2 * 2**0.5)
        self.assertIn("Bars: one standard deviation over seeds.", item.caption)
        self.assertIn("by local SGD;", item.caption)
        self.assertEqual([t.get_text() for t in item.figure.axes[-1].get_legend().get_texts()], ["none"])

    def test_two_values_make_no_curve(self):
        self.assertIsNone(self.item([self.train(1), self.train(4), self.train(4, seed=2)]))

    def test_other_settings_make_other_curves(self):
        folders = [self.train(steps) for steps in (1, 2, 4)]
        for options in (
            {"codec": FOUR},
            {"ranks": 4},
            {"change": {"schedule": {"lr": 0.5}}},
            {"sync": {"reset_momentum": True}},
        ):
            folders += [self.train(steps, **options) for steps in (2, 4)]
        # An exchange in every step is H = 1 of a momentum that is reset, too; nothing else has three values.
        item = self.item(folders)
        self.assertEqual(len(item.data["label"].unique()), 2)
        self.assertEqual(item.data["local_steps"].tolist(), [1, 2, 4] * 2)
        item = self.item([*folders, self.train(1, codec=FOUR), self.train(1, ranks=4)])
        self.assertEqual(len(item.data["label"].unique()), 4)
        self.assertEqual(len(self.curves(item)), 8)

    def test_kinds_of_synchronisation(self):
        post = [self.train(steps, sync=POST) for steps in (1, 4, 16)]
        item = self.item([*post, self.train(1), self.train(2), self.train(4)])
        self.assertEqual(item.data["local_steps"].tolist(), [1, 4, 16, 1, 2, 4])
        self.assertIn("by local SGD or post-local SGD;", item.caption)
        for kind in ("hierarchical_local_sgd", "block_momentum"):
            self.assertIsNone(self.item([self.train(steps, sync={"kind": kind}) for steps in (2, 4, 8)]), kind)

    def test_usual_values_of_older_records_are_the_same(self):
        folders = [self.train(1), self.train(2, sync={"fragments": 1, "delay": 0}), self.train(4)]
        self.assertEqual(self.item(folders).data["local_steps"].tolist(), [1, 2, 4])

    def test_untimed_runs_have_no_speed(self):
        read = gather.read(self.seeds(), False)[0]
        item = local_steps.item(gather.groups(read, ("network",)), "net")
        self.assertEqual([panel for panel, _ in self.curves(item)], [0])
        self.assertNotIn("samples_per_s_mean", item.data)

    def test_many_curves_have_several_rows(self):
        folders = []
        for i in range(9):
            codec = {"kind": "topk", "density": (i + 1) / 100} if i else NONE
            folders += [self.train(steps, codec=codec) for steps in (1, 2, 4)]
        item = self.item(folders)
        panels = [axes for axes in item.figure.axes if axes.axison]
        self.assertEqual([len(axes.containers) for axes in panels], [7, 7, 2, 2])
        self.assertEqual([len(axes.get_legend().get_texts()) for axes in panels[::2]], [7, 2])


if __name__ == "__main__":
    unittest.main()
