"""The study's published accuracy beside that of the runs: where it is marked, named and told."""

import unittest

import yaml
from report_harness import FOUR, NONE, ReportTest

from view import beside, curves, summary


class Beside(ReportTest):
    def train(self, name, epochs, codec=NONE, network="resnet110", data=None, best=90.0, **options):
        top1 = [best - 20 * (1 - e / epochs) for e in range(1, epochs + 1)]
        folder = self.run_folder(name, top1, codec, network=network, **options)
        config = self.root / name / "config.yaml"
        settings = yaml.safe_load(config.read_text())
        settings["data"] = {"dataset": "cifar10", **(data or {})}
        config.write_text(yaml.safe_dump(settings))
        return folder

    def by_epoch(self, groups):
        """The figure's item; its marks as {name: (epochs, values)}; its legend's texts."""
        item = next(i for i in curves.items(groups, groups[0].network, None) if "_by_epoch_" in i.name)
        axes = item.figure.axes[0]
        marks = [line for line in axes.lines if line.get_linestyle() == "None"]
        legend = axes.get_legend() or item.figure.axes[-1].get_legend()
        return item, [(list(m.get_xdata()), list(m.get_ydata())) for m in marks], legend

    def test_runs_as_long_as_the_studys(self):
        groups = self.groups([self.train("a", 160), self.train("b", 160, FOUR), self.train("c", 160, FOUR, ranks=4)])
        item, marks, legend = self.by_epoch(groups)
        self.assertEqual(marks, [([80, 128, 160], [87.09, 93.65, 93.86]), ([80, 128, 160], [87.77, 93.52, 93.76])])
        texts = [text.get_text() for text in legend.get_texts()]
        self.assertEqual(texts[-2:], ["study: 32 bit", "study: QSGD 4 bit"])  # once for each codec
        for handle, curve in zip(legend.legendHandles[-2:], item.figure.axes[0].lines):
            self.assertEqual(handle.get_marker(), curve.get_marker())
            self.assertEqual((handle.get_markerfacecolor(), handle.get_linestyle()), ("none", "None"))
        self.assertIn("after 80, 128 and 160 epochs (empty markers).", item.caption)
        low, high = item.figure.axes[0].get_ylim()
        self.assertTrue(low < 87 and high > 93.86, "the marks lie outside the axes")

    def test_shorter_and_longer_runs(self):
        for epochs, shown, told in (
            (20, [], "after 80, 128 and 160 epochs; the runs here do not reach 80, 128 and 160."),
            (100, [80], "after 80, 128 and 160 epochs (empty markers); the runs here do not reach 128 and 160."),
            (200, [80, 128, 160], "after 80, 128 and 160 epochs (empty markers)."),
        ):
            groups = self.groups([self.train(f"a{epochs}", epochs)])
            item, marks, legend = self.by_epoch(groups)
            self.assertEqual([epochs_ for epochs_, _ in marks], [shown] if shown else [])
            self.assertIn(told, item.caption)
            self.assertEqual(len(legend.get_texts()), 1 + bool(shown))
            row = summary.item(groups).data.iloc[0]
            self.assertEqual((row["study_top1"], row["study_epochs"]), (93.86, 160))

    def test_other_data_networks_and_codecs_have_none(self):
        folders = [
            self.train("data", 100, data={"dataset": "cifar100"}),
            self.train("part", 100, data={"train_samples": 5000}),
            self.train("network", 100, network="resnet20"),
            self.train("codec", 100, {**FOUR, "bucket": 64}),
            self.run_folder("unknown", [90] * 100, network="resnet110"),
        ]
        groups = self.groups(folders)
        for group in groups:
            item, marks, _ = self.by_epoch([group])
            self.assertEqual((beside.accuracy(group), marks), ([], []))
            self.assertNotIn("Published", item.caption)
        data = summary.item(groups).data
        self.assertTrue(data["study_top1"].isna().all() and data["study_epochs"].isna().all())
        whole = self.train("whole", 100, data={"train_samples": 50_000})
        self.assertTrue(beside.accuracy(self.groups([whole])[0]))


if __name__ == "__main__":
    unittest.main()
