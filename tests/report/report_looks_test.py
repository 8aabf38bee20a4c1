"""How a report's figures and tables look: curves told apart, numbers aligned, what is shared said once."""

import unittest
import unittest.mock

from report_harness import FOUR, NONE, ReportTest

import exchange_cost
import figure
import numpy
import pandas
import published
import runs
import style
import words
from study import measures
from view import bars, curves, gather, page, price, report

EIGHT = {**FOUR, "bits": 8}


class Curves(ReportTest):
    def groups(self, folders):
        return gather.groups(gather.read(folders)[0], ("network", "ranks", "transport"))

    def by_ranks(self):
        return self.groups(
            [
                self.run_folder(
                    f"{codec['kind']}{codec.get('bits')}-{k}", [10, 20], codec, k, sent=100 * (k - 1)
                )
                for k in (1, 2, 4)
                for codec in (NONE, EIGHT, FOUR)
            ]
        )

    def test_a_label_with_an_underscore_is_in_the_legend(self):
        figure, axes, legend, columns = style.panels(1, ["_four"])
        style.below(legend, [style.handle("_four", style.line(1))], columns)
        self.assertEqual([text.get_text() for text in legend.get_legend().get_texts()], [" _four"])

    def test_a_label_looks_the_same_in_every_panel(self):
        groups = self.by_ranks()
        drawn = curves.draw(groups, "val_top1", "epoch", None)
        seen = {}
        for axes in drawn.axes[:3]:
            for text, line in zip(axes.get_legend().get_texts(), axes.lines):
                look = line.get_color(), line.get_linestyle(), line.get_marker()
                self.assertEqual(seen.setdefault(text.get_text(), look), look)
        self.assertEqual(len(seen), 3)
        self.assertEqual(len({marker for _, _, marker in seen.values()}), 3)

    def test_curves_of_one_panel_never_look_alike(self):
        codecs = [{"kind": "topk", "density": i / 100} for i in range(1, 9)]
        folders = [self.run_folder(f"a{i}", [1], codec, 2) for i, codec in enumerate(codecs)]
        folders += [self.run_folder(f"b{i}", [1], codecs[i], 4) for i in (0, 6)]
        groups = self.groups(folders)
        for _, part in curves.split(groups):
            self.assertEqual(len(set(curves.looks(groups, part))), len(part))
        few = [group for group in groups if group.ranks == 4]
        self.assertEqual(curves.looks(groups, few), [1, 2])

    def test_runs_that_send_nothing_have_no_curve_by_bytes(self):
        items = {item.name: item for item in curves.items(self.by_ranks(), "net", None)}
        titles = [axes.get_title() for axes in items["top1_by_bytes_net"].figure.axes]
        self.assertEqual(titles[:2], ["2 ranks over mpi", "4 ranks over mpi"])
        self.assertEqual(items["top1_by_epoch_net"].figure.axes[0].get_title(), "1 rank over mpi")

    def test_curves_of_many_epochs_have_markers(self):
        folders = [
            self.run_folder(name, list(range(1, 61)), codec) for name, codec in (("a", NONE), ("b", FOUR))
        ]
        read = [runs.read_run(folder) for folder in folders]
        runs.label_runs(read)
        left, right = figure.draw(read).axes
        self.assertEqual([line.get_marker() for line in left.lines], ["o", "o", "s", "s"])
        self.assertEqual([text.get_text() for text in right.texts], ["4 s\n25 % comm."] * 2)


class Tables(unittest.TestCase):
    def test_what_all_rows_share_is_said_once(self):
        frame = pandas.DataFrame(
            {
                "network": ["a", "a"],
                "codec": ["x", "y"],
                "seeds": [1, 1],
                "deviation": [None, None],
                "top1": [9.5, 10],
            }
        )
        text = page.table(frame)
        self.assertIn("The same in all rows: network = a, seeds = 1.", text)
        self.assertEqual(text.count("<th"), 2 + 1)  # <thead>
        self.assertNotIn("deviation", text)
        self.assertEqual(page.table(frame[["network"]]).count("<td"), 2)
        self.assertEqual(page.table(frame[:1]).count("<td"), 5)

    def test_the_numbers_of_a_column_have_equal_decimals(self):
        text = page.table(pandas.DataFrame({"top1": [78.9, 9.25, numpy.nan], "epochs": [4.0, 5.0, 6.0]}))
        self.assertIn(">78.90<", text)
        self.assertIn(">9.25<", text)
        self.assertIn(">4<", text)
        self.assertIn('<td class="n"></td>', text)
        self.assertEqual(page.decimals_of([1234567.25, 1.5]), 0)
        self.assertEqual(page.decimals_of([1234.5678, 1.5]), 2)
        self.assertEqual(page.decimals_of([0.0, 0.00125]), 5)

    def test_bytes_are_short_and_sort_as_numbers(self):
        text = page.table(pandas.DataFrame({"bytes": [3_400_480_000, 268_000_000]}))
        self.assertIn('data-value="3400480000">3.40 GB<', text)

    def test_counts(self):
        self.assertEqual(
            [words.counted(n, "rank") for n in (1, "1", 2, 0)], ["1 rank", "1 rank", "2 ranks", "0 ranks"]
        )


class Style(unittest.TestCase):
    def tearDown(self):
        style.plt.close("all")

    def test_names_keep_their_distance(self):
        numpy.testing.assert_allclose(style.places_apart([0.9, 0.5, 0.1], 0.1), [0.9, 0.5, 0.1])
        numpy.testing.assert_allclose(style.places_apart([0.5, 0.5, 0.5], 0.1), [0.6, 0.5, 0.4])
        numpy.testing.assert_allclose(style.places_apart([1.0, 1.0], 0.25), [1.0, 0.75])
        self.assertGreaterEqual(min(style.places_apart([0.0, 0.0], 0.25)), 0.0)

    def test_two_curves_of_one_thing(self):
        solid, dashed = style.pair(3, 60)
        self.assertEqual(solid["marker"], dashed["marker"])
        self.assertNotEqual(solid["linestyle"], dashed["linestyle"])
        self.assertEqual(dashed["markerfacecolor"], "white")

    def test_a_bar_without_time_has_no_share(self):
        self.assertEqual((bars.share(0, 0), bars.share(1, 3)), ("0 %", "25 %"))

    def test_costs_of_the_exchange(self):
        codecs = {"none": [(2, 1.5, 1.0, 4, 8), (4, 2.5, 2.0, 8, 8)], "qsgd": [(2, 3.0, 2.0, 4, 4)]}
        with unittest.mock.patch.object(style, "write") as write:
            exchange_cost.draw(16e6, codecs, "seconds", "cost.png")
        lines = write.call_args.args[0].axes[0].lines
        self.assertEqual([list(line.get_ydata()) for line in lines], [[1.5, 2.5], [1.0, 2.0], [3.0], [2.0]])
        self.assertEqual([line.is_dashed() for line in lines], [False, True, False, True])


class Published(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(published.train_samples(), {"imagenet": 1_281_167, "cifar10": 50_000})
        self.assertEqual(published.samples_of_training("resnet110"), 160 * 50_000)
        self.assertEqual(published.final_accuracy("resnet152"), {"none": 77.0, "qsgd8": 76.74})
        self.assertEqual(published.cheapest_machine(2), (7.2, 8))
        self.assertIsNone(published.cheapest_machine(17))

    def test_marks_of_the_price_figure_are_those_of_the_outlook(self):
        """The outlook marks codecs in the order in which the accuracies name them."""
        named = dict.fromkeys(c for net in published.data_sets() for c in published.final_accuracy(net))
        self.assertEqual([price.MARKS[codec] for codec in named], list(style.MARKERS[: len(named)]))


class Targets(unittest.TestCase):
    def test_every_metric_can_be_a_target(self):
        higher = ["val_top1", "val_top5", "train_top1"]
        lower = ["val_loss", "train_loss", "val_perplexity", "train_perplexity"]
        for metric in higher + lower:
            self.assertEqual(report.read_target(f"{metric}=2"), (metric, 2.0))
            self.assertEqual(measures.reached(3, metric, 2.0), metric in higher)
            self.assertEqual(measures.reached(1, metric, 2.0), metric in lower)
        with self.assertRaises(runs.RunError):
            report.read_target("bytes_sent=2")


if __name__ == "__main__":
    unittest.main()
