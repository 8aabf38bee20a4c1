"""The report of a set of runs: its numbers against hand computation, its figures' contents, and its files."""

import html.parser
import json
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree

from harness import REPORT
from report_harness import FOUR, NONE, ReportTest

import pandas
import published
import words
from scipy import stats
from view import bars, curves, differences, gather, item, latex, page, price, report, scale, tradeoff

# Void elements need no end.
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects identifiers, references and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.references, self.text, self.tags = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.references.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


class Pages(ReportTest):
    def seeds(self):
        """Full precision with three seeds, 4 bit with two."""
        return [
            self.run_folder("a1", [80, 90, 92]),
            self.run_folder("a2", [81, 89, 94], seed=2),
            self.run_folder("a3", [85, 91, 93], seed=3),
            self.run_folder("b1", [70, 88, 90], FOUR, sent=50, communication=0.5),
            self.run_folder("b2", [74, 84, 88], FOUR, seed=2, sent=50, communication=0.5),
        ]

    def test_seeds_are_pooled(self):
        one, two = self.groups(self.seeds())
        self.assertEqual((one.name, two.name), ("none (3 seeds)", "qsgd 4 bit, bucket 512 (2 seeds)"))
        mean, deviation = gather.mean_and_deviation(one.finals("val_top1"))
        self.assertEqual((mean, deviation), (93.0, 1.0))  # of 92, 94, 93
        mean, deviation = gather.mean_and_deviation(two.finals("val_top1"))
        self.assertEqual(mean, 89.0)
        self.assertAlmostEqual(deviation, 2**0.5)  # of 90 and 88
        x, y, spread = one.curve("val_top1", "epoch")
        self.assertEqual((list(x), list(y)), ([1, 2, 3], [82, 90, 93]))
        self.assertEqual(list(spread), [7**0.5, 1, 1])
        self.assertEqual(list(two.curve("val_top1", "seconds")[0]), [3.5, 7, 10.5])
        self.assertEqual(list(two.curve("val_top1", "bytes")[0]), [50, 100, 150])

    def test_differences_of_settings(self):
        folders = [*self.seeds(), self.run_folder("c1", [60, 70, 80], FOUR, ranks=4)]
        groups = self.groups(folders)
        (row,) = differences.item(groups, "net").data.to_dict("records")  # one seed has no deviation
        self.assertEqual((row["label"], row["less"]), (groups[1].label, groups[0].label))
        self.assertEqual((row["seeds"], row["seeds_of_less"], row["difference"]), (2, 3, -4.0))
        # A difference that ends where the interval does has a probability of 5 % by SciPy's test.
        edge = [value + 4 + row["plus_minus"] for value in (90, 88)]
        self.assertAlmostEqual(stats.ttest_ind(edge, [92, 94, 93], equal_var=False).pvalue, 0.05, 4)
        self.assertGreater(row["plus_minus"], 4)
        self.assertEqual((row["visible"], row["plus_minus_of_same_seeds"]), ("no", None))
        self.assertIsNone(differences.item(groups[1:], "net"))

    def test_differences_of_the_same_seeds(self):
        values = {"a": (80.0, 84.0, 88.0), "b": (80.9, 85.0, 89.1)}
        codecs = {"a": NONE, "b": FOUR}
        folders = [
            self.run_folder(f"{name}{seed}", [50, value], codecs[name], seed=seed)
            for name, of_seeds in values.items()
            for seed, value in enumerate(of_seeds)
        ]
        folders.append(self.run_folder("copy", [50, 10.0], FOUR, seed=1))  # the first of a seed counts
        (row,) = differences.item(self.groups(folders), "net").data.to_dict("records")
        self.assertEqual((row["seeds"], row["seeds_of_less"], row["visible"]), (3, 3, "by same seeds"))
        self.assertEqual(row["difference"], 1.0)
        edge = [value - 1 + row["plus_minus_of_same_seeds"] for value in values["b"]]
        self.assertAlmostEqual(stats.ttest_rel(edge, values["a"]).pvalue, 0.05, 3)
        self.assertGreater(row["plus_minus"], 1)

    def test_differences_of_published_runs(self):
        """ResNet-9 with float32 and QSGD 2 bit: docs/results/resnet9-codecs."""
        difference, half = differences.welch([84.08, 84.19, 84.05], [85.72, 85.48, 86.33])
        self.assertEqual((round(difference, 2), round(half, 2)), (-1.74, 1.05))
        self.assertEqual(differences.welch([3.0, 3.0], [1.0, 1.0]), (2.0, None))
        self.assertIsNone(differences.paired([3.0, 4.0], [1.0, 2.0]))

    def test_a_long_table_is_folded(self):
        items = [
            item.Item(f"rows_{rows}", "Rows", "Rows.", pandas.DataFrame({"row": range(rows)}))
            for rows in (page.LONG, page.LONG + 1)
        ]
        text = page.text("Tables", items, [], [])
        self.assertEqual(re.findall(r"<details><summary>(.*?)</summary>", text), [f"{page.LONG + 1} rows"])

    def test_time_and_bytes_to_a_target(self):
        one, two = groups = self.groups(self.seeds())
        self.assertEqual(one.to_target("val_top1", 90), [[2, 3, 2], [8.0, 12.0, 8.0], [200, 300, 200]])
        self.assertEqual(two.to_target("val_top1", 90), [[3], [10.5], [150]])
        self.assertEqual(two.to_target("val_top1", 95), [[], [], []])
        rows = tradeoff.target_table(groups, ("val_top1", 90.0)).data.to_dict("records")
        self.assertEqual((rows[0]["reached"], rows[0]["seeds"]), (3, 3))
        self.assertAlmostEqual(rows[0]["epochs"], 7 / 3)
        self.assertAlmostEqual(rows[0]["seconds_deviation"], (16 / 3) ** 0.5)  # of 8, 12, 8: mean 28/3
        self.assertEqual((rows[1]["reached"], rows[1]["seconds"], rows[1]["bytes"]), (1, 10.5, 150))

    def test_accuracy_against_bytes(self):
        item = tradeoff.against_bytes(self.groups(self.seeds()), "net")
        self.assertEqual(list(item.data["ratio"]), [4, 8])  # 400 of float32 over those sent
        self.assertEqual(
            item.figure.axes[0].get_xlabel(), "bytes on the wire, times fewer than float32"
        )
        least, most = item.figure.axes[0].get_ylim()
        for mean, deviation in zip(item.data["val_top1_mean"], item.data["val_top1_deviation"]):
            self.assertTrue(least < mean - deviation and mean + deviation < most, "a bar is cut")

    def test_bytes_of_other_batches_are_compared_with_the_first_runs(self):
        """A quarter of the steps sends a quarter of the bytes, though float32's of its steps."""
        folders = [
            run
            for seed in (1, 2)
            for run in (
                self.run_folder(f"small{seed}", [90], seed=seed, sent=1600, float32=1600, reduce_min=0),
                self.run_folder(f"large{seed}", [90], seed=seed, sent=400, float32=400, reduce_min=1),
                self.run_folder(f"coded{seed}", [89], FOUR, seed=seed, sent=50, float32=400),
            )
        ]
        groups = self.groups(folders)
        item = tradeoff.against_bytes(groups, "net")
        self.assertEqual(list(item.data["ratio"]), [1, 4, 32])
        label = item.figure.axes[0].xaxis.label
        self.assertEqual(
            label.get_text().replace("\n", " "),
            f"bytes on the wire, times fewer than float32 in every step of “{groups[0].name}”",
        )
        item.figure.canvas.draw()
        text, figure = label.get_window_extent(), item.figure.bbox
        self.assertTrue(figure.x0 <= text.x0 and text.x1 <= figure.x1, "the label is cut")

    def test_bytes_are_compared_with_float32_in_every_step(self):
        """Also where the first run in float32 sends less: it has local steps."""
        folders = [
            self.run_folder("local", [90], sent=100, float32=400, reduce_min=0),
            self.run_folder("small", [91], sent=1600, float32=1600, reduce_min=1),
        ]
        self.assertEqual(list(tradeoff.against_bytes(self.groups(folders), "net").data["ratio"]), [4, 0.25])

    def test_curves_show_the_means(self):
        groups = self.groups(self.seeds())
        items = {item.name: item for item in curves.items(groups, "net", ("val_top1", 90.0))}
        self.assertEqual(set(items), {"top1_by_epoch_net", "top1_by_seconds_net", "top1_by_bytes_net"})
        axes = items["top1_by_bytes_net"].figure.axes[0]
        self.assertEqual(list(axes.lines[1].get_xdata()), [50, 100, 150])
        self.assertEqual(list(axes.lines[0].get_ydata()), [82, 90, 93])
        looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines[:2]}
        self.assertEqual(len(looks), 2)
        self.assertNotEqual(axes.lines[0].get_marker(), axes.lines[1].get_marker())
        data = items["top1_by_epoch_net"].data
        self.assertEqual(list(data["val_top1_mean"]), [82, 90, 93, 72, 86, 89])

    def test_text_has_perplexity(self):
        groups = self.groups([self.run_folder("t", [1, 2], perplexity=[300.0, 120.0])])
        items = curves.items(groups, "net", ("val_perplexity", 150.0))
        self.assertEqual(items[0].name, "perplexity_by_epoch_net")
        self.assertEqual(list(items[0].figure.axes[0].lines[0].get_ydata()), [300, 120])
        self.assertEqual(groups[0].to_target("val_perplexity", 150), [[2], [8.0], [200]])
        self.assertEqual(curves.final(groups, "net").data["val_perplexity_mean"].tolist(), [120])

    def test_many_codecs_are_split_with_full_precision_in_each_panel(self):
        folders = [self.run_folder("none", [90, 91])]
        folders += [
            self.run_folder(f"t{i}", [80 + i, 81 + i], {"kind": "topk", "density": i / 100})
            for i in range(1, 15)
        ]
        parts = curves.split(self.groups(folders))
        self.assertEqual([len(part) for _, part in parts], [6, 6, 5])
        self.assertTrue(all(part[0].codec == "none" for _, part in parts))

    def test_communication_is_below_computation(self):
        item = bars.items(self.groups(self.seeds(), ("network", "ranks", "transport")), "mpi")
        communication, computation = item.figure.axes[0].containers
        self.assertEqual([bar.get_height() for bar in communication], [1.0, 0.5])
        self.assertEqual([bar.get_y() for bar in communication], [0, 0])
        self.assertEqual([(bar.get_y(), bar.get_height()) for bar in computation], [(1.0, 3.0), (0.5, 3.0)])
        self.assertTrue(all(bar.get_hatch() for bar in communication))
        self.assertFalse(any(bar.get_hatch() for bar in computation))

    def test_samples_per_second_beside_the_published(self):
        folders = [self.run_folder(f"k{k}", [50], ranks=k, network="alexnet") for k in (1, 2, 4)]
        groups = self.groups(folders, ("network", "ranks", "transport"))
        table = scale.table(groups, "mpi").data
        self.assertEqual(
            table.loc[0, ["codec", "of", "1", "2", "4"]].tolist(), ["none", "here", 100, 200, 400]
        )
        study = table[(table.of == "study (K80)") & (table.codec == "32 bit")].iloc[0]
        self.assertEqual([study["1"], study["2"], study["16"]], [240.8, 301.45, 192.1])
        data = scale.scalability(groups, groups, "mpi").data
        self.assertEqual(data[data.of == "here"]["scalability"].tolist(), [1, 2, 4])
        theirs = data[(data.label == "study, 32 bit") & (data.ranks == 4)].iloc[0]
        self.assertAlmostEqual(theirs.scalability, 328.0 / 240.8)
        self.assertIsNone(scale.scalability(groups[1:], groups[1:], "mpi"))

    def test_price_of_the_published_configurations(self):
        rows = {(r["network"], r["label"]): r for r in price.cheapest()}
        row = rows["resnet110", "32 bit on one GPU"]
        # 160 epochs of 50,000 samples at 343.7 samples/s on one GPU of 0.9 $ an hour
        self.assertEqual(row["ranks"], 1)
        self.assertAlmostEqual(row["dollars"], 160 * 50_000 / 343.7 / 3600 * 0.9)
        self.assertEqual(row["top1"], 93.86)
        # Of several GPUs the cheapest, over MPI: 4 and 8 rent the same machine.
        samples = 112 * 1_281_167
        for label, speed, ranks in (("32 bit", 328.0, 4), ("QSGD 8 bit", 739.1, 8)):
            row = rows["alexnet", label]
            self.assertEqual((row["ranks"], row["transport"]), (ranks, "mpi"))
            self.assertAlmostEqual(row["dollars"], samples / speed / 3600 * 7.2)
        self.assertEqual([r["codec"] for r in rows.values() if r["ranks"] == 1], ["none"] * 4)
        mine = price.ours(self.groups(self.seeds()), 2.0)[0]
        self.assertAlmostEqual(mine["dollars"], 12 / 3600 * 2 * 2.0)
        self.assertEqual(published.cheapest_machine(16), (14.4, 16))
        self.assertIsNone(published.training_price("alexnet", 32, 1.0))

    def test_price_has_one_rule_in_the_report_and_in_the_outlook(self):
        self.assertEqual(published.price_choices("none", [1, 2, 8]), [[1], [2, 8]])
        self.assertEqual(published.price_choices("qsgd8", [1, 2, 8]), [[2, 8]])
        item = price.item(self.groups(self.seeds()), None)
        legend = [text.get_text() for text in item.figure.axes[-1].get_legend().get_texts()]
        self.assertEqual(legend[:3], ["one GPU or rank", "32 bit", "QSGD 8 bit"])
        self.assertIn("one GPU, which sends nothing, is a mark of its own", item.caption)

    def test_labels_say_what_differs(self):
        folders = [
            self.run_folder("a", [1], FOUR),
            self.run_folder("b", [1], FOUR, rules=[{"kind": "conv", "codec": NONE}]),
            self.run_folder("c", [1], FOUR, min_elements=0),
            self.run_folder("d", [1], NONE, collective="allreduce"),
            self.run_folder("e", [1], FOUR, overlap=False),
            self.run_folder("f", [1], FOUR, link={"bandwidth": "1Gbit", "latency": "50us"}),
            self.run_folder("g", [1], {**FOUR, "levels": "interval"}),
            self.run_folder("h", [1], FOUR, collective="simulated"),
        ]
        base = "qsgd 4 bit, bucket 512"
        self.assertEqual(
            [g.label for g in self.groups(folders)],
            [
                base,
                base + ", conv: none",
                base + ", from 0 elements",
                "none, allreduce",
                base + ", no overlap",
                base + ", 1Gbit 50us",
                "qsgd 4 bit interval, bucket 512",
                base + " (simulated)",
            ],
        )
        configs = [{"sync": {"kind": "every_step"}}, {"sync": {"kind": "local_sgd", "steps": 8}}]
        self.assertEqual(
            words.labels(configs, [2, 4]), ["none, every_step, 2 ranks", "none, local SGD, H = 8, 4 ranks"]
        )

    def test_each_way_to_synchronise_has_a_name(self):
        for sync, text in [
            ({"kind": "every_step"}, "every_step"),
            ({"kind": "local_sgd", "steps": 4, "warmup": "none", "reset_momentum": False}, "local SGD, H = 4"),
            ({"kind": "local_sgd", "steps": 4, "fragments": 1}, "local SGD, H = 4"),
            ({"kind": "local_sgd", "steps": 4, "fragments": 2, "delay": 0}, "local SGD, H = 4, fragments 2"),
            ({"kind": "local_sgd", "steps": 4, "fragments": 1, "delay": 3, "mix": 0.5}, "local SGD, H = 4, delay 3"),
            ({"kind": "local_sgd", "steps": 4, "distance": True}, "local SGD, H = 4"),
            ({"kind": "post_local_sgd", "steps": 16, "from": "first_decay"}, "post-local SGD, H = 16, from first decay"),
            ({"kind": "hierarchical_local_sgd", "steps": 4, "block_steps": 2, "ranks_per_block": "node"},
             "hierarchical local SGD, H = 4 x 2, ranks per block node"),
            ({"kind": "block_momentum", "steps": 8, "momentum": 0.9, "rate": 0.7, "nesterov": True},
             "block momentum, H = 8, momentum 0.9, rate 0.7, nesterov"),
        ]:
            self.assertEqual(words.sync_text(sync), text)

    def study_folder(self):
        names = []
        for label, codec, values in (("full", NONE, [80, 92]), ("four", FOUR, [70, 90])):
            for seed in (1, 2):
                name = f"{label}-{seed}"
                names.append(name)
                self.run_folder(
                    f"grid/runs/{name}",
                    [v + seed for v in values],
                    codec,
                    seed=seed,
                    study={
                        "study": "<grid>",
                        "label": f"{label}, seed {seed}",
                        "axes": {"codec": label, "seed": seed},
                        "command": ["mpirun", "-n", "2", "lpsgd", "train", "a & b.yaml"],
                    },
                )
        grid = {"name": "<grid>", "target": {"val_top1": 90}, "runs": [*names, "missing"]}
        (self.root / "grid" / "study.json").write_text(json.dumps(grid))
        return str(self.root / "grid")

    def test_a_study_has_its_own_names(self):
        read, target, unfinished = gather.read([self.study_folder()])
        self.assertEqual((target, unfinished), (("val_top1", 90), ["missing"]))
        self.assertEqual([g.name for g in gather.groups(read)], ["full (2 seeds)", "four (2 seeds)"])

    def test_the_folder_of_a_report(self):
        out = self.root / "out"
        result = subprocess.run(
            [sys.executable, str(REPORT / "lpsgd_report.py"), self.study_folder(), "--out", str(out)],
            capture_output=True,
            text=True,
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stderr)
        figures = {path.stem for path in (out / "figures").iterdir()}
        self.assertEqual(
            figures,
            {
                "top1_by_epoch_net",
                "top1_by_seconds_net",
                "top1_by_bytes_net",
                "final_top1_net",
                "accuracy_against_bytes_net",
                "to_target_net",
                "time_per_epoch_mpi",
                "price_against_accuracy",
            },
        )
        heads = {
            ".png": b"\x89PNG",
            ".pdf": b"%PDF",
            ".svg": b"<?xml",
            ".csv": b"",
            ".tex": b"\\begin{figure}",
        }
        for name in figures:
            for ending, head in heads.items():
                content = (out / "figures" / (name + ending)).read_bytes()
                self.assertTrue(content.startswith(head) and len(content) > 40, name + ending)
            xml.etree.ElementTree.parse(out / "figures" / (name + ".svg"))
        tables = {path.stem for path in (out / "tables").iterdir()}
        self.assertEqual(tables, {"summary", "differences_top1_net", "to_target", "samples_per_s_mpi"})
        summary = pandas.read_csv(out / "tables" / "summary.csv")
        self.assertEqual(summary["val_top1"].tolist(), [93.5, 91.5])
        self.assertEqual(summary["deviation"].tolist(), [0.71, 0.71])
        self.assertIn(r"\begin{tabular}", (out / "tables" / "summary.tex").read_text())
        self.check_page((out / "index.html").read_text(), figures | tables)

    def check_page(self, content, names):
        self.assertNotRegex(content, r"https?:")
        self.assertNotRegex(content, r"@import|url\((?!#)")
        read = Page()
        read.feed(content)
        self.assertEqual(read.open, [])
        self.assertEqual(len(read.ids), len(set(read.ids)))
        self.assertTrue(names <= set(read.ids))
        self.assertTrue(
            all(r.startswith("#") and r[1:] in read.ids for r in read.references), read.references[:5]
        )
        self.assertEqual(read.tags.count("svg"), 8)
        self.assertNotIn("link", read.tags)
        text = "".join(read.text)
        self.assertIn("Study <grid>", text)
        self.assertIn("1 run not finished, so left out: missing.", text)
        self.assertEqual(text.count("mpirun -n 2 lpsgd train 'a & b.yaml'"), 4)
        self.assertEqual(len(re.findall("batch_size: 64", text)), 4)

    def test_the_same_runs_give_the_same_page(self):
        folders = self.seeds()[:1]
        pages = []
        for name in ("one", "two"):
            report.make(*[gather.read(folders)[0], []], str(self.root / name))
            pages.append((self.root / name / "index.html").read_bytes())
        self.assertEqual(*pages)

    def test_latex_escapes(self):
        self.assertEqual(latex.escape(r"50 % of a_b & \x"), r"50 \% of a\_b \& \textbackslash{}x")

    def test_what_is_refused(self):
        def refused(*words):
            result = subprocess.run(
                [sys.executable, str(REPORT / "lpsgd_report.py"), *words], capture_output=True, text=True
            )
            self.assertEqual(
                (result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result
            )
            return result.stderr

        folder = self.run_folder("a", [1])
        self.assertIn(
            "--target top=1: expected a metric and its value, such as val_top1=90",
            refused(folder, "--out", str(self.root / "o"), "--target", "top=1"),
        )
        self.assertIn(
            "none/metrics.jsonl: cannot be read",
            refused(str(self.root / "none"), "--out", str(self.root / "o")),
        )
        (self.root / "study.json").write_text(json.dumps({"runs": ["x"]}))
        self.assertIn("holds no finished run yet", refused(str(self.root), "--out", str(self.root / "o")))
        (self.root / "file").write_text("")
        self.assertIn("file", refused(folder, "--out", str(self.root / "file" / "o")))


if __name__ == "__main__":
    unittest.main()
