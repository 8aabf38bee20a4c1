"""What a study says before and about its runs: estimates of time, jobs, paths, environment."""

import io
import json
import os
import shlex
import subprocess
import unittest
from unittest import mock

from harness import require, rows_of
from study_harness import HEAD, LPSGD, StudyTest

from study import estimate, labels, launcher, progress, runner, timing, variables

require("numpy", "scipy")
from costmodel import pipeline, scaling  # noqa: E402

NET = "name: {name}\ninput: [32, 32, 3]\nclasses: 10\nlayers: [flatten, {{dense: fc, units: 10}}]\n"


class Estimate(StudyTest):
    def setUp(self):
        super().setUp()
        for name in ("small", "large"):
            self.write(f"{name}.yaml", NET.format(name=name))

    def test_seconds_are_of_one_network_ranks_and_batch(self):
        _, runs = self.expand(
            HEAD
            + "axes: {network: [small.yaml, large.yaml], ranks: [1, 2], "
            + "train.batch_size: [32, 64], train.compute: [fp32, bf16]}\n"
        )
        small = [r for r in runs if r.values["network"] == "small"]
        clock = progress.Clock(runs, 1)
        for run, seconds in ((small[0], 10.0), (small[2], 30.0)):  # of batch 32 and 64
            self.epochs_of(clock, run, [seconds] * 2)

        def seconds_of(**values):
            keys = {"batch": "train.batch_size", "compute": "train.compute"}
            (run,) = [r for r in runs if all(r.values[keys.get(k, k)] == v for k, v in values.items())]
            return clock.seconds_per_epoch(run)

        self.assertEqual(seconds_of(network="small", ranks=1, batch=64, compute="fp32"), 30)
        self.assertEqual(
            seconds_of(network="small", ranks=2, batch=64, compute="fp32"), 20, "the mean of both"
        )
        self.assertIsNone(seconds_of(network="small", ranks=1, batch=32, compute="bf16"))
        self.assertIsNone(seconds_of(network="large", ranks=1, batch=32, compute="fp32"))
        _, seeds = self.expand(HEAD + "axes: {seed: [1, 2]}\n")
        self.assertEqual(seeds[0].task, seeds[1].task)
        _, wide = self.expand(HEAD + "axes: {network.parameters.width: [8, 16]}\n")
        self.assertNotEqual(wide[0].task, wide[1].task)

    def test_seconds_are_of_one_exchange(self):
        _, runs = self.expand(HEAD + "axes: {link: ['100Mbit,1ms', '10Gbit,1us'], seed: [1, 2], ranks: 2}\n")
        clock = progress.Clock(runs, 1)
        self.epochs_of(clock, runs[0], [90.0])
        self.assertEqual([clock.seconds_per_epoch(run) for run in runs], [90] * 4, "all that is known")
        self.epochs_of(clock, runs[2], [10.0])
        self.assertEqual([clock.seconds_per_epoch(run) for run in runs], [90, 90, 10, 10])

    def epochs_of(self, clock, run, seconds):
        """Writes epochs of so many seconds, and measures them."""
        folder = self.root / run.name
        folder.mkdir(exist_ok=True)
        lines = [
            json.dumps({"epoch": e, "seconds": {"total": s}}) + "\n" for e, s in enumerate(seconds, start=1)
        ]
        (folder / "metrics.jsonl").write_text("".join(lines))
        if clock:
            clock.measure(run, str(folder))

    def test_epochs_of_runs_that_go_on_are_not_left(self):
        """As the first of eight equal runs ends, the others have trained nearly as much."""
        _, runs = self.expand(HEAD + "set: {train.epochs: 10}\naxes: {seed: [1, 2, 3, 4, 5, 6, 7, 8]}\n")
        stream = io.StringIO()
        shown = progress.Progress(progress.Clock(runs, 8), 8, stream)
        for i, run in enumerate(runs):
            self.epochs_of(None, run, [60.0] * (9 if i else 10))
        shown.finished(1, runs[0], runs[1:], runs[1:], lambda run: str(self.root / run.name))
        self.assertIn("| 10m00s | 1m00s left\n", stream.getvalue())

    def test_a_dry_run_covers_what_is_left(self):
        text = HEAD + "axes: {network: [small.yaml, large.yaml], seed: [1, 2], ranks: 2}\n"
        status, out, _ = self.study(text, "--dry-run")
        last = out.splitlines()[-1]
        self.assertRegex(last, r"^4 runs, 0 done; left: [\d.]+ MB on the wire; the time is not known until ")
        self.study(HEAD + "axes: {network: small.yaml, seed: 1, ranks: 2}\n")
        status, out, err = self.study(text, "--dry-run")
        self.assertEqual((status, err), (0, ""))
        lines = out.splitlines()
        self.assertEqual([line.split()[-1] for line in lines[1:2] + lines[3:5]], ["done", "?", "?"])
        self.assertRegex(lines[2], r" \d+s$")
        each = int(json.loads(self.show("large.yaml"))["wire_bytes"]) * 2 * 16
        self.assertIn(f"4 runs, 1 done; left: {3 * each / 1e6:.2f} MB on the wire, ", lines[-1])
        self.assertTrue(lines[-1].endswith("s without evaluation for 1 of 3 runs, 1 at once"), lines[-1])
        self.study(text)
        self.assertEqual(self.study(text, "--dry-run")[1].splitlines()[-1], "4 runs, all done")

    def test_estimates_know_the_link(self):
        """Each with its latency, and with the bytes that leave at once."""
        self.study(HEAD + "axes: {link: none, ranks: 2}\n")
        links = ["none", "{latency: 1ms}", "'1Gbit,1ms'", "{bandwidth: 1Gbit, latency: 1ms, burst: 2MB}"]
        text = HEAD + f"axes: {{link: [{', '.join(links)}], ranks: 2}}\n"
        study, runs = self.expand(text)
        folders = runner.find_folders(str(self.root / "out"), runs)
        start = launcher.Launcher(study, LPSGD)
        shown, _ = start.show(study, runs)
        found = []
        with mock.patch.object(pipeline, "simulate", wraps=pipeline.simulate) as simulate:
            for run in runs:
                rest = estimate.exchanges(run)
                estimate.CostModel(runs, folders, 1).seconds_per_step(run, shown[run.digest], rest)
                found.append(simulate.call_args.args[3])
        fast = pipeline.NO_LINK.bandwidth
        self.assertEqual(
            [(link.bandwidth, link.latency, link.burst) for link in found],
            [(fast, 0, 0), (fast, 1e-3, 0), (1e9, 1e-3, 262500), (1e9, 1e-3, 2e6)],
        )

    def test_estimates_know_blocks_that_add_their_gradients(self):
        """All messages of a rank go over its emulated link, so time follows bytes. Blocks of three lie across those of
        `sync`, and are refused."""
        link = "exchange.link: {bandwidth: 1Mbit, latency: 0us}, exchange.codec: {kind: qsgd, bits: 4}"
        trained = HEAD + f"set: {{{link}, train.batch_size: 24}}\naxes: {{ranks: 2}}\n"
        self.study(trained)
        _, measured = self.expand(trained)
        folders = runner.find_folders(str(self.root / "out"), measured)
        known = [(run, folders[run.digest]) for run in measured]
        local = "{kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 4}"
        for sync, sizes in (("{kind: every_step}", 3), (local, 2)):
            study, runs = self.expand(
                HEAD + f"set: {{{link}, train.batch_size: 24, exchange.collective: hierarchical, sync: {sync}}}\n"
                "axes: {exchange.ranks_per_block: [1, 2, 3], ranks: 12}\n"
            )
            model = estimate.CostModel([], {}, 1)
            model.measured = {run.task: known for run in runs}
            start = launcher.Launcher(study, LPSGD)
            found = []
            for run in runs:
                shown, exchanges = start.show(study, [run])[0].get(run.digest), estimate.exchanges(run)
                shown = shown or start.show(study, runs[:1])[0][runs[0].digest]  # of one that is not refused
                seconds = model.seconds_per_step(run, shown, exchanges)
                found.append((seconds, estimate.bytes_of(run, shown, exchanges)))
            with self.subTest(sync):
                self.assertEqual(found[sizes:], [(None, None)] * (3 - sizes))
                for seconds, sent in found[1:sizes]:
                    self.assertGreater(sent / found[0][1], 1.3)
                    self.assertAlmostEqual(seconds / found[0][0] / (sent / found[0][1]), 1, delta=0.15)

    def show(self, network):
        command = [
            LPSGD,
            "show",
            self.root / "tiny.yaml",
            "--json",
            "--set",
            f"network={self.root / network}",
        ]
        return subprocess.run(command, capture_output=True, check=True).stdout

    def test_steps_are_timed(self):
        text = HEAD + "axes: {data.dataset: [shapes, cifar10], seed: [1, 2]}\nset: {data.root: /none}\n"
        status, out, err = self.study(text, "--dry-run", "--time-steps", "3")
        self.assertEqual((status, err.count("\n")), (0, 1), err)
        self.assertRegex(err, r"^lpsgd study: dataset_cifar10-seed_1-\w+: not timed: lpsgd: error: /none")
        lines = out.splitlines()
        self.assertRegex(lines[-1], r", \d+s without evaluation for 2 of 4 runs, 1 at once$")
        self.assertEqual([line.endswith("?") for line in lines[1:5]], [False, False, True, True])
        self.assertFalse((self.root / "out").exists())
        for words in (("--time-steps", "3"), ("--dry-run", "--time-steps", "1")):
            self.assertEqual(self.study(text, *words)[:2], (2, ""))

    def test_jobs_are_timed_at_once(self):
        program = self.write(
            "program",
            f'#!/bin/sh\n[ "$1" = train ] && echo start >> {self.root}/seen && sleep 1 && '
            f"wc -l < {self.root}/seen >> {self.root}/counts\n"
            f'exec {shlex.quote(os.path.abspath(LPSGD))} "$@"\n',
        )
        program.chmod(0o755)
        text = HEAD + "axes: {seed: [1, 2, 3]}\n"
        words = ("--dry-run", "--time-steps", "3", "--jobs", "2")
        status, out, err = self.study(text, *words, program=str(program))
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r", \d+s without evaluation for 3 of 3 runs, 2 at once\n$")
        self.assertEqual((self.root / "counts").read_text().split(), ["2", "2"])

    def test_epochs_that_are_done_are_not_left(self):
        self.study(HEAD + "axes: {seed: 1}\nset: {train.epochs: 4}\n")
        (folder,) = (self.root / "out" / "runs").iterdir()
        (folder / "summary.json").unlink()
        text = HEAD + "axes: {seed: 1, ranks: 2}\nset: {train.epochs: 4}\n"
        _, (run,) = self.expand(text)
        for epochs, share in ((4, 0), (1, 3 / 4), (0, 1)):
            path = self.root / "half"
            path.mkdir(exist_ok=True)
            lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
            (path / "metrics.jsonl").write_text("".join(lines[:epochs]))
            (path / "study.json").write_text(json.dumps({"digest": run.digest}))
            self.assertEqual(estimate.epochs_done(run, str(path)), 4 - 4 * share)
            shown = {run.digest: {"wire_bytes": 1000}}
            found = estimate.lines([run], shown, 1, {run.digest: str(path)}, {run.digest: 10.0})
            self.assertIn(f"left: {64 * share:.1f} kB".replace("0.0 kB", "0 B"), found[-1])  # 32 steps
            self.assertIn(f" on the wire, {progress.duration(320 * share)} without", found[-1])
        (path / "study.json").write_text("{}")
        self.assertEqual(estimate.epochs_done(run, str(path)), 0)

    def test_the_mean_step(self):
        line = (
            "step {}/100 | loss 2.3315 | lr 1.0e-01 | {} ms | 342 samples/s | comm 2% | wire 7.4x | 1s left\n"
        )
        text = line.format(1, 900.0) + line.format(11, 50.0) + "warning\n" + line.format(16, 20.0)
        self.assertAlmostEqual(timing.mean_step(text), (10 * 0.05 + 5 * 0.02) / 15)
        self.assertIsNone(timing.mean_step(line.format(1, 900.0)))


class About(StudyTest):
    def test_the_jobs_in_force(self):
        self.study(HEAD + "axes: {seed: [1, 2]}\n", "--jobs", "2")
        self.study(HEAD + "jobs: 2\naxes: {seed: [1, 2, 3, 4]}\n", "--jobs", "1")
        rows = rows_of(self.root / "out" / "runs.csv")
        self.assertEqual([row["jobs"] for row in rows], ["2", "2", "1", "1"])
        self.assertEqual(json.loads((self.root / "out" / "study.json").read_text())["jobs"], 1)
        # A run that goes on keeps the most jobs of any part of it.
        folder = self.root / "out" / "runs" / rows[0]["run"]
        (folder / "summary.json").unlink()
        self.study(HEAD + "axes: {seed: [1, 2, 3, 4]}\n")
        self.assertEqual(
            [row["jobs"] for row in rows_of(self.root / "out" / "runs.csv")], ["2", "2", "1", "1"]
        )

    def test_the_table_is_the_same_from_another_folder(self):
        (self.root / "sub").mkdir()
        (self.root / "tiny.yaml").rename(self.root / "sub" / "tiny.yaml")
        self.write("study.yaml", "config: sub/tiny.yaml\n")
        tables = []
        for folder, study in ((self.root, "study.yaml"), (self.root / "sub", "../study.yaml")):
            command, environment = self.command("config: sub/tiny.yaml\n", "--out", str(self.root / "out"))
            command[2] = study
            subprocess.run(command, env=environment, capture_output=True, check=True, cwd=folder)
            tables.append((self.root / "out" / "runs.csv").read_bytes())
        self.assertEqual(*tables)
        self.assertEqual(rows_of(self.root / "out" / "runs.csv")[0]["config_file"], "sub/tiny.yaml")

    def test_commands_can_be_pasted(self):
        self.study(HEAD + "axes: {codec: [{kind: qsgd, bits: 2}]}\n", out="a folder")
        (folder,) = (self.root / "a folder" / "runs").iterdir()
        command = json.loads((folder / "study.json").read_text())["command"]
        self.assertIn("exchange.codec={kind: qsgd, bits: 2}", command)
        first = (folder / "log.txt").read_text().splitlines()[0]
        self.assertEqual(shlex.split(first), ["$", *command])

    def test_a_word_for_sync(self):
        text = HEAD + "axes: {sync: [every_step, {kind: local_sgd, period: 4}]}\n"
        _, runs = self.expand(text)
        self.assertEqual(
            [r.settings["sync"] for r in runs], [{"kind": "every_step"}, {"kind": "local_sgd", "period": 4}]
        )
        self.assertEqual([r.label for r in runs], ["every_step", "local SGD, period 4"])
        self.assertEqual(self.study(HEAD + "axes: {sync: every_step}\n", "--dry-run")[0], 0)
        self.assertEqual(labels.of_value("sync", "every_step"), "every_step")

    def test_a_variable_that_is_not_set(self):
        os.environ.pop("LPSGD_NOWHERE", None)
        text = HEAD + "set: {data.root: '${LPSGD_NOWHERE}/x'}\n"
        self.assertEqual(
            self.study(text),
            (
                2,
                "",
                f"lpsgd: error: study: {self.root}/study.yaml: run 'study': data.root needs the environment variable "
                "LPSGD_NOWHERE, which is not set\n",
            ),
        )
        self.assertFalse((self.root / "out").exists())
        self.assertEqual(self.study(text, "--dry-run")[0], 0)
        self.assertEqual(self.study(text + "launcher: {env: {LPSGD_NOWHERE: /y}}\n")[0], 0)

    def test_values_of_variables_are_computed_with(self):
        """They are no settings: the digest is the same with others."""
        text = HEAD + (
            "set: {exchange.ranks: '${LPSGD_RANKS}', train.epochs: '${LPSGD_EPOCHS}', exchange.codec: '${LPSGD_CODEC}', "
            "data.train_samples: '${LPSGD_SAMPLES}', sync: {kind: local_sgd, steps: '${LPSGD_H}'}}\n"
        )
        plain = HEAD + (
            "set: {exchange.ranks: 4, train.epochs: 3, exchange.codec: onebit, data.train_samples: 512, "
            "sync: {kind: local_sgd, steps: 2}}\n"
        )
        values = {"RANKS": "4", "EPOCHS": "3", "CODEC": "onebit", "SAMPLES": "512", "H": "2"}
        with mock.patch.dict(os.environ, {f"LPSGD_{name}": value for name, value in values.items()}):
            (run,) = self.expand(text)[1]
            status, out, err = self.study(text, "--dry-run")
        self.assertEqual((status, err), (0, ""))
        row, expected = (said.splitlines()[1].split()[1:] for said in (out, self.study(plain, "--dry-run")[1]))
        self.assertEqual((row, row[:3]), (expected, ["4", "3", "48"]))
        with mock.patch.dict(os.environ, {"LPSGD_RANKS": "2", "LPSGD_CODEC": "onebit"}):
            self.assertEqual(self.expand(text)[1][0].digest, run.digest)
            status, out, err = self.study(text, "--dry-run")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.splitlines()[1].split()[1:], ["2", *"?????"])
        # Those of the study count, too, if all jobs have one.
        env = "launcher: {env: {%s}}\n" % ", ".join(f"LPSGD_{name}: '{value}'" for name, value in values.items())
        self.assertEqual(self.study(text + env, "--dry-run")[1].splitlines()[1].split()[1:], expected)
        several = env.replace("LPSGD_RANKS: '4'", "LPSGD_RANKS: ['2', '4']")
        for given, why in ((several, "differs between jobs"), ("", "is not set")):
            status, out, err = self.study(text + given, "--dry-run")
            self.assertEqual((status, out), (2, ""))
            self.assertEqual(
                err,
                f"lpsgd: error: study: {self.root}/tiny.yaml: exchange.ranks: needs the environment variable LPSGD_RANKS, "
                f"which {why}\n",
            )

    def test_ranks_that_are_no_number_are_refused(self):
        status, out, err = self.study(HEAD + "axes: {exchange.ranks: [1, two]}\n", "--dry-run")
        self.assertEqual((status, out.splitlines()[2].split()[-1]), (1, "refused"))
        self.assertRegex(err, r"ranks_two-\w+: .*tiny.yaml: exchange.ranks: expected a whole number from 1, not two\n$")

    def test_variables_of_the_network_are_its_own(self):
        settings = {"network": {"a": "${n}"}, "data": {"root": "${A}/${B}", "x": ["${C}", 1]}}
        self.assertEqual(
            list(variables.named(settings)), [("data.root", "A"), ("data.root", "B"), ("data.x.0", "C")]
        )

    def test_each_job_has_its_environment(self):
        program = self.write(
            "program",
            f'#!/bin/sh\n[ "$1" = train ] && echo "$DEVICES $SHARED" >> {self.root}/seen && sleep 1\n'
            f'exec {shlex.quote(os.path.abspath(LPSGD))} "$@"\n',
        )
        program.chmod(0o755)
        text = (
            HEAD + "jobs: 2\naxes: {seed: [1, 2, 3]}\nlauncher: {env: {DEVICES: ['0,1', '2,3'], SHARED: 7}}\n"
        )
        self.assertEqual(self.study(text, program=str(program))[0], 0)
        seen = (self.root / "seen").read_text().splitlines()
        self.assertEqual(
            (len(seen), sorted(seen[:2]), set(seen)), (3, ["0,1 7", "2,3 7"], {"0,1 7", "2,3 7"})
        )
        for value in ("[]", "{a: 1}", "~", "[[1]]"):
            status, out, err = self.study(HEAD + f"launcher: {{env: {{A: {value}}}}}\n")
            self.assertEqual((status, out), (2, ""))
            self.assertIn("study.yaml:2:21: launcher.env.A: expected a word, or a list", err)


if __name__ == "__main__":
    unittest.main()
