"""lpsgd_report.py: what it draws, prints and refuses. Ends with 77, a skip, where a package is missing."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from harness import FolderTest, require, run_main

require("matplotlib", "pandas", "yaml")
import figure  # noqa: E402
import lpsgd_report  # noqa: E402
import modules  # noqa: E402
import runs  # noqa: E402
import table  # noqa: E402
import trace_picture  # noqa: E402


def record(epoch, **changes):
    base = {
        "epoch": epoch,
        "train_top1": 40.0 + epoch,
        "val_top1": 50.0 + epoch,
        "samples_per_s": 1000.0 * epoch,
        "communication_s": 2.0 * epoch,
        "computation_s": 10.0,
        "bytes_sent": 1_000_000,
        "bytes_fp32": 7_900_000,
        "replicas_equal": True,
    }
    return {**base, **changes}


class Report(FolderTest):
    def run_folder(
        self, name, records, codec="{kind: qsgd, bits: 4, bucket: 512}", ranks=2, more="", tail=""
    ):
        folder = self.root / name
        folder.mkdir()
        (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + tail)
        (folder / "config.yaml").write_text(f"network: a.yaml\nexchange:\n  codec: {codec}\n{more}")
        if ranks:
            (folder / "summary.json").write_text(json.dumps({"ranks": ranks}))
        return str(folder)

    def report(self, *words):
        """Exit status, standard output, standard error."""
        return run_main(lpsgd_report, *words)

    def refused(self, folder):
        status, out, err = self.report(folder, "--table")
        self.assertEqual(status, 2)
        self.assertEqual(out, "")
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def test_table(self):
        one = self.run_folder("first", [record(1), record(2)])
        two = self.run_folder(
            "second", [record(1, bytes_sent=0, bytes_fp32=0)], codec="{kind: none}", ranks=None
        )
        status, out, err = self.report(one, two, "--table")
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        self.assertEqual(
            lines[0].split("  ")[0:1] + lines[0].split()[1:],
            ["run", *"codec ranks top-1 % samples/s comm. s comp. s wire ratio".split()],
        )
        cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in lines]
        self.assertEqual(
            cells[2],
            ["first", "qsgd 4 bit, bucket 512", "2", "52.00", "1500", "3.00", "10.00", "1.00 MB", "7.9x"],
        )
        self.assertEqual(cells[3], ["second", "none", "-", "51.00", "1000", "2.00", "10.00", "0 B", "-"])
        self.assertEqual(len(lines[0]), len(lines[2]), "columns are aligned")
        self.assertTrue(lines[4].startswith("top-1: "))

    def test_table_of_slow_runs(self):
        rates = (0.37249, 1.0, 99.94, 99.96, 2345.6)
        runs = [self.run_folder(f"r{i}", [record(1, samples_per_s=rate)]) for i, rate in enumerate(rates)]
        (_, *rows), _ = self.cells(*runs)
        self.assertEqual([row[4] for row in rows], ["0.372", "1.00", "99.9", "100", "2346"])

    def cells(self, *words):
        """Of each line of the table but the dashes, and its last line."""
        status, out, err = self.report(*words, "--table")
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        return [[c.strip() for c in line.split("  ") if c.strip()] for line in lines[:1] + lines[2:-1]], lines[-1]

    def test_table_of_local_steps(self):
        every = self.run_folder("every", [record(1)])
        local = self.run_folder("local", [record(1)], more="sync: {kind: local_sgd, steps: 8}\n")
        (head, *_), _ = self.cells(every)
        self.assertNotIn("sync", head)
        (head, *rows), _ = self.cells(every, local)
        self.assertEqual(head[:4], ["run", "codec", "sync", "ranks"])
        self.assertEqual([row[2:4] for row in rows], [["every_step", "2"], ["local SGD, H = 8", "2"]])
        out = self.report(every, local, "--table")[1].splitlines()
        self.assertEqual(out[0].index("sync"), out[3].index("local SGD"), "words are aligned to the left")

    def test_table_of_a_target(self):
        records = [record(e) for e in (1, 2, 3)]  # 51, 52, 53 % after 12, 26 and 42 seconds
        fast, slow = self.run_folder("fast", records), self.run_folder("slow", records[:1])
        (head, *rows), note = self.cells(fast, slow, "--target", "val_top1=52")
        self.assertEqual(head[-3:], ["epochs to", "seconds to", "bytes to"])
        self.assertEqual([row[-3:] for row in rows], [["2", "26.0", "2.00 MB"], ["-", "-", "-"]])
        self.assertIn("; to: until val_top1 is 52, ", note)
        rows = self.cells(fast, "--target", "val_top1=52", "--untimed")[0]
        self.assertEqual(rows[1][-3:], ["2", "-", "2.00 MB"])
        self.assertNotIn("epochs to", self.cells(fast)[0][0])
        for text, message in (
            ("val_perplexity=90", "--target val_perplexity=90: no run has val_perplexity"),
            ("val_top1=nan", "--target val_top1=nan: expected a metric and its value, such as val_top1=90"),
        ):
            self.assertEqual(self.report(fast, "--table", "--target", text), (2, "", f"lpsgd: error: report: {message}\n"))

    def test_a_run_without_an_epoch_is_skipped(self):
        good = self.run_folder("good", [record(1)])
        empty = self.run_folder("empty", [], tail='{"epoch": 1, ')
        begun = self.run_folder("begun", [])
        os.remove(os.path.join(begun, "metrics.jsonl"))
        warnings = "".join(f"lpsgd report: {name}: holds no finished epoch yet; skipped\n" for name in (empty, begun))
        status, out, err = self.report(empty, good, begun, "--table")
        self.assertEqual((status, err), (0, warnings))
        self.assertEqual([line.split()[0] for line in out.splitlines()[2:-1]], ["good"])
        for out in ("f.png", "folder"):
            status, _, err = self.report(empty, good, begun, "--out", str(self.root / out))
            self.assertEqual((status, err), (0, warnings))
        page = (self.root / "folder" / "index.html").read_text()
        self.assertIn("2 runs not finished, so left out: empty, begun.", page)
        self.assertEqual(self.report(empty, begun, "--table"), (
            2, "", f"lpsgd: error: report: {empty}: holds no finished run yet; nor do the others\n"))
        self.assertIn("/metrics.jsonl: is not there yet, so no epoch is finished", self.refused(begun))

    def test_a_run_of_a_study_without_an_epoch_is_skipped(self):
        (self.root / "runs").mkdir()
        for name, records in (("good", [record(1)]), ("empty", []), ("begun", []), ("running", [record(1)])):
            self.run_folder(f"runs/{name}", records, ranks=None if name in ("begun", "running") else 2)
        names = ["good", "empty", "begun", "running", "pending"]
        self.write("study.json", json.dumps({"name": "s", "runs": names}))
        status, out, err = self.report(str(self.root), "--table")
        self.assertEqual(status, 0)
        folders = [f"{self.root}/runs/{name}" for name in ("empty", "begun")]
        waiting = [f"{self.root}/runs/{name}: is not finished; skipped" for name in ("running", "pending")]
        warnings = waiting + [f"{folder}: holds no finished epoch yet; skipped" for folder in folders]
        self.assertEqual(err, "".join(f"lpsgd report: {text}\n" for text in warnings))
        self.assertEqual([line.split()[0] for line in out.splitlines()[2:-1]], ["good"])

    def test_text_shows_its_perplexity(self):
        words = [record(e, train_perplexity=90.0 + e, val_perplexity=120.0 - e) for e in (1, 2)]
        text = self.run_folder("text", words)
        images = self.run_folder("images", [record(1)])
        status, out, err = self.report(text, images, "--table")
        self.assertEqual((status, err), (0, ""))
        cells = [[c.strip() for c in line.split("  ") if c.strip()] for line in out.splitlines()]
        self.assertEqual(cells[0][3:5], ["top-1 %", "perplexity"])
        self.assertEqual(cells[2][3:5], ["52.00", "118.00"])
        self.assertEqual(cells[3][3:5], ["51.00", "-"])
        self.assertTrue(out.splitlines()[4].startswith("top-1 and perplexity: "))

        left = figure.draw([runs.read_run(text)]).axes[0]
        self.assertEqual(list(left.lines[0].get_ydata()), [119, 118])
        self.assertEqual(list(left.lines[1].get_ydata()), [91, 92])
        self.assertEqual(left.get_ylabel(), "perplexity")
        left = figure.draw([runs.read_run(text), runs.read_run(images)]).axes[0]
        self.assertEqual(list(left.lines[0].get_ydata()), [51, 52])
        self.assertEqual(left.get_ylabel(), "top-1 accuracy (%)")

    def test_figure_shows_the_numbers(self):
        folders = [
            self.run_folder("a", [record(1), record(2), record(3)]),
            self.run_folder("b", [record(1)], codec="{kind: onebit, bucket: 64}"),
        ]
        read = [runs.read_run(folder) for folder in folders]
        runs.label_runs(read)
        left, right = figure.draw(read).axes
        validation, training = left.lines[0], left.lines[1]
        self.assertEqual(list(validation.get_xdata()), [1, 2, 3])
        self.assertEqual(list(validation.get_ydata()), [51, 52, 53])
        self.assertEqual(list(training.get_ydata()), [41, 42, 43])
        self.assertTrue(training.is_dashed() and not validation.is_dashed())
        communication, computation = right.containers
        self.assertEqual([bar.get_height() for bar in computation], [10, 10])
        self.assertEqual([bar.get_height() for bar in communication], [4, 2])  # means over epochs
        self.assertEqual([bar.get_y() for bar in computation], [4, 2])  # on top
        labels = [label.get_text().replace("\n", " ") for label in right.get_xticklabels()]
        self.assertEqual(labels, ["qsgd 4 bit, bucket 512", "onebit, bucket 64"])

    def test_figure_covers_nothing(self):
        names = [f"run{i}" for i in range(6)]
        read = [runs.read_run(self.run_folder(name, [record(e) for e in range(1, 6)])) for name in names]
        runs.label_runs(read)
        drawn = figure.draw(read)
        drawn.canvas.draw()
        size = drawn.bbox
        for axes in drawn.axes:
            legend = axes.get_legend().get_window_extent()
            self.assertFalse(legend.overlaps(axes.get_window_extent()))
            self.assertGreaterEqual(legend.y0, size.y0)
            self.assertGreaterEqual(legend.x0, size.x0)
            self.assertLessEqual(legend.x1, size.x1)
            for label in axes.get_xticklabels():
                self.assertFalse(legend.overlaps(label.get_window_extent()))
            boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            for a, b in zip(boxes, boxes[1:]):
                self.assertFalse(a.overlaps(b))
        for text in drawn.axes[1].texts:
            self.assertLessEqual(text.get_window_extent().y1, drawn.axes[1].get_window_extent().y1)

    def test_writes_the_figure(self):
        folder = self.run_folder("a", [record(1)])
        out = self.root / "f.png"
        status, _, err = self.report(folder, "--out", str(out))
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        status, _, err = self.report(folder, "--out", str(self.root / "f.xyz"))
        self.assertEqual(status, 2)
        self.assertIn("f.xyz", err)
        self.assertEqual(err.count("\n"), 1)

    def test_runs_of_one_codec_are_told_apart(self):
        def label(*folders):
            read = [runs.read_run(folder) for folder in folders]
            runs.label_runs(read)
            return [run.label for run in read]

        a = self.run_folder("a", [record(1)], ranks=2)
        b = self.run_folder("b", [record(1)], ranks=4)
        c = self.run_folder("c", [record(1)], ranks=4)
        d = self.run_folder("d", [record(1)], codec="{kind: none}", more="  collective: simulated\n")
        base = "qsgd 4 bit, bucket 512"
        self.assertEqual(label(a), [base])
        self.assertEqual(label(a, b), [base + ", 2 ranks", base + ", 4 ranks"])
        self.assertEqual(label(a, b, c), [base + ", 2 ranks", base + ", 4 ranks, b", base + ", 4 ranks, c"])
        self.assertEqual(label(a, d), [base, "none (simulated)"])

    def test_an_unfinished_last_line_is_ignored(self):
        for tail in ('{"epoch": 3, "train_to', json.dumps(record(3))):
            folder = self.run_folder(f"a{len(tail)}", [record(1), record(2)], tail=tail)
            status, out, err = self.report(folder, "--table")
            self.assertEqual(status, 0)
            self.assertIn(" 52.00 ", out)
            self.assertEqual(err, f"lpsgd report: {folder}/metrics.jsonl:3: unfinished last line ignored\n")

    def test_an_epoch_run_again_counts_once(self):
        folder = self.run_folder("a", [record(1), record(2), record(2, val_top1=77.0)])
        self.assertEqual(list(runs.read_run(folder).epochs["val_top1"]), [51.0, 77.0])

    def test_refuses_with_file_and_line(self):
        missing = record(2)
        del missing["communication_s"]
        cases = (
            ([record(1), missing], "", "metrics.jsonl:2: 'communication_s' is missing"),
            ([record(1, val_top1=None)], "", "metrics.jsonl:1: 'val_top1' is null, not a finite number"),
            ([record(1, bytes_sent="7")], "", "metrics.jsonl:1: 'bytes_sent' is \"7\", not a finite number"),
            ([record(float("nan"))], "", "metrics.jsonl:1: 'epoch' is NaN, not a finite number"),
            ([record(1), [1]], "", "metrics.jsonl:2: not an object"),
            ([record(1)], "{oops\n", "metrics.jsonl:2: not JSON: "),
            ([], "", "metrics.jsonl: holds no finished epoch yet"),
        )
        for i, (records, tail, message) in enumerate(cases):
            folder = self.run_folder(f"case{i}", records, tail=tail)
            self.assertIn(f"lpsgd: error: report: {folder}/{message}", self.refused(folder))

    def test_refuses_what_is_not_a_run(self):
        self.assertIn(
            "/none/metrics.jsonl: cannot be read: No such file", self.refused(str(self.root / "none"))
        )
        folder = self.run_folder("a", [record(1)])
        config = os.path.join(folder, "config.yaml")
        for text, message in (("a: [1\n", "config.yaml:2: not YAML: "), ("- 1\n", "config.yaml: not a map")):
            pathlib.Path(config).write_text(text)
            self.assertIn(message, self.refused(folder))
        os.remove(config)
        self.assertIn("config.yaml: cannot be read: No such file", self.refused(folder))

    def test_needs_something_to_do(self):
        status, _, err = self.report(self.run_folder("a", [record(1)]))
        self.assertEqual(status, 2)
        mistake = "lpsgd: error: report: nothing to do: give --out, --table or both"
        self.assertEqual(err, f"{mistake}; 'lpsgd report --help' lists the options\n")

    def test_bytes_text(self):
        for count, expected in (
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9994, "9.99 kB"),
            (9996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_501, "1.00 MB"),
            (5e12, "5.00 TB"),
            (2.93e17, "293 PB"),
        ):
            self.assertEqual(table.bytes_text(count), expected)


class MissingModules(unittest.TestCase):
    """Another interpreter: one of another name that finds modules which cannot be imported."""

    def run_without(self, script, *missing, arguments=(), debian_has_them=True):
        with tempfile.TemporaryDirectory() as folder:
            for name in missing:
                pathlib.Path(folder, name + ".py").write_text("raise ImportError")
            code = [
                "import os, runpy, sys",
                (
                    "os.environ.pop('PYTHONPATH')" if debian_has_them else ""
                ),  # what a second interpreter inherits
                "sys.executable, sys.dont_write_bytecode = '/opt/python', True",
                f"sys.argv = {[script, *arguments]!r}",
                f"sys.path.insert(0, {os.path.dirname(script)!r})",
                f"runpy.run_path({script!r}, run_name='__main__')",
            ]
            return subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"})

    def test_each_script_says_what_is_missing_and_where_it_is(self):
        report = pathlib.Path(modules.__file__).parent
        for script, missing, words in (
            ("lpsgd_report.py", ["pandas"], ["run"]),
            ("lpsgd_report.py", ["matplotlib", "yaml"], ["run"]),
            ("trace_picture.py", ["matplotlib"], ["trace", "--out", "f.png"]),
            ("exchange_cost.py", ["matplotlib"], ["cost.json", "--out", "f.png"]),
        ):
            path = str(report / script)
            for debian in (True, False):
                result = self.run_without(path, *missing, arguments=words, debian_has_them=debian)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result)
                if debian:
                    what = "it" if len(missing) == 1 else "them"
                    advice = f"/usr/bin/python3 has {what}: /usr/bin/python3 {os.path.relpath(path)} ..."
                else:
                    advice = "install: apt-get install " + " ".join("python3-" + name for name in missing)
                self.assertEqual(
                    result.stderr,
                    f"{script[:-3]}: /opt/python has no module {' and '.join(missing)}; {advice}\n",
                )

    def test_commands_run_under_debians_python_whichever_comes_first(self):
        report = pathlib.Path(modules.__file__).parent
        commands = [path for path in report.glob("*.py") if os.access(path, os.X_OK)]
        self.assertGreaterEqual(len(commands), 4)
        for path in commands:
            self.assertEqual(path.read_text().splitlines()[0], "#!" + modules.DEBIANS, path)

    def test_a_table_of_costs_needs_no_module(self):
        script = str(pathlib.Path(modules.__file__).parent / "exchange_cost.py")
        result = self.run_without(script, "matplotlib", arguments=["/none.json"])
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result)
        self.assertIn("No such file", result.stderr)


class TracePicture(FolderTest):
    def trace(self, rank):
        def span(tid, name, start, end):
            return {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": rank,
                "tid": tid,
                "ts": 1e3 * start,
                "dur": 1e3 * (end - start),
            }

        events = [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": i, "args": {"name": n}}
            for i, n in enumerate(
                ["exchange, place 0", "main thread", "communication thread: coding", "steps"]
            )
        ]
        for step, at in ((7, 0), (8, 100)):
            events += [
                span(3, f"ProfilerStep#{step}", at, at + 100),
                span(1, "forward", at, at + 30),
                span(1, "backward", at + 30, at + 80),
                span(1, "exposed communication", at + 80, at + 95),
                span(1, "update", at + 95, at + 100),
                span(2, "encode fc.weight", at + 40, at + 50),
                span(0, "nccl:exchange Kernel: fc.weight", at + 40, at + 95),
            ]
        trace = {"distributedInfo": {"rank": rank}, "traceEvents": events}
        self.write(f"rank{rank:04}.json", json.dumps(trace))

    def picture(self, *arguments):
        """Status, errors, and whether there is a picture."""
        out = self.root / "out.png"
        status, _, errors = run_main(trace_picture, str(self.root), "--out", str(out), *arguments)
        return status, errors, out.exists()

    def test_rows_and_the_exposed_share(self):
        self.trace(0)
        self.trace(1)
        self.assertEqual(self.picture("--steps", "7,8"), (0, "", True))
        drawn = trace_picture.draw(trace_picture.read(self.root), [8])
        self.assertEqual(
            [a.get_title(loc="left") for a in drawn.axes],
            [f"rank {r}, step 8: 15.0 % exposed" for r in (0, 1)],
        )
        self.assertEqual(
            [t.get_text() for t in drawn.axes[0].get_yticklabels()],
            ["main thread", "coding", "exchange, place 0"],
        )
        bars = [c.get_paths() for c in drawn.axes[0].collections]
        self.assertEqual(sum(map(len, bars)), 5)  # forward, backward, update, encode, on its way

    def test_what_is_refused(self):
        self.assertEqual(self.picture()[0], 2)  # no trace there
        self.trace(0)
        status, errors, drawn = self.picture("--steps", "9")
        self.assertEqual(
            (status, errors, drawn),
            (2, "trace_picture: step 9 is not in the trace of rank 0; there: 7 to 8\n", False),
        )
        status, errors, _ = self.picture("--steps", "5,8")
        self.assertEqual((status, "'5,8' leaves out steps in between" in errors), (2, True), errors)
        self.assertEqual(trace_picture.neighbours("8,7"), [7, 8])
        self.assertEqual(self.picture("--ranks", "5")[0], 2)
        self.write("rank0000.json", "{")
        self.assertEqual(self.picture()[0], 2)


if __name__ == "__main__":
    unittest.main()
