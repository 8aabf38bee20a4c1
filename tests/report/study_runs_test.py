"""`lpsgd study` with real runs: skipping what is done, going on after kills, failures, a disk that is
full."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
import unittest

from harness import rows_of
from parquet_reader import read_parquet
from study_harness import HEAD, LPSGD, StudyTest

import program
from study import tables

TIMES = {*tables.TIME_COLUMNS, *tables.EPOCH_TIMES, *tables.TIME_PARTS}


def without_times(path):
    """The bytes of a table without its columns of time."""
    return [
        [cell for name, cell in row.items() if name not in TIMES]
        for row in [dict(zip(r, r)) for r in rows_of(path)[:1]] + rows_of(path)
    ]


class LastError(unittest.TestCase):
    def test_the_programs_own_and_then_the_launchers(self):
        hydra = (
            "\n=====\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\n"
            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
            "This typically refers to a problem with your application.\n"
            "Please see the FAQ page for debugging suggestions\n"
        )
        own = "lpsgd: error: rank 1: no memory"
        self.assertEqual(program.last_error(hydra), "Killed (signal 9)")
        self.assertEqual(program.last_error(f"step 1\n{own}\n{hydra}"), own)
        rank = "process rank 1 with PID 0 on node a exited on signal 9 (Killed)."
        self.assertEqual(program.last_error(f"mpirun noticed that {rank}\n-----\n"), rank)
        missing = "execvp error on file lpsgd (No such file or directory)"
        self.assertEqual(program.last_error(f"[proxy:0@h] HYDU_create_process (a.c:74): {missing}\n\n"), missing)
        root = "mpirun has detected an attempt to run as root."
        self.assertEqual(program.last_error(f"----\n{root}\n\nUse --allow-run-as-root.\n----\n"), root)
        self.assertEqual(program.last_error("one\ntwo\n---\n\n"), "two")
        self.assertEqual(program.last_error(""), "")


class Runs(StudyTest):
    def run_folder(self, prefix, out="out"):
        (folder,) = [f for f in (self.root / out / "runs").iterdir() if f.name.startswith(prefix)]
        return folder

    def test_a_grid_and_its_tables(self):
        text = HEAD + "target: {val_loss: 2.6}\naxes: {codec: [none, onebit], ranks: [1, 2], seed: 3}\n"
        status, out, err = self.study(text)
        self.assertEqual((status, err), (0, ""), out)
        self.assertIn("run 1/4 started: none-1_rank-seed_3-", out)
        self.assertIn("4 of 4 runs done; tables: ", out)
        rows = rows_of(self.root / "out" / "runs.csv")
        self.assertEqual(
            [(r["codec"], r["ranks"], r["seed"], r["status"], r["label"]) for r in rows],
            [
                ("none", "1", "3", "done", "none, 1 rank"),
                ("none", "2", "3", "done", "none, 2 ranks"),
                ("onebit", "1", "3", "done", "onebit, 1 rank"),
                ("onebit", "2", "3", "done", "onebit, 2 ranks"),
            ],
        )
        epochs = rows_of(self.root / "out" / "epochs.csv")
        self.assertEqual(
            [(e["run"], e["epoch"]) for e in epochs], [(r["run"], str(n)) for r in rows for n in (1, 2)]
        )
        for row in rows:
            folder = self.root / "out" / "runs" / row["run"]
            records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            summary = json.loads((folder / "summary.json").read_text())
            self.assertEqual(float(row["val_top1"]), records[-1]["val_top1"])
            self.assertEqual(int(row["bytes_sent"]), sum(r["bytes_sent"] for r in records))
            self.assertEqual(
                float(row["training_s"]), sum(r["communication_s"] + r["computation_s"] for r in records)
            )
            self.assertEqual(row["codec_settings"], summary["codec"])
            self.assertEqual(row["target"], "val_loss 2.6")
            hits = [r["epoch"] for r in records if r["val_loss"] <= 2.6]
            self.assertEqual(row["epochs_to_target"], str(hits[0]) if hits else "")
            mine = [float(e["val_loss"]) for e in epochs if e["run"] == row["run"]]
            self.assertEqual(mine, [r["val_loss"] for r in records])
        before = (self.root / "out" / "runs.csv").read_bytes()
        status, out, _ = self.study(text)
        self.assertEqual(status, 0)
        self.assertNotIn("started", out)
        self.assertIn("4 of 4 runs are done already", out)
        self.assertEqual((self.root / "out" / "runs.csv").read_bytes(), before)

    def test_local_steps_in_both_tables(self):
        axes = "axes: {sync: [every_step, {kind: local_sgd, steps: 3}], ranks: 2}\n"
        self.assertEqual(self.study(HEAD + axes)[0], 0)
        gradients, local = rows_of(self.root / "out" / "runs.csv")
        epochs = [e for e in rows_of(self.root / "out" / "epochs.csv") if e["run"] == local["run"]]
        # 16 steps, the last of which is between two synchronisations.
        self.assertEqual([e["synchronisations"] for e in epochs], ["2", "3"])
        self.assertEqual(local["synchronisations"], "5")
        self.assertEqual(int(local["bytes_average"]), sum(int(e["bytes_average"]) for e in epochs))
        distances = [float(e["replica_distance"]) for e in epochs]
        self.assertGreater(min(distances), 0)
        self.assertAlmostEqual(float(local["replica_distance"]), sum(distances) / 2)
        for key in ("synchronisations", "bytes_average", "replica_distance"):
            self.assertEqual(gradients[key], "", key)

    def test_epochs_have_every_field_of_the_metrics(self):
        text = HEAD + (
            "set: {metrics.codec_error: true, exchange.min_elements: 100, exchange.codec: {kind: onebit, bucket: 64}}\n"
            "axes:\n"
            "  sync: [every_step, {kind: local_sgd, steps: 3}]\n"
            "  collective: [reduce_broadcast, simulated]\n"
            "  ranks: 2\n"
            "exclude: [{sync: {kind: local_sgd, steps: 3}, collective: simulated}]\n"
        )
        status, out, err = self.study(text)
        self.assertEqual((status, err), (0, ""), out)
        rows = rows_of(self.root / "out" / "epochs.csv")
        self.assertEqual(len(rows), 6)
        for row in rows:
            metrics = (self.root / "out" / "runs" / row["run"] / "metrics.jsonl").read_text().splitlines()
            record = json.loads(metrics[int(row["epoch"]) - 1])
            tensors = record.pop("codec_error").values()
            for name in ("seconds", "seconds_min", "seconds_max"):
                record.update({f"{name}_{part}": value for part, value in record.pop(name).items()})
            for name, value in record.items():
                self.assertEqual(row[name], tables.cell(value), name)
            errors = [tensor["error"] for tensor in tensors]
            lossy = [error for error in errors if error]
            self.assertTrue(0 < len(lossy) < len(errors), errors)
            self.assertAlmostEqual(float(row["codec_error"]), sum(lossy) / len(lossy))
            self.assertEqual(float(row["codec_error_max"]), max(errors))
            norm = sum(tensor["residual"] ** 2 for tensor in tensors) ** 0.5
            self.assertAlmostEqual(float(row["codec_residual"]), norm)
        self.assertEqual([row["simulated"] for row in rows].count("true"), 2)

    def test_another_value_adds_runs_and_another_setting_runs_again(self):
        self.study(HEAD + "axes: {seed: 1}\n")
        status, out, _ = self.study(HEAD + "axes: {seed: [1, 2]}\n")
        self.assertIn("1 of 2 runs are done already", out)
        # A new axis changes the readable name; the digest finds the run.
        status, out, _ = self.study(
            HEAD + "axes: {codec: ['{kind: qsgd, bits: 4}'], seed: 1}\n".replace("'", "")
        )
        self.assertIn("1 of 1 runs are done already", out)
        status, out, _ = self.study(HEAD + "set: {train.epochs: 1}\naxes: {seed: 1}\n")
        self.assertEqual(status, 0)
        self.assertIn("run 1/1 started", out)

    def test_runs_that_are_done_take_the_names_of_the_file(self):
        """Otherwise a report would not pool them with the seeds that are trained later."""
        def names(text):
            status, out, err = self.study("set: {train.epochs: 1, exchange.transport: mpi}\n" + HEAD + text)
            self.assertEqual((status, err), (0, ""), out)
            abouts = [json.loads(path.read_text()) for path in self.root.glob("out/runs/*/study.json")]
            return sorted((about["label"], about["axes"], about["jobs"]) for about in abouts)

        self.assertEqual(names("axes: {codec: {kind: qsgd, bits: 4}, seed: 1}\n"), [
            ("study", {"codec": "qsgd 4 bit", "seed": 1}, 1),
        ])
        axes = "axes: {codec: {name: four, value: {kind: qsgd, bits: 4}}, ranks: 1, seed: [1, 2]}\n"
        self.assertEqual(names("jobs: 2\n" + axes), [
            ("seed 1", {"codec": "four", "ranks": 1, "seed": 1}, 1),
            ("seed 2", {"codec": "four", "ranks": 1, "seed": 2}, 2),
        ])

    def test_a_summary_that_is_not_whole_is_not_done(self):
        self.study(HEAD + "axes: {seed: [1, 2]}\n")
        expected = without_times(self.root / "out" / "runs.csv")
        summary = self.run_folder("seed_1") / "summary.json"
        summary.write_text(summary.read_text()[:200])
        about = self.run_folder("seed_2") / "study.json"
        about.write_text(about.read_text().replace('"digest": "', '"digest": "0'))
        _, out, _ = self.study(HEAD + "axes: {seed: [1, 2]}\n")
        self.assertEqual(out.count("started"), 2)
        self.assertEqual(without_times(self.root / "out" / "runs.csv"), expected)

    def test_a_run_that_dies_does_not_stop_the_others(self):
        text = HEAD + "axes: {data.dataset: [shapes, cifar10], seed: [1, 2]}\nset: {data.root: /none}\n"
        status, out, err = self.study(text, "--jobs", "2")
        self.assertEqual((status, err), (1, ""))
        lines = out.splitlines()
        self.assertIn("2 of 4 runs done, 2 failed", lines[-3])
        for line in lines[-2:]:
            self.assertRegex(
                line, r"failed: dataset_cifar10-seed_\d-\w+: status \d: lpsgd: error: /none.* \(.*log.txt\)"
            )
        rows = rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([r["status"] for r in rows], ["done", "done", "failed", "failed"])
        _, out, _ = self.study(text)
        self.assertEqual(out.count("started"), 2, "what failed is tried again")

    def test_a_configuration_that_is_refused_does_not_stop_the_others(self):
        self.write("bad.yaml", "network: none.yaml\ndata: {dataset: shapes}\n")
        self.write("worse.yaml", "network: {name: x}\n")
        text = (
            "axes:\n  config: [tiny.yaml, bad.yaml, worse.yaml]\n  train.epochs: [2, 3]\n"
            "exclude: [{config: [bad, worse], train.epochs: 3}]\n"
        )
        status, out, err = self.study(text, "--dry-run")
        self.assertEqual((status, err.count("\n")), (1, 2), err)
        self.assertRegex(err, r"lpsgd study: bad-epochs_2-\w+: .*bad.yaml: network: no file .*none.yaml\n")
        self.assertRegex(err, r"lpsgd study: worse-epochs_2-\w+: .*worse.yaml:1:")
        self.assertEqual(
            [line.endswith("refused") for line in out.splitlines()[1:5]], [False, False, True, True]
        )
        self.assertIn("4 runs, 2 refused, 0 done; left: ", out.splitlines()[-1])
        status, out, err = self.study(text)
        self.assertEqual((status, err), (1, ""))
        lines = out.splitlines()
        self.assertRegex(lines[0], r"^run 3/4 failed: bad-epochs_2-\w+: .*network: no file ")
        self.assertIn("2 of 4 runs done, 2 failed", lines[-3])
        self.assertRegex(lines[-1], r"^failed: worse-epochs_2-\w+: .*worse.yaml:1:")
        rows = rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([r["status"] for r in rows], ["done", "done", "failed", "failed"])

    def test_one_value_that_is_refused_does_not_stop_the_others(self):
        text = HEAD + "axes: {codec: [none, {kind: qsgd, bit: 4}]}\n"
        status, out, err = self.study(text)
        self.assertEqual((status, err), (1, ""))
        self.assertRegex(
            out, r"run 2/2 failed: qsgd-\w+: .*study.yaml:2:22: axes.codec: --set exchange.codec="
        )
        self.assertIn("1 of 2 runs done, 1 failed", out)

    def test_an_mpirun_that_is_missing_does_not_stop_runs_of_one_rank(self):
        text = HEAD + "launcher: {mpirun: mpirun-none}\naxes: {transport: mpi, ranks: [1, 2]}\n"
        status, out, err = self.study(text)
        self.assertEqual((status, err), (1, ""))
        self.assertRegex(out, r"failed: mpi-2_ranks-\w+: .*: launcher.mpirun: no program 'mpirun-none'")
        self.assertIn("1 of 2 runs done, 1 failed", out)

    def test_a_run_that_ends_badly_after_all_is_written(self):
        program = self.write(
            "program",
            f'#!/bin/sh\n{shlex.quote(os.path.abspath(LPSGD))} "$@" || exit\n'
            '[ "$1" = train ] || exit 0\necho BAD TERMINATION >&2\nexit 9\n',
        )
        program.chmod(0o755)
        status, out, err = self.study(HEAD, program=str(program))
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(
            out, r"run 1/1 done: .* \| ended with status 9: BAD TERMINATION after its summary was "
        )
        self.assertEqual([r["status"] for r in rows_of(self.root / "out" / "runs.csv")], ["done"])

    def test_folders_of_earlier_studies_are_found(self):
        """They end with 8 digits of the digest. One of another run with the same 8 is left alone."""
        text = HEAD + "axes: {seed: [1, 2]}\n"
        self.study(text)
        _, runs = self.expand(text)
        for run in runs:
            folder = self.root / "out" / "runs" / run.name
            self.assertTrue(folder.name.endswith(run.digest[:16]))
            folder.rename(folder.with_name(f"other_words-{run.digest[:8]}"))
        _, out, _ = self.study(text)
        self.assertIn("2 of 2 runs are done already", out)
        names = [f"other_words-{run.digest[:8]}" for run in runs]
        self.assertEqual([row["run"] for row in rows_of(self.root / "out" / "runs.csv")], names)
        about = self.root / "out" / "runs" / names[0] / "study.json"
        about.write_text(about.read_text().replace(runs[0].digest, runs[0].digest[:8] + "0" * 56))
        _, out, _ = self.study(text)
        self.assertIn("1 of 2 runs are done already", out)
        self.assertTrue((self.root / "out" / "runs" / runs[0].name).is_dir())

    def test_named_values_and_configurations_in_both_tables(self):
        text = "axes: {config: [{name: second, value: tiny.yaml}], ranks: [{name: pair, value: 2}]}\n"
        self.assertEqual(self.study(text)[0], 0)
        row, *rest = rows_of(self.root / "out" / "runs.csv")
        self.assertEqual((row["config_file"], row["rank_count"], rest), ("tiny.yaml", "2", []))
        for epoch in rows_of(self.root / "out" / "epochs.csv"):
            for name in ("run", "config", "ranks", "label", "digest"):
                self.assertEqual(epoch[name], row[name], name)
        self.assertEqual((row["config"], row["ranks"]), ("second", "pair"))

    def test_seconds_beside_other_work(self):
        self.study(HEAD + "axes: {seed: 1}\n")
        text = HEAD + "axes: {seed: [1, 2]}\n"
        _, before = self.expand(text)
        _, after = self.expand("timed: false\n" + text)
        self.assertEqual([run.digest for run in before], [run.digest for run in after])
        _, out, _ = self.study("timed: false\n" + text)
        self.assertIn("1 of 2 runs are done already", out)
        self.assertEqual([r["timed"] for r in rows_of(self.root / "out" / "runs.csv")], ["false", "false"])
        self.assertIs(json.loads((self.root / "out" / "study.json").read_text())["timed"], False)
        # A run that goes on keeps what one part of it was.
        folder = self.run_folder("seed_2")
        (folder / "summary.json").unlink()
        self.study(text)
        self.assertEqual([r["timed"] for r in rows_of(self.root / "out" / "runs.csv")], ["true", "false"])

    def test_two_studies_in_one_folder(self):
        text = HEAD + "set: {data.train_samples: 2000000}\n"
        command, environment = self.command(text, "--out", str(self.root / "out"))
        first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.assertIn("started", first.stdout.readline())
        status, out, err = self.study(text)
        self.assertEqual((status, out), (2, ""))
        self.assertEqual(
            err,
            f"lpsgd: error: study: --out {self.root}/out: is in use by process {first.pid} on {os.uname().nodename}; "
            "wait for it to end, or give another folder\n",
        )
        first.send_signal(signal.SIGTERM)
        rest = first.communicate(timeout=60)[0]
        self.assertEqual(first.returncode, 128 + signal.SIGTERM)
        self.assertIn("interrupted: 0 of 1 runs are done; the same command goes on from here", rest)
        self.assertEqual(self.processes_left(), [])

    def test_a_full_disk(self):
        text = HEAD + "axes: {seed: [1, 2, 3]}\n"
        self.study(HEAD + "axes: {seed: [1, 2]}\n")
        log = self.run_folder("seed_1") / "log.txt"
        (self.run_folder("seed_1") / "summary.json").unlink()
        log.unlink()
        log.symlink_to("/dev/full")
        (self.root / "out" / "runs.csv.new").symlink_to("/dev/full")
        status, out, err = self.study(text)
        self.assertEqual((status, err), (1, ""))
        self.assertEqual(
            out.count("runs.csv: No space left on device; the tables are not up to date, the runs go on"),
            1,
            out,
        )
        self.assertRegex(out, r"run 1/3 failed: seed_1-\w+: .*log.txt: No space left on device\n")
        self.assertIn("run 3/3 done", out)
        self.assertEqual(
            [r["status"] for r in rows_of(self.root / "out" / "runs.csv")], ["failed", "done", "done"]
        )

    def epochs_written(self):
        return sum(
            file.read_bytes().count(b"\n") for file in (self.root / "out" / "runs").glob("*/metrics.jsonl")
        )

    def kill_something(self, chance, study, wait_for):
        """Once so many more epochs are written: the study, one of its processes, or Ctrl-C."""
        before, deadline = self.epochs_written(), time.monotonic() + 20
        while (
            self.epochs_written() < before + wait_for and time.monotonic() < deadline and study.poll() is None
        ):
            time.sleep(0.005)
        kind = chance.choice(("study", "child", "child", "interrupt"))
        children = [pid for pid in self.processes() if pid != study.pid]
        if kind == "child" and children:
            try:
                os.kill(chance.choice(children), signal.SIGKILL)
            except ProcessLookupError:
                pass
            time.sleep(0.2)
            kind = chance.choice(("study", "interrupt"))
        if study.poll() is not None:
            return False
        study.send_signal(signal.SIGKILL if kind == "study" else signal.SIGINT)
        study.wait(timeout=90)
        return True

    def test_killed_five_times_it_gives_the_same_tables(self):
        text = (
            HEAD
            + """
set: {train.epochs: 30, data.train_samples: 2048, checkpoint.every_epochs: 3}
target: {val_top1: 50}
axes: {transport: [threads, mpi], codec: [none, onebit, {kind: qsgd, bits: 2}], ranks: 2}
"""
        )
        status, out, _ = self.study(text, "--jobs", "2", out="reference")
        self.assertEqual(status, 0, out)
        chance = random.Random(19)
        command, environment = self.command(text, "--jobs", "2", "--out", str(self.root / "out"))
        killed = 0
        for _ in range(5):
            study = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            killed += self.kill_something(chance, study, chance.randrange(1, 12))
            self.assertEqual(study.stderr.read(), b"")
            study.stderr.close()
        self.assertEqual(killed, 5)
        status, out, _ = self.study(text, "--jobs", "2")
        self.assertEqual(status, 0, out)
        for name in ("runs", "epochs"):
            self.assertEqual(
                without_times(self.root / "out" / f"{name}.csv"),
                without_times(self.root / "reference" / f"{name}.csv"),
            )
            found, expected = (
                {key: column for key, column in read_parquet(path.read_bytes()).items() if key not in TIMES}
                for path in (
                    self.root / "out" / f"{name}.parquet",
                    self.root / "reference" / f"{name}.parquet",
                )
            )
            self.assertEqual(found, expected)
            rows = rows_of(self.root / "out" / f"{name}.csv")
            for key, column in found.items():
                self.assertEqual([tables.cell(value) for value in column], [row[key] for row in rows], key)
        self.assertEqual(self.processes_left(), [])

    def test_one_line_on_a_terminal(self):
        import pty

        command, environment = self.command(
            HEAD + "set: {train.epochs: 6, data.train_samples: 60000}\naxes: {seed: [1, 2]}\n",
            "--out",
            str(self.root / "out"),
        )
        ours, theirs = pty.openpty()
        study = subprocess.Popen(command, env=environment, stdout=theirs)
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
        os.close(ours)
        self.assertEqual(study.wait(), 0)
        text = seen.decode()
        self.assertIn("\r\x1b[K0/2 runs | seed 1 0/6", text)
        self.assertTrue(re.search(r"1/2 runs \| seed 2 \d/6 \| \d+s left", text), text)
        self.assertNotIn("started", text)


if __name__ == "__main__":
    unittest.main()
