"""Training on a GPU, from outside: agrees with the CPU, resumes bit for bit, several ranks share a GPU."""

import json
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips  # noqa: E402
from harness import A_HOST_EACH, Case, load, model, run

CUDA = ["--set", "train.device=cuda"]
# Branches that are measured first would leave few steps for the graph of the whole step.
FIXED = CUDA + ["--set", "train.deterministic=true", "--set", "train.branches=always"]


def but_on_rank_0(setting):
    """Words before a command that set an environment variable on all other ranks."""
    return ["sh", "-c", f'test ${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}} = 0 || export {setting}; exec "$0" "$@"']


def distance(a, b):
    return np.linalg.norm(a.astype("f8") - b) / max(np.linalg.norm(b.astype("f8")), 1e-30)


class OnTheGpu(Case):
    def close(self, a, b, limit):
        self.assertEqual(list(a), list(b))
        for name in a:
            self.assertLess(distance(a[name], b[name]), limit, name)

    def test_first_steps_are_the_cpus(self):
        plain = ["--set", "exchange.codec={kind: none}", "--set", "network.parameters.activation=tanh"]
        for steps in ("0", "3"):
            name = f"step-{int(steps):06}"
            cpu = model(self.train("cpu" + steps, *plain, "--steps", steps, ranks=1), name)
            gpu = model(self.train("gpu" + steps, *plain, *CUDA, "--steps", steps, ranks=1), name)
            self.close(gpu, cpu, 1e-6 if steps == "0" else 1e-4)

    def test_an_epochs_losses_are_the_cpus(self):
        plain = ["--set", "train.epochs=1", "--set", "exchange.codec={kind: none}"]
        cpu = self.metrics(self.train("cpu", *plain, ranks=1))[0]
        folder = self.train("gpu", *plain, *CUDA, ranks=1)
        gpu = self.metrics(folder)[0]
        for key in ("train_loss", "val_loss"):
            self.assertLess(abs(gpu[key] - cpu[key]), 0.02 * cpu[key], key)
        self.assertTrue(gpu["replicas_equal"])
        seconds = gpu["seconds"]
        for key in ("forward", "backward", "update"):
            self.assertGreater(seconds[key], 0, key)
        with open(os.path.join(folder, "environment.json")) as file:
            self.assertTrue(json.load(file)["devices"][0].startswith("cuda:0 ("))
        for device in ("cpu", "cuda"):
            result = run("eval", self.config, "--checkpoint", folder, "--json", "--set", f"train.device={device}")
            self.assertEqual(result.status, 0, result)
            self.assertLess(abs(json.loads(result.out)["val_loss"] - gpu["val_loss"]), 1e-3 * gpu["val_loss"])

    def test_resuming_changes_no_bit(self):
        whole = self.train("whole", *FIXED, "--steps", "6", ranks=1)
        parts = self.train("parts", *FIXED, "--steps", "2", ranks=1)
        self.train("parts", *FIXED, "--steps", "6", "--resume", ranks=1)
        for name, value in model(whole, "step-000006").items():
            self.assertTrue(np.array_equal(value, model(parts, "step-000006")[name]), name)

    def test_resuming_inside_a_local_phase_changes_no_bit(self):
        sync = ["--set", "sync={kind: block_momentum, steps: 5, nesterov: true}", "--set", "exchange.codec=onebit"]
        for transport in ("mpi", "nccl"):
            options = [*FIXED, *sync, "--set", f"exchange.transport={transport}"]
            for name, parts in (("whole", ["7"]), ("parts", ["3", "7"])):
                for steps in parts:
                    result = run("train", self.config, "--out", self.path(name + transport), *options, "--steps", steps, "--resume",
                                 ranks=2, wrap=A_HOST_EACH)
                    self.assertEqual(result.status, 0, result)
            whole, parts = self.path("whole" + transport), self.path("parts" + transport)
            # Each rank's weights, momentum and residuals; rank 0's also holds what they agreed on.
            for rank in (0, 1):
                state = f"checkpoints/step-000007/state-rank{rank:04}.safetensors"
                one, two = load(os.path.join(whole, state)), load(os.path.join(parts, state))
                self.assertEqual(set(one), set(two))
                for name, value in one.items():
                    self.assertTrue(np.array_equal(value, two[name]), (transport, rank, name))

    def test_frozen_layers_stay(self):
        plain = ["--set", "exchange.codec=none", "--set", "network.parameters.activation=tanh", "--set", "train.freeze=[conv1, bn1]"]
        start = model(self.train("start", *plain, "--steps", "0"), "step-000000")
        cpu = model(self.train("cpu", *plain, "--steps", "5"), "step-000005")
        gpu = model(self.train("gpu", *plain, *FIXED, "--steps", "5"), "step-000005")
        self.close(gpu, cpu, 1e-4)
        for name, value in gpu.items():
            self.assertEqual(np.array_equal(value, start[name]), name.startswith(("conv1.", "bn1.")), name)
        self.train("parts", *plain, *FIXED, "--steps", "2")
        parts = model(self.train("parts", *plain, *FIXED, "--steps", "5", "--resume"), "step-000005")
        for name, value in gpu.items():
            self.assertTrue(np.array_equal(value, parts[name]), name)

    def test_two_ranks_share_a_gpu(self):
        plain = ["--set", "train.epochs=1"]
        cpu = self.metrics(self.train("cpu", *plain, ranks=2))[0]
        gpu = self.metrics(self.train("gpu", *plain, *CUDA, ranks=2))[0]
        self.assertTrue(gpu["replicas_equal"])
        self.assertEqual(gpu["bytes_sent"], cpu["bytes_sent"])
        self.assertLess(abs(gpu["train_loss"] - cpu["train_loss"]), 0.05 * cpu["train_loss"])

    def test_traces_have_the_gpus_streams(self):
        steps = 5
        plain = self.train("plain", *FIXED, "--steps", str(steps), ranks=2)
        for transport in ("mpi", "nccl"):
            folder = self.path("trace-" + transport)
            out = self.train("out-" + transport, *FIXED, "--steps", str(steps), "--trace", folder, "--set", f"exchange.transport={transport}",
                             ranks=2, wrap=A_HOST_EACH)
            for name, value in model(plain, f"step-{steps:06}").items():
                self.assertTrue(np.array_equal(value, model(out, f"step-{steps:06}")[name]), name)
            for rank in range(2):
                with open(os.path.join(folder, f"rank000{rank}.json"), encoding="utf-8") as file:
                    events = json.load(file)["traceEvents"]
                names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
                tracks = {name: [] for name in names.values()}
                for event in events:
                    if event["ph"] == "X":
                        self.assertGreaterEqual(event["dur"], 0, event)
                        tracks[names[event["tid"]]].append(event)
                main = tracks["main thread"]
                self.assertEqual({e["cat"] for e in main}, {"cpu_op"})
                gpu = {name: spans for name, spans in tracks.items() if name.startswith("GPU: ")}
                copies = ["GPU: copies to the host", "GPU: copies from the host"] if transport == "mpi" else []
                self.assertEqual(sorted(gpu), sorted(["GPU: compute stream", "GPU: updates", "GPU: coding stream", *copies]))
                for name, spans in gpu.items():  # in the order of the stream, one after the other, after the first call
                    self.assertGreaterEqual(len(spans), steps, name)
                    self.assertEqual({e["cat"] for e in spans}, {"gpu_memcpy" if name in copies else "kernel"})
                    self.assertGreaterEqual(spans[0]["ts"], main[0]["ts"] - 100_000)
                    for before, after in zip(spans, spans[1:]):
                        self.assertGreaterEqual(after["ts"], before["ts"] + before["dur"] - 2, (name, before, after))
                kinds = [e["name"] for e in tracks["GPU: compute stream"]]
                for kind in ("forward conv1", "forward loss", "backward loss", "backward fc"):
                    self.assertEqual(kinds.count(kind), steps, kind)
                self.assertEqual([e["name"] for e in gpu["GPU: updates"]], steps * ["update"])
                self.assertIn("backward conv1", kinds)
                coding = [e["name"].split()[0] for e in tracks["GPU: coding stream"]]
                self.assertEqual({kind: coding.count(kind) >= steps for kind in set(coding)}, {"encode": True, "reduce": True, "decode": True})

    def test_local_steps_over_nccl_are_those_over_mpi(self):
        for sync in ("kind: local_sgd, steps: 2", "kind: post_local_sgd, steps: 2, from: 1, reset_momentum: true",
                     "kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 2",
                     "kind: block_momentum, steps: 2, nesterov: true"):
            options = [*FIXED, "--set", "train.epochs=4", "--set", "exchange.codec=onebit", "--set", f"sync={{{sync}}}",
                       "--check-replicas", "1"]
            out = sync.split()[1]
            nccl = ["--set", "exchange.transport=nccl"]
            ranks, logs, metrics = 4 if "hierarchical" in sync else 2, {}, {}
            for name, more, wrap in (("mpi", [], ()), ("nccl", nccl, A_HOST_EACH),
                                     ("plain", [*nccl, "--set", "train.cuda_graphs=false"], A_HOST_EACH)):
                folder = self.path(f"{name}-{out}")
                result = run("train", self.config, "--out", folder, *options, *more, ranks=ranks, wrap=wrap)
                self.assertEqual(result.status, 0, result)
                logs[name], metrics[name] = result.err, self.metrics(folder)
                for tensor, value in model(self.path("mpi-" + out), "epoch-0004").items():
                    self.assertTrue(np.array_equal(value, model(folder, "epoch-0004")[tensor]), (sync, name, tensor))
                self.assertTrue(all(r["replicas_equal"] for r in metrics[name]), (sync, name))
            for part, among in (("backward and update of local steps", ("mpi", "nccl")), ("synchronisations of all ranks", ("nccl",)),
                                ("synchronisations within blocks", ("nccl",) if "hierarchical" in sync else ())):
                for name, log in logs.items():
                    self.assertEqual(log.count(f"{part} are one CUDA graph"), int(name in among), (sync, name, part, log))
            for mine, plain in zip(metrics["nccl"], metrics["plain"], strict=True):
                for key in ("train_loss", "val_loss", "bytes_sent", "bytes_average", "synchronisations", "replica_distance"):
                    self.assertEqual(mine[key], plain[key], (sync, key))
                seconds = mine["seconds"]
                for key in ("forward", "backward", "encode", "decode", "update"):
                    self.assertGreater(seconds[key], 0, (sync, key, mine))
                self.assertLess(mine["communication_s"], seconds["exposed_comm"], ("coding is not communication", sync, mine))

    def test_fragments_on_their_way_over_nccl_are_those_over_mpi(self):
        """And local steps are graphs all the same."""
        nccl = ["--set", "exchange.transport=nccl"]
        for codec in ("onebit", "{kind: qsgd, bits: 4}"):
            options = [*FIXED, "--set", "train.epochs=4", "--set", f"exchange.codec={codec}", "--set", "metrics.codec_error=true",
                       "--set", "sync={kind: block_momentum, steps: 4, fragments: 2, delay: 1, nesterov: true}"]
            records = {}
            for name, more, wrap in (("mpi", [], ()), ("nccl", nccl, A_HOST_EACH),
                                     ("plain", [*nccl, "--set", "train.cuda_graphs=false"], A_HOST_EACH)):
                folder = self.path(f"{name}-{codec[:6]}")
                result = run("train", self.config, "--out", folder, *options, *more, ranks=2, wrap=wrap)
                self.assertEqual(result.status, 0, result)
                self.assertEqual(result.err.count("backward and update of local steps are one CUDA graph"), int(name != "plain"))
                records[name] = self.metrics(folder)
                self.assertTrue(all(r["replicas_equal"] for r in records[name]))
                for tensor, value in model(self.path("mpi-" + codec[:6]), "epoch-0004").items():
                    self.assertTrue(np.array_equal(value, model(folder, "epoch-0004")[tensor]), (codec, name, tensor))
                for mine, mpi in zip(records[name], records["mpi"], strict=True):
                    for key in ("train_loss", "val_loss", "bytes_sent", "synchronisations", "replica_distance"):
                        self.assertEqual(mine[key], mpi[key], (codec, name, key))

    def test_nccl_trains_what_mpi_trains(self):
        for codec in ("qsgd, bits: 4, bucket: 64", "onebit", "topk", "none"):
            options = [*FIXED, "--steps", "8", "--set", f"exchange.codec={{kind: {codec}}}"]
            for ranks in (2, 3):
                out = f"{codec[:4]}-{ranks}"
                mpi = self.train("mpi-" + out, *options, ranks=ranks)
                nccl = self.train("nccl-" + out, *options, "--set", "exchange.transport=nccl", ranks=ranks, wrap=A_HOST_EACH)
                for name, value in model(mpi, "step-000008").items():
                    self.assertTrue(np.array_equal(value, model(nccl, "step-000008")[name]), (codec, ranks, name))

    def test_steps_are_launched_as_graphs_over_nccl(self):
        options = [*FIXED, "--set", "exchange.transport=nccl", "--set", "metrics.codec_error=true", "--set", "train.epochs=4",
                   "--set", "exchange.codec={kind: qsgd, bits: 4, bucket: 64, error_feedback: true}",
                   "--set", "optimizer.momentum_unit_gain=true", "--set", "schedule.momentum={2: 0.5, 3: 0.95}"]
        one_graph = "backward, exchange and update are one CUDA graph"
        for ranks in (1, 2):
            epochs = {}
            for name, more in (("graph", []), ("plain", ["--set", "train.cuda_graphs=false"]), ("late", ["--set", "exchange.overlap=false"])):
                folder = self.path(f"{name}{ranks}")
                result = run("train", self.config, "--out", folder, *options, *more, ranks=ranks, wrap=A_HOST_EACH)
                self.assertEqual(result.status, 0, result)
                self.assertEqual(result.err.count(one_graph), int(name != "plain"), result)
                epochs[name] = self.metrics(folder)
            parts = self.path(f"parts{ranks}")
            for steps in (["--steps", "5"], ["--resume"]):  # both end with launched steps
                result = run("train", self.config, "--out", parts, *options, *steps, ranks=ranks, wrap=A_HOST_EACH)
                self.assertEqual(result.err.count(one_graph), 1, result)
            last = sorted(os.listdir(os.path.join(parts, "checkpoints")))[-1]
            for other in ("plain", "late", "parts"):
                for name, value in model(self.path(f"graph{ranks}"), last).items():
                    self.assertTrue(np.array_equal(value, model(self.path(f"{other}{ranks}"), last)[name]), (other, ranks, name))
            for mine, plain in zip(epochs["graph"], epochs["plain"]):
                for key in ("train_loss", "val_loss", "train_top1", "bytes_sent", "replicas_equal"):
                    self.assertEqual(mine[key], plain[key], key)
                for tensor, coding in plain["codec_error"].items():
                    for key, value in coding.items():
                        self.assertAlmostEqual(mine["codec_error"][tensor][key], value, delta=1e-9 * value)
                for key in ("forward", "backward", "encode", "decode", "update"):
                    self.assertGreater(mine["seconds"][key], 0, (key, mine))
                parts_of_it = sum(mine["seconds"][k] for k in ("data", "forward", "backward", "exposed_comm", "update", "eval"))
                self.assertLess(parts_of_it, 1.01 * mine["seconds"]["total"], mine)

    def test_the_graph_of_a_step_follows_the_measured_branches(self):
        """And the bits are those of a run without branches."""
        models = {}
        for branches, more in (("never", []), ("measured", ["--set", "exchange.transport=nccl"])):
            folder = self.path(branches)
            result = run("train", self.config, "--out", folder, *FIXED, "--set", "train.epochs=40", "--steps", "16", *more,
                         "--set", f"train.branches={branches}", ranks=2, wrap=A_HOST_EACH)
            self.assertEqual(result.status, 0, result)
            models[branches] = model(folder, "step-000016")
            with open(os.path.join(folder, "summary.json")) as file:
                times = json.load(file).get("branches", [])
            if branches == "never":
                self.assertEqual(times, [])
                continue
            self.assertIn("from step 12 on, backward, exchange and update are one CUDA graph", result.err)
            self.assertTrue(times)
            for time in times:
                self.assertRegex(time, r"^(backward|a part of backward): [\d.]+ ms, on branches [\d.]+ ms$")
        for name, value in models["never"].items():
            self.assertTrue(np.array_equal(value, models["measured"][name]), name)

    def test_ranks_that_capture_differently_are_refused(self):
        one_without = ["sh", "-c", 'export NCCL_HOSTID=rank${PMI_RANK:-$OMPI_COMM_WORLD_RANK} NCCL_SOCKET_IFNAME=lo;'
                                   'test $NCCL_HOSTID = rank0 || exec "$0" "$@" --set train.cuda_graphs=false; exec "$0" "$@"']
        result = run("train", self.config, "--out", self.path("out"), *FIXED, "--set", "exchange.transport=nccl", ranks=2, wrap=one_without,
                     timeout=150)
        self.assertEqual(result.status, 2, result)
        self.assertIn("the ranks disagree on train.cuda_graphs", result.err)

    def test_a_nan_in_a_launched_step_ends_the_run(self):
        options = [*FIXED, "--set", "exchange.transport=nccl", "--set", "train.epochs=5", "--set", "schedule.decay={3: 1.0e+38}"]
        result = run("train", self.config, "--out", self.path("out"), *options, ranks=2, wrap=A_HOST_EACH, timeout=150)
        self.assertEqual(result.status, 1, result)
        self.assertEqual(result.err.count("holds a NaN or an infinity; the last checkpoint is"), 1, result)
        self.assertIn("epoch-0003", os.listdir(self.path(os.path.join("out", "checkpoints"))))

    def test_nccl_needs_a_gpu_for_each_rank(self):
        result = run("train", self.config, "--out", self.path("out"), *CUDA, "--set", "exchange.transport=nccl", ranks=GPUS + 1)
        self.assertEqual(result.status, 1, result)
        self.assertEqual(result.err.count("share one GPU"), 1, result)

    def test_a_rank_without_free_memory_ends_the_run(self):
        if not EMULATED:
            self.skipTest("needs the emulated GPU, whose memory can be chosen")
        for room in ("100000", "4200000"):  # less than the first array; not enough for the second
            result = run("train", self.config, "--out", self.path("out" + room), *CUDA, ranks=3, timeout=150,
                         wrap=but_on_rank_0(f"LPSGD_EMULATED_MEMORY={room}"))
            self.assertEqual(result.status, 1, result)
            self.assertRegex(result.err, r"rank 1: .*no room for \d+ bytes of device memory")

    def test_without_a_device_nothing_starts(self):
        if not EMULATED:
            self.skipTest("needs the emulated GPU, of which there are as many as is chosen")
        result = run("train", self.config, "--out", self.path("none"), *CUDA, env={"LPSGD_EMULATED_GPUS": "0"})
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err.count("the NVIDIA driver shows no device"), 1, result)
        self.assertFalse(os.path.exists(self.path("none")))

    def doctor(self, *arguments, status=0, **options):
        result = run("doctor", "--json", *arguments, **options)
        self.assertEqual(result.status, status, result)
        return {check["name"]: check for check in json.loads(result.out)["checks"]}

    def test_doctor(self):
        checks = self.doctor()
        self.assertEqual(checks["gpu.driver"]["status"], "ok", checks["gpu.driver"])
        for i in range(checks["gpu.driver"]["devices"]):
            gpu = checks[f"gpu.{i}"]
            self.assertIn(gpu["status"], ("ok", "warning"), gpu)  # other programs may use it
            self.assertTrue(gpu["computes_as_cpu"] and gpu["has_code"], gpu)
            self.assertTrue(0 < gpu["free_bytes"] <= gpu["memory_bytes"], gpu)
            self.assertGreater(gpu["bytes_per_s"], 0, gpu)
        self.assertRegex(checks["gpu.libraries"]["cudnn"], r"^9\.")

    def test_doctor_over_ranks(self):
        gpus = self.doctor()["gpu.driver"]["devices"]
        checks = self.doctor("--ranks-only", ranks=gpus + 1)
        self.assertEqual(checks["ranks.devices"]["status"], "warning", checks["ranks.devices"])
        self.assertIn("the same GPU", checks["ranks.devices"]["found"])
        self.assertEqual(checks["ranks.nccl"]["status"], "absent", checks["ranks.nccl"])
        check = self.doctor("--ranks-only", ranks=2, wrap=A_HOST_EACH)["ranks.nccl"]
        self.assertEqual((check["status"], check["sum_equal"]), ("ok", True), check)

    def test_doctor_says_why_nccl_fails(self):
        if not EMULATED:
            self.skipTest("needs the emulated GPU, whose NCCL can be made to fail")
        for call, found in (("ncclCommInitRankConfig", "does not connect the ranks"),
                            ("ncclAllReduce", "connects the ranks, but cannot add their values")):
            wrap = [*A_HOST_EACH, *but_on_rank_0(f"LPSGD_EMULATED_NCCL_FAILURE={call}")]
            check = self.doctor("--ranks-only", ranks=2, wrap=wrap, status=1, timeout=50)["ranks.nccl"]
            self.assertEqual(check["status"], "error", check)
            self.assertRegex(check["found"], f"^NCCL {found}: .*rank 1: NCCL: {call}: ")
            self.assertNotIn("\n", check["found"])

    def test_doctor_finds_a_gpu_without_memory(self):
        if not EMULATED:
            self.skipTest("needs the emulated GPU, whose memory can be chosen")
        check = self.doctor(status=1, env={"LPSGD_EMULATED_MEMORY": "1000000"})["gpu.0"]
        self.assertEqual(check["status"], "error", check)
        self.assertIn("no room for", check["found"])

    def test_bench_exchange(self):
        sizes = ["--min", "4004", "--max", "400400" if EMULATED else "40040000", "--factor", "100"]
        for collective, ranks, transport in (("reduce_broadcast", None, None), ("reduce_broadcast", 2, "mpi"), ("allreduce", 2, "mpi"),
                                             ("simulated", 2, "mpi"), ("reduce_broadcast", 2, "nccl"), ("allreduce", 2, "nccl")):
            over = ["--transport", transport] if transport else []
            result = run("bench", "exchange", "--json", "--device", "cuda", "--repeats", "2", "--collective", collective, *sizes, *over,
                         ranks=ranks, wrap=A_HOST_EACH if ranks else ())
            self.assertEqual(result.status, 0, result)
            of_a_gpu = -(-(ranks or 2) // GPUS)
            for row in json.loads(result.out):
                self.assertEqual((row["wrong"], row["device"]), (0, "cuda:0"), row)
                self.assertEqual((row["ranks_per_gpu"], "times_mean_nothing" in row), (of_a_gpu, of_a_gpu > 1), row)
                self.assertEqual("nccl_allreduce" in row, transport == "nccl", row)
                if transport == "nccl":
                    plain = row["nccl_allreduce"]
                    self.assertEqual(plain["wrong"], 0, row)
                    self.assertGreater(plain["bus_bandwidth"], 0, row)

    def test_bench_exchange_prints_ncclallreduce_and_marks_shared_gpus(self):
        result = run("bench", "exchange", "--transport", "nccl", "--codec", "fp16", "--codec", "none", "--min", "4096", "--max", "4096",
                     "--repeats", "1", ranks=2, wrap=A_HOST_EACH)
        self.assertEqual(result.status, 0, result)
        lines = result.out.splitlines()
        self.assertEqual(lines[0].split()[-3:], ["ncclAllReduce", "busbw", "codec"], result)
        self.assertEqual([line.endswith(" *") for line in lines[2:4]], 2 * [GPUS == 1], result)
        self.assertEqual("*: 2 ranks share one GPU, so times and bandwidths mean nothing" in lines, GPUS == 1, result)

    def test_bench_layers(self):
        path = self.path("net.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("input: [8, 8, 3]\nclasses: 10\nlayers:\n  - {conv: c1, filters: 8, kernel: 3}\n  - relu\n"
                       "  - flatten\n  - {dense: f1, units: 10}\n")
        sizes = ["--copied", "100000", "--side", "32"] if EMULATED else []
        result = run("bench", "layers", path, "--device", "cuda", "--batch", "4", "--repeats", "2", "--json", *sizes)
        self.assertEqual(result.status, 0, result)
        rows = json.loads(result.out)
        self.assertEqual([r["kind"] for r in rows if r["pass"] == "forward"], ["conv", "flatten", "dense"])
        for r in rows:
            self.assertGreater(r["seconds"], 0, r)
            self.assertGreater(r["fraction_of_roofline"], 0, r)

    def test_predict_knows_that_a_run_took_the_gpu(self):
        auto = ["--set", "train.device=auto"]
        folder = self.train("auto", *auto, "--set", "train.epochs=3", "--set", "exchange.codec={kind: none}", ranks=2)
        more = ["--run", folder, "--codecs", "none", "--ranks", "2,4", "--link", "1Gbit,50us", "--json"]
        result = run("predict", self.config, *auto, *more)
        if "has no module" in result.err:
            self.skipTest(result.err)
        self.assertEqual(result.status, 0, result)
        found = json.loads(result.out)
        self.assertEqual((found["computing"]["device"], found["coding"]), ("cuda", {"none": "measured"}))
        result = run("predict", self.config, *more)
        self.assertEqual((result.status, result.out), (2, ""), result)
        self.assertIn("a run on cuda, not on cpu as the configuration says", result.err)

    def test_bf16_and_tf32_train(self):
        for compute in ("tf32", "bf16"):
            result = run("train", self.config, "--out", self.path(compute), *CUDA, "--set", f"train.compute={compute}")
            if "needs a GPU of compute capability" in result.err:
                continue
            self.assertEqual(result.status, 0, result)
            losses = [line["train_loss"] for line in self.metrics(self.path(compute))]
            self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    version = json.loads(run("version", "--json").out)
    if not version["is_cuda_available"]:
        print("skipped: needs a GPU:", version["cuda_unavailable_because"])
        sys.exit(77)
    GPUS = len(version["nvidia_gpu_models"])
    EMULATED = version["cuda_compiled_version"] == "emulated"
    skips.main()
