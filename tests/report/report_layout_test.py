"""Figures of many runs with long labels: axes keep their size, every curve is named, nothing is cut or covered."""

import itertools
import unittest

import yaml
from report_harness import FOUR, NONE, ReportTest

import figure
import layout
import runs
import style
from view import gather, report

CODECS = [
    NONE,
    FOUR,
    {**FOUR, "bits": 2, "bucket": 128},
    {"kind": "onebit", "bucket": 64, "error_feedback": False},
    {"kind": "onebit", "bucket": "column", "error_feedback": True},
    {"kind": "topk", "density": 0.01, "error_feedback": True},
    {"kind": "sign", "error_feedback": True},
]
SYNCS = [
    {"kind": "every_step"},
    {"kind": "local_sgd", "steps": 8, "warmup": "exponential", "warmup_epochs": 5},
    {"kind": "hierarchical_local_sgd", "steps": 4, "block_steps": 2, "ranks_per_block": "node"},
    {"kind": "block_momentum", "steps": 8, "momentum": 0.9, "rate": 0.7, "nesterov": True},
]
LINK = {"bandwidth": "1Gbit", "latency": "50us"}


class LongLabels(ReportTest):
    def many(self, count, networks=("net",), is_long=True, epochs=3):
        """Runs that differ in codec, ranks, synchronisation, link and network."""
        folders = []
        for network, i in itertools.product(networks, range(count)):
            more = {"link": LINK, "min_elements": 0} if is_long and i % 3 == 0 else {}
            codec, ranks = CODECS[i % len(CODECS)], (2, 4)[i // len(CODECS) % 2]
            top1 = [80.0 - 0.3 * i + e for e in range(epochs)]
            name = f"{network}-{count}-{is_long}-{epochs}-{i}"
            sent = 400 >> i % 5
            folders.append(self.run_folder(name, top1, codec, ranks, network=network, sent=sent, **more))
            config = self.root / name / "config.yaml"
            settings = yaml.safe_load(config.read_text())
            settings["sync"] = SYNCS[i % len(SYNCS) if is_long else 0]
            config.write_text(yaml.safe_dump(settings))
        return folders

    def figures(self, folders):
        """{name: figure}, each at its size."""
        read = gather.read(folders)[0]
        drawn = {i.name: i.figure for i in report.collect(read, ("val_top1", 81.0), 1.0) if i.figure}
        runs.label_runs(read)
        drawn["one figure"] = figure.draw(read)
        for one in drawn.values():
            layout.fit(one)
            one.canvas.draw()
        return drawn

    def check(self, drawn):
        for axes in drawn.axes:
            legend = axes.get_legend()
            texts = [text for text in axes.texts if text.get_text()]
            ticks = [t for axis in (axes.xaxis, axes.yaxis) for t in self.shown(axis)] if axes.axison else []
            named = [axes.title, axes.xaxis.label, axes.yaxis.label]
            for artist in (*texts, *ticks, *named, *([legend] if legend else [])):
                self.is_within(artist.get_window_extent(), drawn.bbox, artist)
            for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
                boxes = [text.get_window_extent() for text in self.shown(axis)]
                for one, next_ in zip(boxes, boxes[1:]):
                    self.assertFalse(one.overlaps(next_), "tick labels overlap")
            for other in drawn.axes if legend else ():
                if other.axison:
                    covered = other.get_window_extent()
                    self.assertFalse(legend.get_window_extent().overlaps(covered), "a legend covers axes")
        for one, other in itertools.combinations([a for a in drawn.axes if a.axison], 2):
            self.assertFalse(one.get_tightbbox().overlaps(other.bbox), "labels cover axes")

    def shown(self, axis):
        low, high = sorted(axis.get_view_interval())
        return [
            tick.label1
            for tick in axis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_text() and tick.label1.get_visible()
        ]

    def is_within(self, box, outer, what):
        inside = outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1
        self.assertTrue(inside, f"{what} is cut: {box} of {outer}")

    def check_names(self, drawn):
        """Every curve of accuracy has an entry of a legend, with its marker and dashes; no two look alike."""
        for axes in drawn.axes:
            legend = axes.get_legend() or drawn.axes[-1].get_legend()
            if not axes.axison or not axes.lines:
                continue
            found = [self.look(line) for line in legend.legendHandles if line.get_marker() != "None"]
            self.assertEqual(len(found), len(set(found)))
            drawn_looks = [self.look(line) for line in axes.lines if len(line.get_xdata()) > 2]
            self.assertEqual(found, drawn_looks)
            texts = [text.get_text() for text in legend.get_texts()]
            self.assertEqual(len(texts), len(set(texts)))

    def look(self, line):
        return line.get_color(), str(line._dash_pattern), line.get_marker()

    def test_nothing_is_cut_or_covered(self):
        sets = [(count, ("net",)) for count in (1, 3, 8, 14)] + [(4, ("net", "a_second_network"))]
        for count, networks in sets:
            for name, drawn in self.figures(self.many(count, networks)).items():
                with self.subTest(f"{name} of {count} runs of {len(networks)} networks"):
                    self.check(drawn)
                    if name.startswith("top1_by"):
                        self.check_names(drawn)

    def test_axes_keep_their_size(self):
        def sizes(folders):
            found = {}
            for name, drawn in self.figures(folders).items():
                axes = drawn.axes[0].get_window_extent()
                found[name] = round(axes.width), round(axes.height) if "by_" in name or name == "one figure" else 0
            return found

        short = sizes(self.many(3, is_long=False))
        long = sizes(self.many(3))
        of_net = [f"{name}_net" for name in ("top1_by_epoch", "accuracy_against_bytes", "final_top1", "to_target")]
        for name in (*of_net, "one figure"):
            self.assertEqual(short[name], long[name], name)

    def test_a_legend_makes_no_figure_wide(self):
        labels = ["word " * 40, "short"]
        for own in (False, True):
            drawn, (axes,), legend, columns = style.panels(1, labels)
            handles = [style.handle(label, style.line(i)) for i, label in enumerate(labels)]
            if own:
                style.under(axes, handles, 2)
            else:
                style.below(legend, handles, columns)
            layout.fit(drawn)
            self.assertLess(drawn.get_size_inches()[0], 6.6)
            text = (axes if own else legend).get_legend().get_texts()[0].get_text()
            self.assertEqual(text.split(), ["word"] * 40)

    def test_one_figure_of_many_runs_has_several_panels(self):
        read = [runs.read_run(folder) for folder in self.many(45, epochs=1)]
        runs.label_runs(read)
        drawn = figure.draw(read)
        panels = [axes for axes in drawn.axes if axes.get_xlabel() == "epoch"]
        self.assertEqual([len(axes.lines) // 2 for axes in panels], [7, 7, 7, 7, 7, 7, 3])
        rows = [axes for axes in drawn.axes if axes not in panels]
        self.assertEqual([len(axes.get_xticks()) for axes in rows], [15, 15, 15])
        self.assertEqual(len({axes.get_ylim() for axes in rows}), 1)


if __name__ == "__main__":
    unittest.main()
