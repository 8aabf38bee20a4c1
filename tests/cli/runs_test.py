"""A run's folder, checkpoints, resuming, and what must be equal."""

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import unittest

import numpy as np

from harness import LPSGD, Case, checkpoints, equal, load, model, run, save
from jobs import Job


def slice_of(process):
    """The scheduler's slice in nanoseconds, of Linux from 6.12 on."""
    attributes = ctypes.create_string_buffer(48)
    sched_getattr = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    assert ctypes.CDLL(None).syscall(sched_getattr, process, attributes, 48, 0) == 0
    return struct.unpack_from("IIQiIQ", attributes)[5]


class Threads(Case):
    def variable(self, **environment):
        """GOMP_SPINCOUNT of the process that trains."""
        without = {"GOMP_SPINCOUNT": "", "OMP_WAIT_POLICY": "", **environment}
        unset = [word for name, value in without.items() if not value for word in ("-u", name)]
        job = Job(self, ["env", *unset, LPSGD, "train", self.config, "--out", self.path("out" + "".join(environment)),
                         "--set", "train.epochs=100000", "--set", "train.threads=2"], **environment)
        job.wait_until(lambda: os.path.exists(self.path("out" + "".join(environment), "metrics.jsonl")))
        name = os.path.basename(LPSGD)  # beside it stands a helper of Open MPI's, which a process without mpirun starts
        ((pid, words),) = [(p, w) for p, w in job.processes().items() if w and os.path.basename(w[0]) == name]
        with open(f"/proc/{pid}/comm") as file:
            self.assertEqual(file.read(), name + "\n", "as it is called everywhere else")
        if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 12):
            self.assertEqual(slice_of(pid), 100_000)
        with open(f"/proc/{pid}/environ") as file:
            return dict(v.split("=", 1) for v in file.read().split("\0") if "=" in v).get("GOMP_SPINCOUNT")

    def test_threads_that_wait_soon_leave_their_core(self):
        self.assertEqual(self.variable(), "100")
        self.assertEqual(self.variable(GOMP_SPINCOUNT="7"), "7")
        self.assertEqual(self.variable(OMP_WAIT_POLICY="active"), None)


class Runs(Case):
    def test_the_folder_holds_what_it_should(self):
        folder = self.train("out")
        self.assertEqual(
            sorted(os.listdir(folder)), ["checkpoints", "config.yaml", "environment.json", "metrics.jsonl", "summary.json"]
        )
        self.assertEqual(checkpoints(folder), ["epoch-0001", "epoch-0002"])
        self.assertEqual(
            sorted(os.listdir(os.path.join(folder, "checkpoints", "epoch-0002"))),
            ["manifest.json", "model.safetensors", "state-rank0000.safetensors", "state-rank0001.safetensors"],
        )
        show = json.loads(run("show", self.config, "--json").out)
        records = self.metrics(folder)
        self.assertEqual([r["epoch"] for r in records], [1, 2])
        for r in records:
            s = r["seconds"]
            parts = ["data", "forward", "backward", "exposed_comm", "update", "eval", "other"]
            self.assertAlmostEqual(sum(s[p] for p in parts), s["total"], delta=0.02 * s["total"])
            self.assertGreaterEqual(s["other"], 0)
            for part in parts[:-1] + ["total", "encode", "transfer", "decode"]:
                self.assertLessEqual(r["seconds_min"][part], s[part] * (1 + 1e-12), part)
                self.assertGreaterEqual(r["seconds_max"][part], s[part] * (1 - 1e-12), part)
            self.assertAlmostEqual(
                r["communication_s"] + r["computation_s"], s["total"] - s["eval"] - s["other"], places=9
            )
            self.assertTrue(r["replicas_equal"])
            self.assertEqual(r["samples"], 96)
            self.assertEqual(r["bytes_sent"], 2 * 1 * show["wire_bytes"] * 4)
            self.assertEqual(r["bytes_fp32"], 2 * 1 * 4 * show["parameters"] * 4)
            for key in ("train_loss", "train_top1", "val_loss", "val_top1", "val_top5", "samples_per_s", "lr"):
                self.assertIsInstance(r[key], float, key)
        self.assertEqual([r["lr"] for r in records], [0.05, 0.05 * 0.1])
        with open(os.path.join(folder, "environment.json")) as file:
            environment = json.load(file)
        self.assertEqual(environment["ranks"], 2)
        for key in ("os", "cpu_info", "gcc_version", "is_debug_build", "mpi_version", "mpirun", "onednn_version", "git_hash"):
            self.assertIn(key, environment)

    def test_codec_error_on_request(self):
        """Per tensor: error over gradient, residual, bytes; and tables that travel are counted as `show` counts them."""
        codec = "exchange.codec={kind: qsgd, bits: 4, levels: optimal, bucket: 64, error_feedback: true}"
        folder = self.train("out", "--set", "metrics.codec_error=true", "--set", codec, "--set", "exchange.min_elements=200")
        two_ranks = ["--set", "exchange.transport=threads", "--set", "exchange.ranks=2"]
        shown = json.loads(run("show", self.config, "--json", "--set", codec, "--set", "exchange.min_elements=200", *two_ranks).out)
        one = run("show", self.config, "--set", codec).out
        self.assertIn("these are the bytes with 1 rank, as each rank's stripe of a tensor has a table of its levels", one)
        self.assertIn("these are the bytes with 2 ranks", run("show", self.config, "--set", codec, *two_ranks).out)
        self.assertNotIn("these are the bytes", run("show", self.config).out)
        self.assertEqual(shown["ranks"], 2)
        for r in self.metrics(folder):
            errors = r["codec_error"]
            self.assertEqual([t["name"] for t in shown["tensors"]], list(errors))
            self.assertEqual(sum(e["bytes"] for e in errors.values()), r["bytes_sent"])
            for t in shown["tensors"]:
                e = errors[t["name"]]
                self.assertEqual(e["bytes"], 2 * 1 * t["wire_bytes"] * 4)
                if t["codec"] == "none":
                    self.assertEqual((e["error"], e["residual"]), (0, 0))
                else:
                    self.assertTrue(0 < e["error"] < 1 and e["residual"] > 0, (t, e))
        for r in self.metrics(self.train("plain")):
            self.assertNotIn("codec_error", r)

    def test_codec_error_is_zero_where_nothing_is_lost(self):
        for name, ranks, collective in (("sum", 2, "allreduce"), ("alone", 1, "reduce_broadcast")):
            folder = self.train(name, "--set", "metrics.codec_error=true", "--set", f"exchange.collective={collective}", "--set",
                                "exchange.codec=none", ranks=ranks)
            for r in self.metrics(folder):
                self.assertEqual({(e["error"], e["residual"]) for e in r["codec_error"].values()}, {(0, 0)}, name)

    def test_the_resolved_configuration_gives_the_same_run(self):
        first = self.train("a", "--set", "train.seed=9")
        second = self.train("b", config=os.path.join(first, "config.yaml"))
        self.assertTrue(equal(model(first, "epoch-0002"), model(second, "epoch-0002")))

    def test_same_seed_same_bytes_and_seeds_differ(self):
        a, b = self.train("a"), self.train("b")
        self.assertTrue(equal(model(a, "epoch-0002"), model(b, "epoch-0002")))
        c = self.train("c", "--set", "train.seed=4")
        self.assertFalse(equal(model(a, "epoch-0002"), model(c, "epoch-0002")))

    def test_threads_and_mpi_give_the_same_bytes(self):
        for codec in ("{kind: none}", "{kind: qsgd, bits: 2}", "{kind: onebit, bucket: 64}", "{kind: onebit, bucket: column}"):
            name = "".join(c for c in codec if c.isalnum())
            for ranks in (1, 3):
                common = ["--set", f"exchange.codec={codec}", "--set", "train.epochs=1", "--set", "exchange.min_elements=8"]
                a = self.train(f"mpi-{name}-{ranks}", *common, ranks=ranks)
                b = self.train(f"threads-{name}-{ranks}", *common, "--set", "exchange.transport=threads", "--set",
                               f"exchange.ranks={ranks}", ranks=None)
                self.assertTrue(equal(model(a, "epoch-0001"), model(b, "epoch-0001")), (codec, ranks))

    def test_traces_nest_and_cover_the_steps(self):
        for overlap in ("true", "false"):
            folder = self.path("trace-" + overlap)
            self.train("out-" + overlap, "--steps", "5", "--trace", folder, "--set", f"exchange.overlap={overlap}", ranks=3)
            self.assertEqual(sorted(os.listdir(folder)), [f"rank000{r}.json" for r in range(3)])
            for rank in range(3):
                with open(os.path.join(folder, f"rank000{rank}.json")) as file:
                    text = file.read()
                self.assertIn(f'"rank": {rank},', text)
                tracks = {}
                for event in json.loads(text)["traceEvents"]:
                    if event["ph"] == "X":
                        tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
                names = [name for spans in tracks.values() for _, _, name in spans]
                self.assertEqual([n for n in names if n.startswith("ProfilerStep")], [f"ProfilerStep#{i}" for i in range(5)])
                for part in ("data", "forward", "backward", "update", "exposed communication"):
                    self.assertEqual(names.count(part), 5, part)
                for part in ("encode ", "reduce ", "decode ", "nccl:exchange "):
                    self.assertGreaterEqual(sum(n.startswith(part) for n in names), 5, part)
                for spans in tracks.values():  # on one track, what begins within a span ends within it
                    ends = []
                    for begin, end, name in sorted(spans):
                        while ends and ends[-1] <= begin + 0.002:
                            ends.pop()
                        self.assertTrue(not ends or end <= ends[-1] + 0.002, name)
                        ends.append(end)

    def test_overlap_changes_nothing_but_time(self):
        a = self.train("a", "--set", "train.epochs=1")
        b = self.train("b", "--set", "train.epochs=1", "--set", "exchange.overlap=false")
        self.assertTrue(equal(model(a, "epoch-0001"), model(b, "epoch-0001")))

    def test_resume_is_as_if_never_stopped(self):
        for codec in ("{kind: onebit, bucket: 64}", "{kind: qsgd, bits: 2, error_feedback: true}"):
            tag = codec[7:11]
            common = ["--set", f"exchange.codec={codec}", "--set", "exchange.min_elements=8"]
            whole = self.train(f"whole-{tag}", *common)
            parts = f"parts-{tag}"
            self.train(parts, *common, "--steps", "2")
            self.assertEqual(checkpoints(self.path(parts)), ["step-000002"])
            self.train(parts, *common, "--resume", "--steps", "4")  # ends exactly with the first epoch
            self.train(parts, *common, "--resume", "--steps", "5")
            self.train(parts, *common, "--resume")
            a, b = whole, self.path(parts)
            self.assertTrue(equal(model(a, "epoch-0002"), model(b, "epoch-0002")))
            for r in range(2):
                name = os.path.join("checkpoints", "epoch-0002", f"state-rank{r:04}.safetensors")
                self.assertTrue(equal(load(os.path.join(a, name)), load(os.path.join(b, name))))
            for x, y in zip(self.metrics(a), self.metrics(b), strict=True):
                for key in ("epoch", "step", "lr", "train_loss", "train_top1", "val_loss", "val_top1", "samples", "bytes_sent"):
                    self.assertEqual(x[key], y[key], key)

    def test_resume_with_other_ranks_warns_and_goes_on(self):
        common = ["--set", "exchange.codec={kind: onebit, bucket: 64}", "--set", "exchange.min_elements=8"]
        self.train("out", *common, "--steps", "4", ranks=2)
        old = [load(self.path("out", "checkpoints", "step-000004", f"state-rank000{r}.safetensors")) for r in range(2)]
        result = run("train", self.config, "--out", self.path("out"), "--resume", "--steps", "4", *common, ranks=3)
        self.assertEqual(result.status, 0, result)
        result = run("train", self.config, "--out", self.path("out"), "--resume", *common, ranks=3)
        self.assertEqual(result.status, 0, result)
        self.assertIn("was written by 2 ranks, this run has 3", result.err)
        self.assertTrue(any(name.startswith("residual1.") for name in old[0]))

    def test_resume_with_another_batch_size_trains_whole_epochs(self):
        folder = self.train("out", "--set", "train.epochs=1")
        for batch, epochs, steps in ((48, 2, 2), (12, 3, 8)):
            self.train("out", "--resume", "--set", f"train.batch_size={batch}", "--set", f"train.epochs={epochs}",
                       "--set", "schedule.decay={2: 0.1}")
            last = self.metrics(folder)[-1]
            self.assertEqual((last["epoch"], last["samples"]), (epochs, 96))
            self.assertEqual(last["step"], sum(m["samples"] // b for m, b in zip(self.metrics(folder), (24, 48, 12))))
        self.assertEqual([round(m["lr"], 9) for m in self.metrics(folder)], [0.05, 0.05, 0.005])

    def test_a_users_own_folder_is_no_checkpoint(self):
        folder = self.train("out", "--steps", "1")
        os.mkdir(os.path.join(folder, "checkpoints", "step-by-me"))
        shutil.copytree(os.path.join(folder, "checkpoints", "step-000001"),
                        os.path.join(folder, "checkpoints", "step-000001-mine"))
        self.train("out", "--resume", "--set", "checkpoint.keep=1")
        self.assertEqual(checkpoints(folder), ["epoch-0002", "step-000001-mine", "step-by-me"])

    def test_a_path_that_is_not_utf8(self):
        result = run("train", self.config, "--out", self.dir.encode() + b"/p\xff", "--steps", "0", ranks=2)
        self.assertEqual(result.status, 0, result)

    def test_the_model_has_pytorchs_order(self):
        names = list(model(self.train("out", "--steps", "0"), "step-000000"))
        self.assertEqual(names[:5], ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"])
        self.assertEqual(names[-2:], ["fc.weight", "fc.bias"])

    def test_resume_without_a_checkpoint_says_so(self):
        result = run("train", self.config, "--out", self.path("out"), "--resume", ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.out.splitlines()[0], f"{self.path('out')}: holds no checkpoint: starting from random weights")

    def test_steps_zero_writes_the_initial_weights(self):
        a = model(self.train("a", "--steps", "0", ranks=2), "step-000000")
        b = model(self.train("b", "--steps", "0", ranks=3), "step-000000")
        self.assertTrue(equal(a, b), "initial weights do not depend on K")
        self.assertEqual(a["conv1.weight"].shape, (8, 3, 3, 3))
        self.assertEqual(a["fc.weight"].shape, (10, 16))
        self.assertTrue(np.all(a["bn1.running_var"] == 1))

    def test_eval_gives_what_training_said(self):
        folder = self.train("out")
        last = self.metrics(folder)[-1]
        for where in (folder, os.path.join(folder, "checkpoints", "epoch-0002")):
            result = json.loads(run("eval", self.config, "--checkpoint", where, "--json").out)
            self.assertEqual(result["samples"], 50)
            self.assertEqual(result["val_top1"], last["val_top1"])
            self.assertAlmostEqual(result["val_loss"], last["val_loss"], places=5)

    def test_eval_refuses_weights_that_are_not_finite(self):
        weights = {k: v.copy() for k, v in model(self.train("out", "--steps", "0"), "step-000000").items()}
        weights["fc.weight"][3, 5] = np.nan
        os.mkdir(self.path("bad"))
        save(self.path("bad/model.safetensors"), weights)
        for option in ((), ("--json",)):
            result = run("eval", self.config, "--checkpoint", self.path("bad"), *option)
            self.assertEqual((result.status, result.out), (1, ""), result)
            self.assertIn("bad: the weights of 'fc.weight' hold a NaN or an infinity", result.err)

    def test_a_run_that_was_stopped_has_a_summary_that_says_so(self):
        folder = self.train("out", "--steps", "5")
        summary = lambda: json.loads(open(os.path.join(folder, "summary.json")).read())
        self.assertEqual((summary()["finished"], summary()["epochs"], summary()["step"]), (False, 1, 5))
        lines = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
        self.assertGreater(summary()["seconds"], lines[0]["seconds"]["total"])  # the fifth step counts, too
        self.assertGreater(summary()["samples_per_s"], 0)
        self.assertEqual(summary()["bytes_fp32"], lines[0]["bytes_fp32"] * 5 // 4)
        self.train("out", "--resume")
        self.assertEqual((summary()["finished"], summary()["epochs"], summary()["step"]), (True, 2, 8))

    def test_keep_removes_the_oldest(self):
        folder = self.train("out", "--set", "train.epochs=3", "--set", "checkpoint.keep=1")
        self.assertEqual(checkpoints(folder), ["epoch-0003"])

    def test_collectives(self):
        common = ["--set", "train.epochs=1", "--set", "exchange.codec={kind: none}"]
        a = self.train("a", *common, "--set", "exchange.collective=allreduce")
        b = self.train("b", *common)
        # With two ranks there is only one order of summation.
        self.assertTrue(equal(model(a, "epoch-0001"), model(b, "epoch-0001")))
        c = self.train("c", "--set", "exchange.collective=simulated", "--set", "train.epochs=1")
        record = self.metrics(c)[0]
        self.assertTrue(record["simulated"])
        self.assertIsNone(record["replicas_equal"])

    def test_version_and_show(self):
        version = json.loads(run("version", "--json").out)
        self.assertIn("onednn_version", version)
        self.assertEqual(run("version").status, 0)
        for network, parameters in (("resnet20", 272474), ("resnet110", 1730714)):
            shown = json.loads(run("show", os.path.join(os.environ["LPSGD_SOURCE"], "configs", "networks", network + ".yaml"),
                                   "--json").out)
            self.assertEqual(shown["parameters"], parameters)
            self.assertEqual(sum(t["elements"] for t in shown["tensors"]), parameters)
            self.assertEqual(sum(layer["parameters"] for layer in shown["layers"]), parameters)
            self.assertEqual(sum(layer["flops"] for layer in shown["layers"]), shown["flops"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
