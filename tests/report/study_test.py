"""STUDY.yaml: the grid that it describes, and what it refuses."""

import csv
import json
import os
import subprocess
import sys
import unittest

from harness import REPORT, TINY
from study_harness import HEAD, LPSGD, StudyTest

from study import definition, estimate, grid, labels, launcher, runner, tables, yaml_file


class Grid(StudyTest):
    def test_every_combination_in_order(self):
        _, runs = self.expand(
            """
config: tiny.yaml
axes:
  codec: [none, {name: four, value: {kind: qsgd, bits: 4}}]
  ranks: [1, 2]
  seed: [7, 8]
"""
        )
        self.assertEqual(
            [tuple(r.values.values()) for r in runs],
            [(c, k, s) for c in ("none", "four") for k in (1, 2) for s in (7, 8)],
        )
        self.assertEqual(len({r.digest for r in runs}), 8)
        last = runs[-1]
        self.assertEqual(last.label, "four, 2 ranks, seed 8")
        self.assertTrue(last.name.startswith("four-2_ranks-seed_8-"))
        self.assertEqual(
            last.set_options(),
            [
                "--set",
                "exchange.codec={kind: qsgd, bits: 4}",
                "--set",
                "train.seed=8",
                "--set",
                "exchange.ranks=2",
            ],
        )
        self.assertEqual(
            last.settings["exchange"],
            {"transport": "threads", "codec": {"kind": "qsgd", "bits": 4}, "ranks": 2},
        )

    def test_variants_rules_links_and_base_settings(self):
        _, runs = self.expand(
            """
config: tiny.yaml
set: {train.epochs: 9, exchange.codec.bits: 8}
axes:
  codec:
    - {name: only dense, set: {exchange.codec: none, exchange.rules: [{kind: dense, codec: onebit}]}}
    - {name: whole, value: {kind: topk, density: 0.01}, set: {exchange.min_elements: 0}}
  link: [none, "1Gbit,50us", {bandwidth: 10Gbit}]
  schedule.lr: [0.1, 1e-2]
"""
        )
        self.assertEqual(len(runs), 12)
        self.assertEqual(runs[0].settings["exchange"]["rules"], [{"kind": "dense", "codec": "onebit"}])
        self.assertEqual(runs[0].settings["exchange"]["codec"], "none")
        self.assertEqual(runs[0].settings["train"]["epochs"], 9)
        self.assertEqual(runs[2].settings["exchange"]["link"], {"bandwidth": "1Gbit", "latency": "50us"})
        self.assertEqual([r.choices["link"] for r in runs[:6:2]], ["none", "1Gbit,50us", "10Gbit"])
        self.assertEqual(runs[1].settings["schedule"]["lr"], 0.01)
        self.assertEqual(runs[6].settings["exchange"]["min_elements"], 0)
        self.assertEqual(runs[6].settings["exchange"]["codec"], {"kind": "topk", "density": 0.01})

    def test_exclude_by_label_or_value(self):
        _, runs = self.expand(
            """
config: tiny.yaml
axes:
  codec: [none, {name: four, value: {kind: qsgd, bits: 4}}, onebit]
  seed: [1, 2, 3]
exclude:
  - {codec: [four, onebit], seed: [2, 3]}
  - {codec: none, seed: 3}
"""
        )
        self.assertEqual(
            [(r.values["codec"], r.values["seed"]) for r in runs],
            [("none", 1), ("none", 2), ("four", 1), ("onebit", 1)],
        )

    def test_a_grid_over_configurations_and_networks(self):
        self.write("other.yaml", (self.root / "tiny.yaml").read_text().replace("name: tiny", "name: other"))
        self.write(
            "net.yaml",
            "name: net\ninput: [32, 32, 3]\nclasses: 10\nlayers: [flatten, {dense: fc, units: 10}]\n",
        )
        study, runs = self.expand(
            "axes: {config: [tiny.yaml, {name: second, value: other.yaml}], ranks: 2}\n"
        )
        self.assertEqual([r.settings["network"]["name"] for r in runs], ["tiny", "other"])
        self.assertEqual([r.label for r in runs], ["tiny", "second"])
        _, runs = self.expand("config: tiny.yaml\naxes: {network: [net.yaml]}\n")
        self.assertEqual(runs[0].settings["network"]["name"], "net")
        self.assertEqual(runs[0].sets["network"], str(self.root / "net.yaml"))
        self.assertEqual(study.name, "study")

    def test_what_a_run_sets_stays_its_own(self):
        """The files that several runs share are read once."""
        self.write(
            "net.yaml",
            "name: net\ninput: [32, 32, 3]\nclasses: 10\nparameters: {units: 10}\n"
            "layers: [flatten, {dense: fc, units: $units}]\n",
        )
        changed = "{network.parameters.units: 9, network.layers.1.dense: last, data.train_samples: 32}"
        _, runs = self.expand(
            f"config: tiny.yaml\nset: {{network: net.yaml}}\naxes: {{seed: [{{name: 1, value: 1, set: {changed}}}, 2]}}\n"
        )
        found = [
            (r.settings["network"]["parameters"]["units"], r.settings["network"]["layers"][1]["dense"],
             r.settings["data"]["train_samples"])
            for r in runs
        ]
        self.assertEqual(found, [(9, "last", 32), (10, "fc", 256)])

    def test_the_digest_is_of_the_settings(self):
        def digest(text):
            return self.expand(text)[1][0].digest

        base = digest("config: tiny.yaml\naxes: {seed: 1}\n")
        self.assertEqual(base, digest("name: x\nconfig: tiny.yaml\nset: {train.seed: 1}\njobs: 3\n"))
        self.write("tiny.yaml", "# a comment\n" + (self.root / "tiny.yaml").read_text())
        self.assertEqual(base, digest("config: tiny.yaml\naxes: {seed: 1}\n"))
        self.assertNotEqual(base, digest("config: tiny.yaml\naxes: {seed: 2}\n"))
        self.assertNotEqual(base, digest("config: tiny.yaml\naxes: {seed: 1, ranks: 2}\n"))
        text = (self.root / "tiny.yaml").read_text()
        as_parameter = text.replace("  classes: 10\n", "  classes: $outputs\n  parameters: {outputs: 10}\n")
        self.write("tiny.yaml", as_parameter.replace("units: 10", "units: $outputs"))
        self.assertEqual(base, digest("config: tiny.yaml\naxes: {seed: 1}\n"))
        self.assertNotEqual(base, digest("config: tiny.yaml\nset: {network.parameters.outputs: 11}\naxes: {seed: 1}\n"))
        self.write("tiny.yaml", text.replace("units: 10", "units: 11"))
        self.assertNotEqual(base, digest("config: tiny.yaml\naxes: {seed: 1}\n"))

    def test_values_as_the_program_reads_them(self):
        for text, value in (
            ("1e-3", 0.001),
            ("no", "no"),
            ("012", 12),
            ("true", True),
            ("~", None),
            ("'1'", "1"),
            ("1.5.2", "1.5.2"),
        ):
            self.assertEqual(yaml_file.parse(f"a: {text}", "f").data(), {"a": value})
        for value in (
            {"kind": "qsgd", "bits": 4},
            [1, 2.5, True, None],
            "1",
            "true",
            "a: b",
            "${HOME}/x",
            "",
            "tensor",
            {"a b": ["x"]},
        ):
            self.assertEqual(yaml_file.parse(f"v: {yaml_file.flow(value)}", "f").data(), {"v": value})

    def test_bytes_and_steps(self):
        study, runs = self.expand(
            "config: tiny.yaml\naxes: {ranks: [1, 4], exchange.collective: [reduce_broadcast, allreduce]}\n"
        )
        shown = {"wire_bytes": 100, "parameters": 1000}
        self.assertEqual(
            [estimate.bytes_of(r, shown, estimate.exchanges(r)) for r in runs],
            [0, 0, 16 * 600, 16 * 24000],
        )
        self.assertEqual(estimate.steps(runs[0]), 2 * 8)
        runs[0].settings["data"] = {"dataset": "cifar10"}
        runs[0].settings["train"] = {"epochs": 3, "batch_size": {"1": 128, "2": 256}}
        self.assertEqual(runs[0].batch_size, 128)
        self.assertEqual(estimate.steps(runs[0]), 3 * 390)

    def test_the_studies_of_this_repository(self):
        # edbt2018: for six networks 1 run of one rank, over MPI 7 codecs x 4 numbers of ranks, over NCCL 3
        # all-reduces and twice 6 codecs x 3 numbers of ranks; for the LSTM 1 + 7 + 1 + 6 + 6.
        expected = {
            "quickstart": 4,
            "ablation_resnet20": 21,
            "resnet9_codecs": 7 * 3 + 13,
            "resnet9_width64": 3,
            "local_sgd_resnet20": 10 * 2 * 3,
            "transformer_ptb": 4,
            "transformer_ptb_seeds": 8,
            "transformer_ptb_tied": 4,
            "mx_resnet20": 16,
            "warmup_resnet20": 20,
            "edbt2018": 6 * 68 + 21,
            "edbt2018_accuracy": 3 * 19,
            "ranks_resnet9": 3 * 4,
            "edbt2018_times": 6 * (1 + 3 * (7 + 1 + 6 + 6)) + 21,
            "edbt2018_times_cpu": 7 * (1 + 6 * 2),
        }
        folder = REPORT.parent / "configs" / "studies"
        self.assertEqual({path.stem for path in folder.glob("*.yaml")}, set(expected))
        for name, count in expected.items():
            with self.subTest(study=name):
                self.assertEqual(len(grid.expand(definition.load(str(folder / f"{name}.yaml")))), count)

    def test_the_study_of_accuracy_has_the_published_curves(self):
        names = {"32 bit": "none", "1bitSGD": "onebit_column", "1bitSGD*": "onebit64", "1bitSGD* 512": "onebit512"}
        names |= {f"QSGD {bits} bit": f"qsgd{bits}" for bits in (2, 4, 8)}
        study = definition.load(str(REPORT.parent / "configs" / "studies" / "edbt2018_accuracy.yaml"))
        runs = [run for run in grid.expand(study) if run.choices["codec"] != "QSGD 4 bit 8192"]
        found = [(run.ranks, run.choices["config"], names[run.choices["codec"]]) for run in runs]
        lines = (REPORT / "published" / "accuracy.csv").read_text().splitlines()
        curves = {tuple(row[:2]) for row in csv.reader(line for line in lines[2:])}
        self.assertEqual(len(curves), 18)
        self.assertEqual(sorted(found), sorted((ranks, *curve) for ranks in (2, 4, 8) for curve in curves))

    def test_the_program_takes_the_networks_of_this_repositorys_studies(self):
        """Once for each, with a codec of it: the grid's other runs differ in the exchange."""
        for path in sorted((REPORT.parent / "configs" / "studies").glob("*.yaml")):
            study = definition.load(str(path))
            runs = {json.dumps([run.config, run.settings["network"]], default=str): run for run in grid.expand(study)}
            with self.subTest(study=path.stem):
                start = launcher.Launcher(study, LPSGD)
                self.assertEqual(start.show(study, list(runs.values()))[1], {})

    def test_runs_of_this_repository_count_as_done(self):
        """Whoever copies them into a study's folder trains them no more."""
        for name, folder in (
            ("resnet9_codecs", "resnet9-codecs"),
            ("resnet9_width64", "resnet9-width64"),
            ("local_sgd_resnet20", "local-sgd"),
        ):
            with self.subTest(study=name):
                study = definition.load(str(REPORT.parent / "configs" / "studies" / f"{name}.yaml"))
                self.assertFalse(study.is_timed)
                runs = grid.expand(study)
                out = REPORT.parent / "docs" / "results" / folder
                there = {str(path) for path in (out / "runs").glob("*")}
                folders = runner.find_folders(str(out), runs)
                done = [run.digest for run in runs if tables.is_done(folders[run.digest], run.digest)]
                self.assertEqual({folders[digest] for digest in done}, there)
                self.assertEqual(len(done), len(runs))

    def test_the_wide_network_trains_three_epochs(self):
        study = definition.load(str(REPORT.parent / "configs" / "studies" / "resnet9_width64.yaml"))
        for run in grid.expand(study):
            self.assertEqual(run.settings["network"]["parameters"]["width"], 64)
            self.assertEqual(run.settings["train"]["epochs"], 3)
            self.assertEqual(run.settings["schedule"]["warmup_epochs"], 1)

    def test_the_mpirun_is_by_default_the_programs(self):
        mpirun = self.write("its_mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n")
        lpsgd = self.write("its_lpsgd", f"#!/bin/sh\necho '{{\"mpirun\": \"{mpirun}\"}}'\n")
        for path in (mpirun, lpsgd):
            path.chmod(0o755)
        study, runs = self.expand("config: tiny.yaml\naxes: {transport: mpi, ranks: 2}\n")
        start = launcher.Launcher(study, str(lpsgd))
        self.assertEqual(start.check(runs), {})
        self.assertEqual(start.command(runs[0], "out")[:3], [str(mpirun), "-n", "2"])

    def test_the_words_of_mpirun(self):
        for version, option in (("mpirun (Open MPI) 4.1.4", "--host"), ("HYDRA build details:", "-hosts")):
            mpirun = self.write("mpirun", f"#!/bin/sh\necho '{version}'\n")
            mpirun.chmod(0o755)
            study, runs = self.expand(
                f"""
config: tiny.yaml
axes: {{transport: [threads, mpi], ranks: [1, 2], schedule.decay: {{1: 0.5}}}}
launcher: {{mpirun: {mpirun}, hosts: [a:1, b:1], options: --bind-to none}}
"""
            )
            start = launcher.Launcher(study, "/bin/lpsgd")
            start.check(runs)
            commands = [start.command(run, "out") for run in runs]
            self.assertEqual([c[0] for c in commands], ["/bin/lpsgd"] * 3 + [str(mpirun)])
            self.assertEqual(
                commands[3],
                [
                    str(mpirun),
                    "-n",
                    "2",
                    option,
                    "a:1,b:1",
                    "--bind-to",
                    "none",
                    "/bin/lpsgd",
                    "train",
                    str(self.root / "tiny.yaml"),
                    "--set",
                    "exchange.transport=mpi",
                    "--set",
                    "schedule.decay={1: 0.5}",
                    "--out",
                    "out",
                    "--resume",
                    "--progress",
                    "plain",
                ],
            )

    def test_names_of_folders(self):
        self.assertEqual(labels.slug("qsgd 4 bit, bucket 512/../x"), "qsgd_4_bit_bucket_512_.._x")
        self.assertEqual(labels.slug("///"), "run")
        self.assertEqual(labels.slug("1bitSGD*, column"), "1bitSGD_star_column")


class Refused(StudyTest):
    """One line that names the file, the line, the column and the key; status 2; nothing is started."""

    def refuse(self, text, message, **options):
        status, out, err = self.study(text, **options)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
        self.assertIn(message, err.replace(str(self.root) + "/", ""))
        self.assertFalse((self.root / "out").exists())

    def test_mistakes(self):
        for text, message in (
            ("", "study.yaml: is empty"),
            ("[1]", "study.yaml:1:1: expected a map of name, config"),
            ("a: [", "study.yaml:1:5: not YAML: "),
            (
                HEAD + "axis: {}\n",
                "study.yaml:2:7: axis: unknown key, did you mean 'axes'?; allowed here: name, config, axes",
            ),
            (
                HEAD + "axes: {codek: [none]}\n",
                "study.yaml:2:15: axes.codek: unknown axis, did you mean 'codec'?; allowed: codec, ",
            ),
            (HEAD + "axes: {seed: []}\n", "study.yaml:2:14: axes.seed: expected at least one value"),
            (
                HEAD + "axes: {seed: [1, 1]}\n",
                "study.yaml:2:18: axes.seed: '1' is there twice; give one of them another name",
            ),
            (
                HEAD + "axes: {ranks: [0]}\n",
                "study.yaml:2:16: axes.ranks: expected an integer from 1 to 100000, not 0",
            ),
            (HEAD + "axes: {ranks: [two]}\n", "study.yaml:2:16: axes.ranks: expected an integer"),
            (
                HEAD + "axes: {codec: [{name: x}]}\n",
                "study.yaml:2:16: axes.codec: 'x' has neither a value nor a set",
            ),
            (HEAD + "axes: {train.seed: 1, seed: 2}\n", "axes 'train.seed' and 'seed' both set train.seed"),
            (
                HEAD + "axes: {codec: onebit, exchange.codec.bits: 4}\n",
                "both set exchange.codec and exchange.codec.bits",
            ),
            (
                HEAD + "axes: {codec: [onebit, {name: b, value: onebit}]}\n",
                "'onebit' and 'b' are the same settings",
            ),
            (
                HEAD + "axes: {seed: 1}\nexclude: [{sed: 1}]\n",
                "study.yaml:3:17: exclude.sed: no such axis, did you mean 'seed'?",
            ),
            (
                HEAD + "axes: {seed: 1}\nexclude: [{seed: 2}]\n",
                "study.yaml:3:18: exclude.seed: the axis has no '2'; it has: 1",
            ),
            (HEAD + "axes: {seed: 1}\nexclude: [{seed: 1}]\n", "study.yaml: every run is excluded"),
            (
                HEAD + "target: {top1: 90}\n",
                "study.yaml:2:16: target.top1: unknown metric, did you mean 'val_top1'?",
            ),
            (
                HEAD + "target: {val_top1: high}\n",
                "study.yaml:2:20: target.val_top1: expected a number, not high",
            ),
            (HEAD + "target: 90\n", "study.yaml:2:9: target: expected one metric and its value"),
            (HEAD + "jobs: 0\n", "study.yaml:2:7: jobs: expected an integer from 1 to 1024, not 0"),
            (
                HEAD + "launcher: {mpiexec: x}\n",
                "launcher.mpiexec: unknown key; allowed here: mpirun, hosts, options",
            ),
            (
                HEAD + "set: {trian.epochs: 1}\n",
                "study.yaml:2:21: set.trian.epochs: unknown key, did you mean 'train'?",
            ),
            (HEAD + "jobs: 1\njobs: 2\n", "study.yaml:3:1: jobs: given twice"),
            ("config: none.yaml\n", "study.yaml:1:9: config: no file none.yaml"),
            ("axes: {seed: 1}\n", "study.yaml:1:1: config: is missing"),
            ("axes: {config: [tiny.yaml, no.yaml]}\n", "study.yaml:1:28: axes.config: no file no.yaml"),
            (
                HEAD + "set: {exchange.codec.bits: 3}\n",
                "study.yaml:2:6: set: --set exchange.codec.bits=3: exchange.codec.bits: '3' is not known",
            ),
            (
                HEAD + "axes: {codec: {kind: qsgd, bit: 4}}\n",
                "study.yaml:2:15: axes.codec: --set exchange.codec",
            ),
            (HEAD + "timed: maybe\n", "study.yaml:2:8: timed: expected true or false, not maybe"),
            (
                HEAD + "axes: {train.epochz: 4}\n",
                "study.yaml:2:22: axes.train.epochz: --set train.epochz=4: train.epochz: unknown key",
            ),
            (HEAD + "axes: {link: '1Gbit,2us,3'}\n", "axes.link: expected bandwidth and latency"),
            (HEAD + "axes: {seed: &a [*a]}\n", "nested too deeply"),
            ("a: " + "[" * 5000, "nested too deeply"),
            (
                HEAD
                + "axes: {"
                + ", ".join(f"train.a{i}: [{', '.join(map(str, range(20)))}]" for i in range(4))
                + "}\n",
                "axes: 160000 combinations; at most 20000 are taken",
            ),
        ):
            with self.subTest(text=text[:80]):
                self.refuse(text, message)

    def test_a_study_that_is_missing(self):
        command, environment = self.command("")
        os.unlink(self.root / "study.yaml")
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(
            (result.returncode, result.stderr),
            (2, f"lpsgd: error: study: {self.root}/study.yaml: cannot be read: No such file or directory\n"),
        )

    def test_a_configuration_that_the_program_refuses(self):
        self.write("tiny.yaml", "network: {}\n")
        self.refuse("config: tiny.yaml\n", "tiny.yaml:1:10: input: is missing")
        self.write("tiny.yaml", TINY)
        self.refuse("config: tiny.yaml\n", "study.yaml:1:9: config: tiny.yaml: data: the key 'dataset' is missing")
        for data, problem in (("{datset: shapes}", "data.datset: unknown key, did you mean"), ("shapes", "data: expected a map")):
            self.write("tiny.yaml", TINY + f"data: {data}\n")
            self.refuse("config: tiny.yaml\n", problem)
        self.write("tiny.yaml", "network: none.yaml\ndata: {dataset: shapes}\n")
        self.refuse("config: tiny.yaml\n", "tiny.yaml: network: no file ")

    def test_batches_that_ranks_cannot_divide(self):
        """They are told before anything is trained; the other runs can start."""
        status, out, err = self.study("config: tiny.yaml\naxes: {transport: threads, ranks: [1, 3]}\n", "--dry-run")
        self.assertEqual(status, 1)
        self.assertRegex(err, r"run '3 ranks': train.batch_size: \d+ samples cannot be divided evenly over 3 ranks\n")
        self.assertEqual(err.count("\n"), 1, err)
        sizes = "{train.batch_size: {1: 8, 2: 16}}"
        for ranks in (3, 4):
            expected = f"has no batch size for {ranks} ranks; it has those for 1, 2"
            text = f"config: tiny.yaml\nset: {sizes}\naxes: {{transport: threads, ranks: [%s]}}\n"
            status, out, err = self.study(text % f"1, 2, {ranks}", "--dry-run")
            self.assertEqual((status, err.count("\n")), (1, 1))
            self.assertTrue(err.endswith(f": run '{ranks} ranks': train.batch_size: {expected}\n"), err)
            self.refuse(text % ranks, expected)
        self.refuse("config: tiny.yaml\nset: {train.micro_batches: 7}\n", "over 1 rank with 7 micro-batches each")
        self.refuse("config: tiny.yaml\nset: {train.micro_batches: 0}\n", "train.micro_batches: expected an integer from 1")

    def test_an_mpirun_that_is_missing(self):
        text = "config: tiny.yaml\nlauncher: {mpirun: mpirun-none}\naxes: {transport: mpi, ranks: 2}\n"
        self.refuse(text, "study.yaml:2:20: launcher.mpirun: no program 'mpirun-none'")
        self.assertEqual(self.study(text.replace("ranks: 2", "ranks: 1"), "--dry-run")[0], 0)

    def test_a_program_that_is_missing(self):
        self.refuse("config: tiny.yaml\n", "no program there", program="/none/lpsgd")

    def test_through_the_program(self):
        study = self.write("study.yaml", "config: tiny.yaml\n")
        environment = {**os.environ, "LPSGD_REPORT": str(REPORT), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("LPSGD_PROGRAM", None)
        for words, text in (
            (["study", str(study), "--dry-run"], "1 run, 0 done; left: 0 B on the wire"),
            (["report", "--help"], "DIR|RUN"),
        ):
            result = subprocess.run(
                [LPSGD, *words], env=environment, capture_output=True, text=True, cwd=self.root
            )
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(text, result.stdout)

    def test_an_empty_word(self):
        for words, named in (
            (["study", ""], "STUDY.yaml"),
            (["study", "a.yaml", "--out", ""], "--out"),
            (["report", "a", ""], "DIR|RUN"),
            (["predict", "--calibrate", "a.csv", "--cells", ""], "--cells"),
        ):
            result = subprocess.run(
                [sys.executable, str(REPORT / f"lpsgd_{words[0]}.py"), *words[1:]], capture_output=True, text=True,
                cwd=self.root,
            )
            expected = f"lpsgd: error: {words[0]}: {named}: is empty; 'lpsgd {words[0]} --help' lists the options\n"
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", expected))

    def test_dry_run(self):
        status, out, err = self.study(
            "config: tiny.yaml\naxes: {ranks: [1, 4], codec: [none, onebit]}\n", "--dry-run"
        )
        self.assertEqual((status, err), (0, ""))
        self.assertFalse((self.root / "out").exists())
        lines = out.splitlines()
        self.assertEqual(len(lines), 6)
        shown = json.loads(
            subprocess.run(
                [LPSGD, "show", str(self.root / "tiny.yaml"), "--json", "--set", "exchange.codec=none"],
                capture_output=True,
                check=True,
            ).stdout
        )
        self.assertEqual(shown["wire_bytes"], 4 * 2682)
        total = 2 * 3 * 4 * 2682 * 16  # both rounds, to 3 others, float32, 16 steps
        self.assertIn(f"  4       2     16       64.4 kB  {total / 1e6:.2f} MB", lines[3])


if __name__ == "__main__":
    unittest.main()
