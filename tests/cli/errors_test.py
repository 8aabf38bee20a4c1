"""Wrong input: one clear message that says what and where, the right status, nothing lost."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest
from pathlib import Path

from harness import CONFIG, LPSGD, MPIRUN, NETWORK, Case, checkpoints, run


class ConfigurationErrors(Case):
    def refused(self, config_text, expected, *arguments, ranks=2):
        config = self.write("bad.yaml", config_text)
        result = run("train", config, "--out", self.path("out"), *arguments, ranks=ranks)
        self.assertEqual(result.status, 2, result)
        self.assertIn(expected.format(config=config, dir=self.dir), result.err)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        self.assertFalse(os.path.exists(self.path("out")), "nothing may start")

    def test_unknown_key_suggests_the_near_one(self):
        self.refused(
            CONFIG.replace("batch_size: 24", "batchsize: 24"),
            "{config}:3:20: train.batchsize: unknown key, did you mean 'batch_size'?",
            ranks=3,
        )

    def test_arithmetic_that_the_processor_lacks(self):
        config = self.write("bf16.yaml", CONFIG.replace("{epochs: 2", "{compute: bf16, epochs: 2"))
        # Restricting oneDNN to AVX2 emulates an older processor.
        result = run("train", config, "--out", self.path("out"), ranks=2, env={"ONEDNN_MAX_CPU_ISA": "AVX2"})
        self.assertEqual(result.status, 2, result)
        self.assertIn(f"{config}:3:18: train.compute: bf16 needs a processor with AVX512-BF16 or AMX", result.err)
        self.assertFalse(os.path.exists(self.path("out")), "nothing may start")

    def test_arithmetic_of_gpus_on_the_cpu(self):
        result = run("train", self.config, "--out", self.path("o"), "--set", "train.compute=tf32", ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err, "lpsgd: error: --set train.compute=tf32: train.compute: tf32 is an arithmetic of "
                                     "GPUs; allowed on the CPU: fp32, bf16\n")

    def test_a_gpu_where_there_is_none(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        result = run("train", self.config, "--out", self.path("o"), "--set", "train.device=cuda", ranks=2, env=hidden)
        self.assertEqual(result.status, 2, result)
        self.assertRegex(result.err, r"\Alpsgd: error: --set train.device=cuda: train.device: cuda cannot be used: [^\n]+\n\Z")
        result = run("train", self.config, "--out", self.path("auto"), "--set", "train.device=auto", "--steps", "0",
                     env=hidden)
        self.assertEqual(result.status, 0, result)

    def test_a_misspelt_key_that_must_be_given(self):
        self.refused(CONFIG.replace("data:", "datta:"), "{config}:2:1: datta: unknown key, did you mean 'data'?; allowed here: network,")
        self.refused(CONFIG.replace("dataset:", "datasett:"), "{config}:2:8: data.datasett: unknown key, did you mean 'dataset'?")
        self.refused(CONFIG.replace("data:", "metrics: {{}}\n#").replace("{{}}", "{}"), "{config}:1:1: data: the key 'dataset' is missing")
        for codec, expected in (
            ("{knd: qsgd, bits: 4}", "exchange.codec.knd: unknown key, did you mean 'kind'?"),
            ("{bits: 4}", "exchange.codec: the key 'kind' is missing; it must be given"),
        ):
            self.refused(CONFIG, expected, "--set", "exchange.codec=" + codec)

    def test_an_environment_variable_without_quotes(self):
        self.refused(CONFIG.replace("{every_epochs: 1, keep: 3}", "\n  keep: ${LPSGD_KEEP}"),
                     '{config}:8:9: checkpoint.keep: an environment variable needs quotes: "${{LPSGD_KEEP}}"')
        for option in ("data.root=${LPSGD_DATA}/q", "train.epochs=${LPSGD_EPOCHS}"):
            key, value = option.replace("{", "{{").replace("}", "}}").split("=")
            self.refused(CONFIG, f'--set {key}={value}: {key}: an environment variable needs quotes: "{value}"', "--set", option)

    def test_unknown_section(self):
        self.refused(CONFIG + "exchnge: {}\n", "{config}:8:1: exchnge: unknown key, did you mean 'exchange'?")

    def test_wrong_type(self):
        self.refused(
            CONFIG.replace("epochs: 2", "epochs: two"),
            "{config}:3:17: train.epochs: expected an integer from 0 to 1000000000, got 'two'",
        )

    def test_impossible_value(self):
        self.refused(
            CONFIG.replace("bits: 4", "bits: 3"), "{config}:6:54: exchange.codec.bits: '3' is not known"
        )

    def test_a_key_of_another_section_is_named(self):
        for key, here in ("train.lr", "epochs"), ("lr", "network"):
            result = run("train", self.write("good.yaml", CONFIG), "--out", self.path("out"), "--set", f"{key}=0.1")
            self.assertEqual(result.status, 2, result)
            self.assertIn(f"{key}: unknown key; allowed here: {here}, ", result.err)
            self.assertIn("; 'lr' is a key of schedule\n", result.err)

    def test_a_value_that_the_shell_has_cut(self):
        option = "exchange.codec={kind:"
        self.refused(CONFIG, "; values with spaces need quotes: --set 'key={{a: b}}'", "--set", option)

    def test_unknown_codec(self):
        self.refused(
            CONFIG.replace("kind: qsgd", "kind: qsdg"), "exchange.codec.kind: 'qsdg' is not known, did you mean 'qsgd'?"
        )

    def test_duplicate_key(self):
        self.refused(CONFIG + "train: {epochs: 1}\n", "{config}:8:1: duplicate key 'train'")

    def test_more_threads_than_the_machine_can_use(self):
        for key in "train.threads", "data.workers":
            value = 4096 if key == "train.threads" else 1024
            if value <= 8 * os.cpu_count():
                continue
            self.refused(CONFIG, f"--set {key}={value}: {key}: {value} threads on a machine of", "--set",
                         f"{key}={value}")
        self.assertEqual(run("show", self.config, "--set", "train.threads=4096").status, 0)

    def test_only_regular_files_are_read(self):
        os.mkfifo(self.path("pipe"))
        for bad in self.path("pipe"), "/dev/zero":
            result = run("show", bad, timeout=60)
            self.assertEqual(result.status, 2, result)
            self.assertEqual(result.err, f"lpsgd: error: {bad}: cannot be read: not a regular file\n")

    def test_a_file_that_is_too_large(self):
        long = self.write("long.yaml", "a: " + "x" * (1 << 20))
        result = run("show", long)
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err, f"lpsgd: error: {long}: too large: 1048579 bytes, expected 1048576 or fewer\n")

    def test_escapes_in_text_are_not_sent_to_the_terminal(self):
        result = run("show", self.write("escapes.yaml", CONFIG + '"\\e[2J\\n": 1\n'))
        self.assertEqual(result.status, 2, result)
        self.assertIn("\\x1b[2J\\x0a: unknown key", result.err)

    def test_set_names_the_option(self):
        self.refused(CONFIG, "--set train.sed=4: train.sed: unknown key, did you mean 'seed'?", "--set", "train.sed=4")

    def test_a_linear_decay_without_an_epoch_for_it(self):
        self.refused(
            CONFIG.replace("decay: {1: 0.1}", "decay: {linear: 0}, warmup_epochs: 2"),
            "{config}:5:29: schedule.decay: a warm-up of 2 epochs leaves none of the run's 2 for a linear decay",
        )

    def test_unit_gain_that_leaves_no_gradient(self):
        self.refused(
            CONFIG.replace("momentum: 0.9", "momentum: 1, momentum_unit_gain: true"),
            "{config}:4:23: optimizer.momentum: with optimizer.momentum_unit_gain it must be less than 1",
        )

    def test_batch_size_that_ranks_do_not_divide(self):
        self.refused(
            CONFIG.replace("batch_size: 24", "batch_size: 25"),
            "{config}:3:32: train.batch_size: 25 samples cannot be divided evenly over 2 ranks",
        )

    def test_a_batch_size_for_other_ranks(self):
        self.refused(
            CONFIG.replace("batch_size: 24", "batch_size: {2: 24, 4: 48}"),
            "{config}:3:32: train.batch_size: has no batch size for 3 ranks; it has those for 2, 4",
            ranks=3,
        )
        self.refused(
            CONFIG.replace("transport: mpi", "transport: threads, ranks: 1"),
            "--set train.batch_size={{2: 24}}: train.batch_size: has no batch size for 1 rank; it has those for 2",
            "--set", "train.batch_size={2: 24}",
            ranks=None,
        )
        for value, says in (("{}", "train.batch_size: expected an integer"), ("{x: 3}", "train.batch_size: expected an integer"),
                            ("{2: 0}", "train.batch_size.2: expected an integer")):
            self.refused(CONFIG.replace("batch_size: 24", f"batch_size: {value}"), says)

    def test_parameters_of_a_network_file(self):
        self.refused(
            CONFIG.replace("tiny_network.yaml", "{file: tiny_network.yaml, parameters: {nrom: false}}"),
            "{config}:1:49: network.parameters: the network has no parameter 'nrom', did you mean 'norm'?; it has: "
            "activation, norm",
        )
        self.refused(
            CONFIG.replace("tiny_network.yaml", "{file: tiny_network.yaml, layers: []}"),
            "{config}:1:36: network: beside `file` only a map `parameters` is allowed",
        )

    def test_transport_nccl_where_it_cannot_be(self):
        version = json.loads(run("version", "--json").out)
        if version["nccl_version"] and version.get("is_cuda_available"):
            self.skipTest("this machine has NCCL and a GPU")
        text = CONFIG.replace("transport: mpi", "transport: nccl")
        self.refused(text, "{config}:6:23: exchange.transport: nccl moves bytes between GPUs, but ")
        self.refused(text, "; allowed here: mpi, threads")

    def test_missing_network_file(self):
        self.refused(
            CONFIG.replace("tiny_network.yaml", "none.yaml"), "{config}:1:10: network: no file {dir}/none.yaml"
        )

    def test_shapes_that_do_not_fit_name_the_layer(self):
        network = NETWORK.replace("  - average_pool\n", "  - {conv: huge, filters: 4, kernel: 99}\n")
        self.write("tiny_network.yaml", network)
        self.refused(CONFIG, "huge")

    def test_network_and_data_that_do_not_fit(self):
        self.write("tiny_network.yaml", NETWORK.replace("classes: 10", "classes: 7").replace("units: 10", "units: 7"))
        self.refused(CONFIG, "network.classes: the network has 7 classes, data set shapes has 10")

    def test_unset_variable_only_where_it_is_needed(self):
        text = CONFIG.replace("dataset: shapes", 'dataset: cifar10, root: "${LPSGD_UNSET_VARIABLE}/x"')
        self.refused(text, "environment variable LPSGD_UNSET_VARIABLE is not set")
        self.assertEqual(run("show", self.write("bad.yaml", text)).status, 0)

    def test_show_needs_no_variable_but_those_of_codecs(self):
        unset = "${LPSGD_UNSET_VARIABLE}"
        for key, value in (("data.augment.pad", f"'{unset}'"), ("data.augment.jitter.hue", f"'{unset}'"),
                           ("data.mean", f"[0.5, 0.5, '{unset}']"), ("schedule.decay", f"{{80: '{unset}', 120: 0.1}}"),
                           ("optimizer.no_decay", f"['{unset}']"), ("exchange.link", f"{{latency: '{unset}'}}"),
                           ("exchange.warmup_epochs", f"'{unset}'")):
            result = run("show", self.config, "--set", f"{key}={value}")
            self.assertEqual((result.status, result.err), (0, ""), key)
            result = run("train", self.config, "--out", self.path("out"), "--set", f"{key}={value}")
            self.assertEqual(result.status, 2)
            self.assertIn("environment variable LPSGD_UNSET_VARIABLE is not set", result.err)
        for key in ("exchange.codec.bits", "exchange.rules"):
            value = f"[{{name: a, codec: {{kind: qsgd, bits: '{unset}'}}}}]" if key == "exchange.rules" else f"'{unset}'"
            result = run("show", self.config, "--set", f"{key}={value}")
            self.assertEqual(result.status, 2)
            self.assertIn("environment variable LPSGD_UNSET_VARIABLE is not set", result.err)

    def test_variables_are_expanded_in_every_quoted_string(self):
        text = CONFIG.replace("dataset: shapes", 'dataset: "${LPSGD_TEST_SET}"')
        text = text.replace("batch_size: 24", 'batch_size: "${LPSGD_TEST_BATCH}"')
        self.refused(text, "{config}:2:17: data.dataset: environment variable LPSGD_TEST_SET is not set")
        config = self.write("set.yaml", text)
        self.assertEqual(run("show", config).status, 0)  # needs neither
        result = run("show", config, env={"LPSGD_TEST_SET": "shape"})
        self.assertEqual(result.status, 2, result)
        self.assertIn("data.dataset: 'shape' is not known, did you mean 'shapes'?", result.err)
        result = run("show", config, env={"LPSGD_TEST_BATCH": "many"})
        self.assertEqual(result.status, 2, result)
        rules = ["--set", 'exchange.rules=[{name: "${LPSGD_UNSET_VARIABLE}", codec: none}]']
        self.assertEqual(run("show", self.config, *rules).status, 0)
        self.refused(CONFIG, "exchange.rules[0].name: environment variable LPSGD_UNSET_VARIABLE is not set", *rules)
        self.train("out", config=config, env={"LPSGD_TEST_SET": "shapes", "LPSGD_TEST_BATCH": "24"})

    def test_errors_found_in_the_data_name_the_line_too(self):
        for option, expected in (
            ("data.mean=[0.5]", "data.mean: 1 value, but the network takes images of 3 channels"),
            ("data.std=[0, 1, 1]", "data.std: 0 is not above 0"),
            ("data.evaluate={resize: 16}", "data.evaluate.resize: 16 is less than the network's input of 32 x 32"),
            ("data.train_samples=8", "train.batch_size: the training set has 8 samples, fewer than one global batch of 24 (with --set data.train_samples=8)"),
            ("train.batch_size=200", "train.batch_size: the training set has 96 samples, fewer than one global batch of 200"),
            ("data.dataset=cifar10", "data.root: missing"),
        ):
            place = {"data.dataset": "{config}:2:7", "data.train_samples": "{config}:3:32"}.get(option.split("=")[0])
            place = place or "--set " + option.replace("{", "{{").replace("}", "}}")
            self.refused(CONFIG, f"{place}: {expected}", "--set", option)

    def test_a_network_changed_by_set_names_the_option(self):
        self.refused(CONFIG, "(with --set network.classes=7)", "--set", "network.classes=7")

    def test_a_parameter_that_the_network_does_not_have(self):
        self.refused(CONFIG, "--set network.parameters.nrom=1: network.parameters: the network has no parameter 'nrom', "
                     "did you mean 'norm'?; it has: activation, norm", "--set", "network.parameters.nrom=1")

    def test_a_network_file_with_parameters(self):
        def with_network(text):
            return CONFIG.replace("network: tiny_network.yaml", f"network: {text}")

        for norm in ("true", "false"):
            config = self.write("tiny.yaml", with_network("{file: tiny_network.yaml, parameters: {norm: %s}}" % norm))
            shown = run("show", config)
            self.assertEqual(shown.status, 0, shown)
            self.assertEqual("bn1.weight" in shown.out, norm == "true", shown.out)
        self.assertIn("bn1.weight", run("show", config, "--set", "network.parameters.norm=true").out)
        self.refused(with_network("{file: tiny_network.yaml, parameters: {nrom: 1}}"),
                     "{config}:1:49: network.parameters: the network has no parameter 'nrom', did you mean 'norm'?; "
                     "it has: activation, norm")
        for wrong in ("{file: tiny_network.yaml, classes: 3}", "{file: tiny_network.yaml, parameters: 3}"):
            self.refused(with_network(wrong), "{config}:1:36: network: beside `file` only a map `parameters` is allowed")
        self.refused(with_network("{file: missing.yaml}"), "network: no file ")

    def test_sequences_without_a_data_set(self):
        self.write("tiny_network.yaml", "name: s\ninput: [5, 4]\nclasses: 10\nlayers: [{dense: d, units: 10}]\n")
        self.refused(CONFIG, "data.dataset: the network takes sequences (5, 4), and data set shapes has images")

    def test_text_that_is_not_utf8(self):
        path = self.path("latin.yaml")
        with open(path, "wb") as file:
            file.write(CONFIG.encode() + b"# caf\xe9\n")
        result = run("train", path, "--out", self.path("out"), ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn(f"{path}:8:6: byte 0xe9 is not UTF-8 text", result.err)

    def test_a_folder_is_no_configuration(self):
        result = run("show", self.dir)
        self.assertEqual(result.status, 2, result)
        self.assertIn(f"{self.dir}: cannot be read: Is a directory", result.err)

    def test_missing_configuration(self):
        result = run("train", self.path("absent.yaml"), ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn(self.path("absent.yaml") + ": cannot be read: No such file", result.err)

    def test_command_line(self):
        for arguments in (["train"], ["nonsense"], ["train", self.config, "--steps", "-1"], []):
            self.assertEqual(run(*arguments).status, 2, arguments)
        result = run("train", self.config, "--steps", "abc", ranks=3)
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err.count("expected a whole number from 0 on, got 'abc'"), 1, result)

    def test_allreduce_takes_no_codec(self):
        self.refused(CONFIG.replace("transport: mpi", "collective: allreduce"), "takes only codec none")
        self.refused(CONFIG, "use reduce_broadcast (with --set exchange.collective=allreduce)", "--set", "exchange.collective=allreduce")

    def test_threads_under_mpirun(self):
        self.refused(CONFIG.replace("transport: mpi", "transport: threads"), "without mpirun")


class DataErrors(Case):
    def cifar(self, truncate=None, missing=None):
        os.mkdir(self.path("cifar"))
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            if name == missing:
                continue
            data = b"".join(bytes([i % 10]) + bytes(3072) for i in range(20))
            with open(self.path("cifar", name), "wb") as file:
                file.write(data[:-7] if name == truncate else data)
        return self.write("cifar.yaml", CONFIG.replace("dataset: shapes", f"dataset: cifar10, root: {self.path('cifar')}")
                          .replace(", train_samples: 96, test_samples: 50", ""))

    def failed(self, config, *expected):
        result = run("train", config, "--out", self.path("out"), ranks=2)
        self.assertEqual(result.status, 1, result)
        for text in expected:
            self.assertIn(text, result.err)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)

    def test_whole_files_are_accepted(self):
        self.train("out", config=self.cifar())

    def test_truncated_file(self):
        self.failed(self.cifar(truncate="data_batch_3.bin"), self.path("cifar", "data_batch_3.bin"), "61453")

    def test_missing_file(self):
        self.failed(self.cifar(missing="test_batch.bin"), self.path("cifar", "test_batch.bin"), "No such file")


class RunErrors(Case):
    def test_a_run_is_not_overwritten(self):
        self.train("out")
        before = self.metrics(self.path("out"))
        result = run("train", self.config, "--out", self.path("out"), ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("holds a run already", result.err)
        self.assertEqual(self.metrics(self.path("out")), before)

    def test_a_gradient_that_is_not_finite_stops_the_run(self):
        result = run("train", self.config, "--out", self.path("out"), "--set", "schedule.lr=1e30", "--set",
                     "schedule.decay={}", "--set", "network.parameters.norm=false", ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertRegex(result.err, r"step \d+: the gradient of '[\w.]+' on rank \d holds a NaN or an infinity")
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)

    def test_a_crash_ends_the_process(self):
        """UCX would print a backtrace, for which it allocates memory: that never returns inside malloc."""
        environment = {k: v for k, v in os.environ.items() if k != "UCX_HANDLE_ERRORS"}
        config = self.write("long.yaml", CONFIG.replace("epochs: 2", "epochs: 100000"))
        process = subprocess.Popen([LPSGD, "train", config, "--out", self.path("out")], env=environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        with process:
            while not os.path.exists(self.path("out", "config.yaml")):
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.send_signal(signal.SIGSEGV)
            err = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, -signal.SIGSEGV)
        self.assertNotIn("backtrace", err)

    def test_junk_in_metrics_names_the_line(self):
        self.train("out")
        path = self.path("out", "metrics.jsonl")
        with open(path) as file:
            first = file.readline()
        for junk in "\x1b[2J", "[" * 300000, "{}":
            with open(path, "w") as file:
                file.write(first + junk + "\n")
            result = run("train", self.config, "--out", self.path("out"), "--resume", ranks=2)
            self.assertEqual(result.status, 1, result)
            self.assertIn(f"{path}:2: ", result.err)
            self.assertNotIn("json.exception", result.err)

    def test_a_planted_link_is_not_followed(self):
        os.mkdir(self.path("out"))
        victim = self.write("victim", "mine")
        for name in "config.yaml.new", "environment.json.new", "metrics.jsonl.new", "summary.json.new":
            os.symlink(victim, self.path("out", name))
        self.train("out")
        with open(victim) as file:
            self.assertEqual(file.read(), "mine")

    def test_a_planted_link_is_no_lock(self):
        for name, target in (("out", self.write("victim", "mine")), ("dangling", self.path("nothing"))):
            os.mkdir(self.path(name))
            os.symlink(target, self.path(name, ".lock"))
            result = run("train", self.config, "--out", self.path(name))
            self.assertEqual(result.status, 1, result)
            self.assertIn(f"{self.path(name, '.lock')}: is a link; remove it", result.err)
        with open(self.path("victim")) as file:
            self.assertEqual(file.read(), "mine")
        self.assertFalse(os.path.exists(self.path("nothing")))

    def test_damaged_checkpoint(self):
        for name in ("state-rank0001.safetensors", "model.safetensors", "manifest.json"):
            folder = self.train("out-" + name)
            path = os.path.join(folder, "checkpoints", "epoch-0002", name)
            os.truncate(path, 5)
            result = run("train", self.config, "--out", folder, "--resume", ranks=2)
            self.assertEqual(result.status, 0, result)
            self.assertIn(f"{os.path.dirname(path)} is passed over: {path}: ", result.err)
            self.assertIn("resuming from " + os.path.join(folder, "checkpoints", "epoch-0001"), result.err)

    def test_an_edited_manifest_is_damaged(self):
        folder = self.train("out", "--steps", "1")
        path = os.path.join(folder, "checkpoints", "step-000001", "manifest.json")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace('"step": 1', '"step": 3'))
        result = run("train", self.config, "--out", folder, "--resume-required", ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("manifest.json: is damaged", result.err)

    def test_a_refused_resume_changes_nothing(self):
        folder = self.train("out", "--steps", "3")
        names = ("config.yaml", "environment.json")
        files = lambda: [Path(folder, name).read_text() for name in names]
        before = files()
        for option, expected in (
            ("train.seed=4", "was written with train.seed 3, the configuration says 4"),
            ("data.train_samples=48", "was written inside an epoch with data.train_samples 96, the configuration says 48"),
            ("data.shuffle=false", "was written inside an epoch with data.shuffle true, the configuration says false"),
        ):
            result = run("train", self.config, "--out", folder, "--resume", "--set", option, ranks=2)
            self.assertEqual(result.status, 2, result)
            self.assertIn(expected, result.err)
            self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
            self.assertEqual(files(), before)

    def test_a_resume_may_begin_a_codec_and_not_lose_a_residual(self):
        plain, onebit = ("--set", "exchange.codec={kind: none}"), ("--set", "exchange.codec={kind: onebit}")
        self.train("out", "--steps", "3", *plain, ranks=2)
        for ranks in 2, 1:  # residuals of as many ranks as before, and of others
            folder = shutil.copytree(self.path("out"), self.path(f"begun{ranks}"))
            result = run("train", self.config, "--out", folder, "--resume", *onebit, ranks=ranks)
            self.assertEqual(result.status, 0, result)
            self.assertRegex(result.err, r"[1-9]\d* of \d+ tensors had another codec; residuals of the new ones start at")
            with open(os.path.join(folder, "metrics.jsonl")) as file:
                self.assertTrue(json.loads(file.readlines()[-1])["replicas_equal"])
        result = run("train", self.config, "--out", self.path("begun2"), "--resume", *plain, ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("their residuals differ", result.err)

    def test_a_resume_with_another_optimizer_is_refused(self):
        folder = self.train("out", "--steps", "3")
        result = run("train", self.config, "--out", folder, "--resume", "--set", "optimizer={kind: adam}", ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("was written with optimizer.kind sgd, the configuration says adam", result.err)

    def test_a_resume_needs_the_runs_folder(self):
        result = run("train", self.config, "--resume")
        self.assertEqual(result.status, 2, result)
        self.assertIn("--out", result.err)

    def test_settings_without_effect_are_named(self):
        result = run("train", self.config, "--out", self.path("out"), "--steps", "1", "--set",
                     'exchange.rules=[{name: "fc.wight", codec: {kind: fp16}}, {kind: conv, codec: {kind: fp16}},'
                     ' {name: "conv*", kind: conv, codec: {kind: none}}]')
        self.assertEqual(result.status, 0, result)
        self.assertIn("exchange.rules[0] has no effect: it matches no tensor, did you mean 'fc.weight'?", result.err)
        self.assertIn("exchange.rules[2] has no effect: earlier rules take all tensors that it matches", result.err)
        self.assertNotIn("rules[1]", result.err)
        self.assertIn(" and 3 rules | ", result.out)
        result = run("train", self.config, "--out", self.path("far"), "--set", "schedule.warmup_epochs=50", "--set",
                     "sync={kind: local_sgd, steps: 1000}", ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertIn("sync: in the 8 steps up to step 8 there is no synchronisation of all ranks", result.err)
        self.assertIn("ends before the rate has reached schedule.lr", result.err)
        self.assertRegex(result.out, r"\| wire -\n")

    def test_a_resume_of_another_network_is_refused(self):
        plain = ("--set", "exchange.codec={kind: none}")
        folder = self.train("out", "--steps", "3", *plain)
        result = run("train", self.config, "--out", folder, "--resume", *plain, "--set", "network.layers.0.filters=16", ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("tensor 'conv1.weight' has shape (8, 3, 3, 3), expected (16, 3, 3, 3)", result.err)

    def test_a_full_disk_leaves_the_last_checkpoint(self):
        threads = ["--set", "exchange.transport=threads", "--set", "exchange.ranks=2"]
        folder = self.train("out", "--steps", "3", *threads, ranks=None)
        kept = checkpoints(folder)

        def limit():
            # Writes past the limit fail with "File too large", as a full disk fails with "No space left".
            resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

        result = subprocess.run([LPSGD, "train", self.config, "--out", folder, "--resume", *threads], capture_output=True,
                                text=True, timeout=300, preexec_fn=limit)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("cannot be written: File too large", result.stderr)
        self.assertEqual([c for c in checkpoints(folder) if not c.startswith(".")], kept)
        self.train("out", "--resume", *threads, ranks=None)

    def test_a_dying_rank_ends_the_job(self):
        process = subprocess.Popen([MPIRUN, "-n", "2", LPSGD, "train", self.config, "--out", self.path("out"), "--set",
                                    "train.epochs=100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while time.time() < deadline and not (
            os.path.exists(self.path("out", "metrics.jsonl")) and len(self.metrics(self.path("out"))) >= 3
        ):
            time.sleep(0.1)
        victims = subprocess.run(["pgrep", "-f", f"^{LPSGD} train {self.config}"], capture_output=True, text=True)
        os.kill(int(victims.stdout.split()[-1]), signal.SIGKILL)
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        with open(self.path("out", "checkpoints", sorted(
                c for c in checkpoints(self.path("out")) if not c.startswith("."))[-1], "manifest.json")) as file:
            step = json.load(file)["step"]
        self.train("out", "--resume", "--steps", str(step + 2), "--set", "train.epochs=100000")


if __name__ == "__main__":
    unittest.main(verbosity=2)
