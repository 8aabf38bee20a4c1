"""lpsgd predict CONFIG from runs whose config.yaml the program has written. 77 is a skip."""

import json
import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

from harness import SOURCE
from predict_harness import LPSGD, TRAINED, TrainedTest, predict

import program
from costmodel import devices, links, pipeline, run_folder, scaling
from costmodel.errors import CostModelError


class Links(TrainedTest):
    def test_runs_with_and_without_a_link(self):
        for name, given, expected in (
            ("none", None, None),
            ("latency", "{latency: 1ms}", (pipeline.NO_LINK.bandwidth, 1e-3, 0.0)),
            ("bandwidth", "{bandwidth: 1Gbit}", (1e9, 0.0, 262500.0)),
            ("slow", "{bandwidth: 100Mbit}", (1e8, 0.0, 65536.0)),
            ("all", "{bandwidth: 1.5Gbit, latency: 30us, burst: 2097152B}", (1.5e9, 30 * 1e-6, 2097152.0)),
        ):
            with self.subTest(link=given):
                run = self.train(name, *([f"exchange.link={given}"] if given else []))
                found = self.predicted("--run", str(run))
                self.assertEqual([row["codec"] for row in found["rows"]], ["none", "qsgd4"])
                link = links.emulated(run_folder.read(str(run)).config["exchange"], "there")
                self.assertEqual(link, expected and pipeline.Link(*expected))

    def test_what_is_no_quantity(self):
        for link in ({"bandwidth": "fast"}, {"latency": "1h"}, {"bandwidth": 7}, {"latency": "..us"}):
            with self.assertRaisesRegex(CostModelError, "^there: exchange.link.(bandwidth|latency): '"):
                links.emulated({"link": link}, "there")
        for exchange in ({}, {"link": {}}, {"link": None}, {"link": {"burst": "1kB"}}):
            self.assertIsNone(links.emulated(exchange, "there"))


class Devices(TrainedTest):
    """A run's device is what its ranks took, whatever its configuration leaves open."""

    def of_a_gpu(self, name, *sets):
        folder = self.train(name, *sets)
        environment = folder / "environment.json"
        found = json.loads(environment.read_text())
        self.assertEqual([device[:3] for device in found["devices"]], ["cpu", "cpu"])
        found["devices"] = ["cuda:0 (one)", "cuda:1 (one)"]
        environment.write_text(json.dumps(found))
        return str(folder)

    def test_the_benchmark_of_a_codec_is_of_the_runs_device(self):
        on_gpu, on_cpu = self.of_a_gpu("gpu", "train.device=auto"), str(self.train("cpu", "train.device=auto"))
        auto = ("--set", "train.device=auto", "--codecs", "onebit64,qsgd4")
        for has_gpu, run, asked, source in (
            (True, on_gpu, {"cuda"}, "benchmarked"),
            (False, on_gpu, {"cpu"}, "benchmarked on a CPU"),
            (True, on_cpu, {"cpu"}, "benchmarked"),
        ):
            with self.subTest(has_gpu=has_gpu, run=run):
                benched = []

                def bench(codec, device, benched=benched):
                    benched.append(device)
                    return (4e-9, 2e-9) if "onebit" in codec else (2e-9, 1e-9)

                own = mock.patch.object(scaling, "measured_host", lambda *_: (20e-9, 10e-9))  # ten times the benchmark's
                with own, mock.patch.object(scaling, "bench", bench), mock.patch.object(devices, "has_gpu", lambda h=has_gpu: h):
                    found = self.predicted("--run", run, *auto)
                    text = predict(str(self.config), "--run", run, *auto, "--ranks", "2", "--link", "1Gbit,50us")[1]
                self.assertEqual(set(benched), asked)
                self.assertEqual(found["coding"]["onebit64"], source)
                self.assertEqual(found["computing"]["device"], "cuda" if run == on_gpu else "cpu")
                # Twice as slow as the run's own codec, by the benchmark.
                rows = {row["codec"]: row["coding_s"] for row in found["rows"]}
                self.assertAlmostEqual(rows["onebit64"] / rows["none"], 2)
                self.assertAlmostEqual(rows["onebit64"] / rows["qsgd4"], 2)
                said = "without a GPU here, the coding of none, onebit64 was benchmarked on this machine's CPU"
                self.assertEqual(said in text, source != "benchmarked", text)

    def test_runs_of_other_collectives_say_nothing_of_coding(self):
        for name, more in (("simulated", ()), ("allreduce", ("exchange.codec={kind: none}",))):
            run = run_folder.read(str(self.train(name, f"exchange.collective={name}", *more)))
            with mock.patch.object(scaling, "bench", lambda *_: (1.0, 2.0)):
                codec = scaling.codec_of(program.show(f"{run.where}/config.yaml"))
                host, source = scaling.host_for(codec, [run], 100, pipeline.Host(0.0, 0.0))
            self.assertEqual((host.encode, host.decode, source), (1.0, 2.0, "benchmarked"), name)

    def test_what_the_benchmark_is_asked(self):
        """On a GPU an array that its cache does not hold."""
        def ask(*words):
            asked.append(words[words.index("--device") + 1 : words.index("--device") + 4])
            return [{"operation": name, "seconds_min": 2.0, "elements": 4} for name in ("encode", "decode_add")]

        asked = []
        with mock.patch.object(program, "ask", ask):
            self.assertEqual([scaling.bench("{kind: none}  ", device) for device in ("cpu", "cuda")], 2 * [(0.5, 0.5)])
        scaling.bench.cache_clear()
        self.assertEqual(asked, [("cpu", "--elements", "4194304"), ("cuda", "--elements", "16777216")])

    def test_a_run_on_another_device_is_refused(self):
        on_gpu, on_cpu = self.of_a_gpu("gpu", "train.device=auto"), str(self.train("cpu"))
        for words, message in (
            ((on_gpu,), f"{on_gpu}: a run on cuda, not on cpu as the configuration says"),
            ((on_cpu, on_gpu, "train.device=auto"), f"{on_gpu}: a run on cuda, not on cpu as {on_cpu}"),
            ((on_cpu, "train.device=auto", "exchange.transport=nccl"), f"{on_cpu}: a run on cpu, not on cuda as the conf"),
            ((on_cpu, "exchange.transport=nccl"), "exchange.transport: nccl needs GPUs, and train.device is cpu"),
        ):
            runs = [word for run in words if "=" not in run for word in ("--run", run)]
            sets = [word for one in words if "=" in one for word in ("--set", one)]
            status, out, err = predict(str(self.config), *runs, *sets, "--ranks", "2", "--link", "1Gbit,50us")
            self.assertEqual((status, out), (2, ""))
            self.assertIn(message, err)


    def test_a_run_on_both_kinds_is_refused(self):
        folder = pathlib.Path(self.of_a_gpu("both", "train.device=auto"))
        path = folder / "environment.json"
        path.write_text(path.read_text().replace("cuda:1 (one)", "cpu"))
        with self.assertRaisesRegex(CostModelError, "both/environment.json: a run on CPUs and GPUs at once"):
            run_folder.read(str(folder))

    def test_the_first_steps_on_a_gpu_are_not_enough(self):
        folder = self.of_a_gpu("first", "train.device=auto", "train.epochs=1")
        self.assertEqual(run_folder.read(folder).is_cold, True)
        with self.assertRaisesRegex(CostModelError, "first: 8 steps measured, the run's first among them, which take lon"):
            run_folder.read_enough(folder)
        self.assertFalse(run_folder.read_enough(self.of_a_gpu("second", "train.device=auto")).is_cold)

    def test_without_a_gpu_its_coding_is_not_known(self):
        words = ("--set", "train.device=cuda", "--step-seconds", "1", "--ranks", "2", "--link", "1Gbit,50us")
        with mock.patch.object(devices, "has_gpu", lambda: False):
            status, out, err = predict(str(self.config), *words)
        self.assertEqual((status, out), (2, ""))
        self.assertIn("the coding of a GPU cannot be benchmarked here, where there is none, and no run of several", err)

    def of_several_packs(self):
        layers = "".join(f"    - {{dense: f{i}, units: 190}}\n" for i in range(6))  # 141 to 190 KiB each
        self.config = self.write("small.yaml", TRAINED.replace("    - flatten\n", "    - flatten\n" + layers))

    def test_one_rank_of_a_gpu_exchanges_behind_backward(self):
        """Which it launches as one graph."""
        self.of_several_packs()
        auto = ("--set", "train.device=auto", "--set", "exchange.device_pointers=true", "--ranks", "1,2", "--link", "1Gbit,50us", "--json")
        exposed = {}
        for name, run in (("gpu", self.of_a_gpu("gpu", "train.device=auto")), ("cpu", str(self.train("cpu")))):
            status, out, err = predict(str(self.config), "--run", run, *auto, "--codecs", "qsgd4")
            self.assertEqual((status, err), (0, ""))
            exposed[name] = [r["exposed_s"] / r["coding_s"] for r in json.loads(out)["rows"] if r["codec"] == "qsgd4"]
        self.assertAlmostEqual(exposed["gpu"][0], 1)
        self.assertLess(exposed["cpu"][0], 1)

    def test_packs_and_messages_are_those_of_the_device(self):
        """A pack takes all small tensors where messages are staged; over NCCL and on the CPU there are several."""
        self.of_several_packs()
        on_gpu, on_cpu = self.of_a_gpu("gpu", "train.device=auto"), str(self.train("cpu", "train.device=auto"))
        found = {}
        for name, run, more in (("staged", on_gpu, ()), ("nccl", on_gpu, ("--set", "exchange.transport=nccl")), ("cpu", on_cpu, ())):
            words = ("--run", run, "--set", "train.device=auto", *more, "--codecs", "none")
            with mock.patch.object(devices, "has_gpu", lambda: True), mock.patch.object(scaling, "bench", lambda *_: (1e-9, 1e-9)):
                with mock.patch.object(pipeline, "simulate", wraps=pipeline.simulate) as simulate:
                    found[name] = self.predicted(*words)["rows"][0]
            self.assertEqual(simulate.call_args.args[4].ordered, name == "nccl")
        self.assertLess(found["staged"]["messages"], found["cpu"]["messages"])
        self.assertEqual(found["nccl"]["messages"], found["cpu"]["messages"])

    def test_what_a_gpus_run_waited_for_counts_for_the_same_transport(self):
        """It may have been copies to the host and back."""
        folder = self.of_a_gpu("gpu", "train.device=auto")
        path = pathlib.Path(folder) / "metrics.jsonl"
        epochs = [json.loads(line) for line in path.read_text().splitlines()]
        for epoch in epochs:
            epoch["seconds"]["total"] += 5
            epoch["seconds"]["exposed_comm"] += 5
        path.write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
        auto = ("--run", folder, "--set", "train.device=auto", "--codecs", "none", "--coding-share", "0")
        with mock.patch.object(devices, "has_gpu", lambda: True), mock.patch.object(scaling, "bench", lambda *_: (1e-9, 1e-9)):
            for more, waits in (((), True), (("exchange.transport=nccl",), False), (("exchange.device_pointers=true",), False)):
                sets = [word for one in more for word in ("--set", one)]
                self.assertEqual(self.predicted(*auto, *sets)["rows"][0]["waiting_s"] > 0.1, waits, more)


class Resumed(TrainedTest):
    def test_epochs_on_another_number_of_ranks_do_not_count(self):
        """Of a run that was resumed: their local batches and seconds are others."""
        def records(folder):
            return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

        saved = "checkpoint.every_epochs=1"
        self.train("run", "train.epochs=4", saved)
        folder = self.train("run", "train.epochs=7", "exchange.ranks=4", saved, resume=True)
        self.assertEqual(len(records(folder)), 7)
        run = run_folder.read(str(folder))
        self.assertEqual((run.ranks, run.steps, run.is_cold), (4, 16, False))  # of the epochs 6 and 7
        total = sum(record["seconds"]["total"] for record in records(folder)[5:])
        self.assertAlmostEqual(run.seconds["total"], total / 16)
        # Resumed once more, and no epoch is finished since.
        environment = folder / "environment.json"
        environment.write_text(environment.read_text().replace('"ranks": 4', '"ranks": 2'))
        with self.assertRaisesRegex(CostModelError, "run: was resumed with 2 ranks, but no epoch is finished with so"):
            run_folder.read(str(folder))


class Steps(TrainedTest):
    """Runs that --steps has ended: the newest checkpoint has the sums of the epoch."""

    def stopped(self, name, steps, *sets):
        folder = self.root / name
        words = [word for item in sets for word in ("--set", item)]
        command = [LPSGD, "train", str(self.config), "--out", str(folder), "--steps", str(steps), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        return folder

    def sums(self, folder, name):
        manifest = json.loads((folder / "checkpoints" / name / "manifest.json").read_text())
        return manifest["epoch_so_far"]["seconds"]["mean"]

    def test_the_steps_of_an_epoch_that_did_not_end(self):
        folder = self.stopped("part", 12, "train.batch_size=16", "train.epochs=1")
        self.assertEqual((folder / "metrics.jsonl").read_text(), "")
        run = run_folder.read(str(folder))
        self.assertEqual((run.steps, run.is_cold, run.exchanges.steps), (12, True, 12))
        sums = self.sums(folder, "step-000012")
        for part in ("total", "forward", "backward", "encode", "exposed_comm"):
            self.assertAlmostEqual(run.seconds[part], sums[part] / 12)
        main = sum(run.seconds[part] for part in ("data", "forward", "backward", "exposed_comm", "update", "other"))
        self.assertAlmostEqual(main, run.step)
        found = self.predicted("--run", str(folder), "--set", "train.batch_size=16")
        said = f"{folder} (12 steps, the run's first among them)"
        self.assertEqual(found["computing"]["source"], said)
        self.assertEqual(found["computing"]["runs"], [{"run": str(folder), "steps": 12, "first_step": True}])
        self.assertEqual(found["coding"]["qsgd4"], "measured")

    def test_epochs_and_steps_after_them(self):
        """8 steps an epoch: the first one is left out where those after it are enough."""
        for steps, counted, is_cold in ((8, 8, True), (13, 13, True), (16, 8, False), (20, 12, False)):
            with self.subTest(steps=steps):
                run = run_folder.read(str(self.stopped(f"of_{steps}", steps, "train.epochs=9")))
                self.assertEqual((run.steps, run.is_cold), (counted, is_cold))
        lines = (self.root / "of_20" / "metrics.jsonl").read_text().splitlines()
        epochs = [json.loads(line)["seconds"] for line in lines]
        self.assertEqual(len(epochs), 2)
        both = epochs[1]["forward"] + self.sums(self.root / "of_20", "step-000020")["forward"]
        self.assertAlmostEqual(run.seconds["forward"], both / 12)

    def test_local_steps_of_a_part_of_an_epoch(self):
        sync = "{kind: local_sgd, steps: 3, warmup: constant, warmup_epochs: 1}"
        run = run_folder.read(str(self.stopped("local", 20, "train.epochs=9", f"sync={sync}")))
        self.assertEqual((run.exchanges.steps, run.exchanges.everywhere), (12, 4))

    def test_a_checkpoint_of_an_epoch_that_is_finished_by_now(self):
        folder = self.train("whole", "checkpoint.every_steps=6", "checkpoint.every_epochs=0", "checkpoint.keep=9")
        self.assertTrue((folder / "checkpoints" / "step-000012").exists())
        run = run_folder.read(str(folder))
        self.assertEqual((run.steps, run.is_cold), (8, False))

    def test_too_few_steps(self):
        least = run_folder.LEAST_STEPS
        for steps in (0, 1, 7):
            folder = self.stopped(f"few_{steps}", steps)
            with self.assertRaises(CostModelError) as caught:
                run_folder.read_enough(str(folder))
            if steps:
                counted = f"{steps} step{'s' if steps > 1 else ''}"
                expected = f"{folder}: {counted} measured, and a prediction needs {least} or more; train longer"
            else:
                expected = f"{folder}/metrics.jsonl: holds no finished epoch, and no checkpoint has the sums of steps"
            self.assertIn(expected, str(caught.exception))
        self.assertEqual(run_folder.read(str(folder)).steps, 7)

    def test_a_manifest_that_is_none(self):
        folder = self.stopped("bad", 8, "train.epochs=9", "train.batch_size=16")
        path = folder / "checkpoints" / "step-000008" / "manifest.json"
        manifest = json.loads(path.read_text())
        for change in ({"epoch_so_far": {}}, {"epoch_so_far": {"seconds": {"mean": {}}}}):
            path.write_text(json.dumps({**manifest, **change}))
            with self.assertRaisesRegex(CostModelError, f"^{path}: not a checkpoint's manifest with seconds"):
                run_folder.read(str(folder))
        manifest["epoch_so_far"]["seconds"]["mean"]["forward"] = "long"
        path.write_text(json.dumps(manifest))
        with self.assertRaisesRegex(CostModelError, f"^{path}: "):
            run_folder.read(str(folder))


class Measurements(unittest.TestCase):
    """docs/results/predicted-links: the file holds what the page's command reads, and no more."""

    def test_each_file_of_the_command_has_a_line(self):
        sys.path.insert(0, str(SOURCE / "bench" / "link"))
        import predict_check

        words = ["predict_check", "--out", "FOLDER"]
        with mock.patch.object(sys, "argv", words), mock.patch.object(predict_check, "measure") as measure:
            with mock.patch.object(predict_check, "report"), mock.patch.dict(os.environ):
                measure.return_value = ({}, {})
                self.assertEqual(predict_check.main(), 0)
        options = measure.call_args.args[0]
        linked, local = predict_check.rows_of(options)
        keys = [row.key for row in (*linked, *local.values())]
        expected = {f"{key}-{number}.json" for key in keys for number in range(options.rounds)}
        page = SOURCE / "docs" / "results" / "predicted-links"
        lines = (page / "measurements.jsonl").read_text().splitlines()
        self.assertEqual(sorted(json.loads(line)["file"] for line in lines), sorted(expected))


if __name__ == "__main__":
    unittest.main()
