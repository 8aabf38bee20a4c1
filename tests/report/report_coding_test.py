"""The error of coding in a report: metrics.codec_error."""

import json
import unittest

from report_harness import FOUR, NONE, ReportTest

import numpy
import runs
import style
from study import measures
from view import coding, gather, report


class Coding(ReportTest):
    def with_errors(self, name, errors, codec=FOUR, **options):
        """`errors`: a dictionary {tensor: error} for each epoch, or None."""
        folder = self.run_folder(name, [50.0 + e for e in range(len(errors))], codec, **options)
        path = self.root / name / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record, of_tensors in zip(records, errors):
            if of_tensors is not None:
                tensors = {t: {"error": e, "residual": 3.0, "bytes": 8} for t, e in of_tensors.items()}
                record["codec_error"] = tensors
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return folder

    def test_one_number_of_all_tensors(self):
        def record(**errors):
            return {"codec_error": {t: {"error": e, "residual": r} for t, (e, r) in errors.items()}}

        self.assertEqual(measures.coding(record(a=(0.2, 3), b=(0.4, 4), c=(0, 0))), ((0.2 + 0.4) / 2, 0.4, 5))
        self.assertEqual(measures.coding(record(a=(None, None), b=(0.4, 4))), (0.4, 0.4, 4))
        self.assertEqual(measures.coding(record(a=(0, 0))), (0, 0, 0))
        for empty in ({}, record(), record(a=(None, None)), {"codec_error": 3}, {"codec_error": {"a": 3}}):
            self.assertIsNone(measures.coding(empty))

    def test_the_figure(self):
        folders = [
            self.with_errors("a", [{"w": 0.1, "b": 0}, {"w": 0.2, "b": 0}]),
            self.with_errors("b", [{"w": 0.3, "b": 0}, {"w": 0.4, "b": 0}], seed=2),
            self.with_errors("c", [None, None], seed=3),
            self.with_errors("d", [{"w": 0, "b": 0}] * 2, NONE),
            self.with_errors("e", [None, {"w": 0.5, "b": 0.7}], {"kind": "onebit", "bucket": 64}),
        ]
        read = gather.read(folders)[0]
        items = {item.name: item for item in report.collect(read, None, None)}
        item = items["codec_error_by_epoch_net"]
        lines = item.figure.axes[0].lines
        numpy.testing.assert_allclose(lines[0].get_ydata(), [0.2, 0.3])
        numpy.testing.assert_allclose(lines[1].get_ydata(), [numpy.nan, 0.6])
        self.assertEqual(item.data["seeds"].tolist(), [2, 2, 1, 1])
        self.assertAlmostEqual(item.data["codec_error_deviation"][0], 0.02**0.5)
        self.assertIn("The band is one standard deviation", item.caption)
        legend = [text.get_text() for text in item.figure.axes[-1].get_legend().get_texts()]
        self.assertEqual(legend, ["qsgd 4 bit, bucket 512 (2 seeds)", "onebit, bucket 64"])
        self.assertIsNone(coding.item(self.groups(folders[2:4]), "net"))
        self.assertNotIn("codec_error", runs.read_run(folders[2]).epochs)

    def test_numbers_at_a_logarithmic_axis_do_not_overlap(self):
        for low, high, count in ((0.2, 0.9, 5), (0.001, 2.0, 9), (100.0, 5000.0, 5)):
            figure, (axes,), _, _ = style.panels(1, [], height=4.6)
            axes.plot([1, 2], [low, high])
            axes.set_yscale("log")
            style.log_labels(axes.yaxis)
            figure.canvas.draw()
            ticks = [*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks()]
            bottom, top = axes.get_ylim()
            inside = [tick for tick in ticks if bottom <= tick.get_loc() <= top and tick.label1.get_text()]
            self.assertGreaterEqual(len(inside), count)
            boxes = [tick.label1.get_window_extent() for tick in sorted(inside, key=lambda tick: tick.get_loc())]
            for one, next_ in zip(boxes, boxes[1:]):
                self.assertFalse(one.overlaps(next_))


if __name__ == "__main__":
    unittest.main()
