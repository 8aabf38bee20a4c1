"""`lpsgd bench exchange`: its rows, its check of values, its arithmetic; `lpsgd bench loader` and `lpsgd bench layers`: their rows."""

import json
import os
import tempfile
import unittest

from harness import Case, run

# Every kind of codec, also with tables, residuals, votes, and one bucket for the whole tensor.
CODECS = ["none", "fp16", "bf16", "{kind: qsgd, bits: 2, bucket: 128}", "{kind: qsgd, bits: 4, levels: optimal}",
          "{kind: qsgd, bits: 8, levels: exponential, error_feedback: true}", "{kind: qsgd, bits: 4, bucket: tensor}",
          "{kind: onebit, bucket: 64}", "{kind: sign, majority: true, bucket: 64}", "sign", "{kind: topk, density: 0.01}",
          "dynamic8", "mx"]


class BenchExchange(Case):
    def bench(self, *arguments, wire_delta=0, **options):
        result = run("bench", "exchange", "--json", "--repeats", "2", *arguments, **options)
        self.assertEqual(result.status, 0, result)
        rows = json.loads(result.out)
        for r in rows:
            self.assertEqual(r["wrong"], 0, r)
            self.assertEqual(r["size"], 4 * r["elements"])
            self.assertAlmostEqual(r["algorithm_bandwidth"] * r["seconds"], r["size"], delta=1e-6 * r["size"])
            factor = 2 * (r["ranks"] - 1) / r["ranks"]
            self.assertAlmostEqual(r["bus_bandwidth"], factor * r["algorithm_bandwidth"], delta=1e-6 * r["bus_bandwidth"])
            self.assertGreater(r["memcpy_seconds"], 0)
            self.assertAlmostEqual(r["wire_bytes"] * r["ratio"], 2 * (r["ranks"] - 1) * r["size"],
                                   delta=2e-9 * r["size"] + wire_delta * r["ratio"])
        return rows

    def test_every_codec_over_threads(self):
        codecs = [a for codec in CODECS for a in ("--codec", codec)]
        rows = self.bench(*codecs, "--ranks", "1,2,5", "--min", "4004", "--max", "40040", "--factor", "10")
        self.assertEqual([(r["ranks"], r["size"]) for r in rows], [(k, s) for k in (1, 2, 5) for _ in CODECS for s in (4004, 40040)])
        self.assertEqual({r["transport"] for r in rows}, {"threads"})
        qsgd = [r for r in rows if "bits: 2" in r["codec"] and r["ranks"] == 5 and r["elements"] == 1001]
        # Eight buckets: 4 bytes of scale and 2 bits a value each, the last one of 105 values in whole words.
        self.assertEqual([r["wire_bytes"] for r in qsgd], [2 * 4 * (8 * 4 + 7 * 32 + 28)])
        self.assertEqual([r["messages"] for r in qsgd], [2 * 4 * 5])

    def test_over_mpi_and_over_a_link(self):
        arguments = ["--codec", "none", "--codec", "{kind: qsgd, bits: 4}", "--min", "64K", "--max", "64K"]
        over_mpi = self.bench(*arguments, ranks=3)
        self.assertEqual([(r["transport"], r["ranks"]) for r in over_mpi], [("mpi", 3)] * 2)
        threads = self.bench(*arguments, "--ranks", "3", "--link", "{bandwidth: 100Mbit, latency: 1ms}")
        for a, b in zip(over_mpi, threads, strict=True):
            for key in ("codec", "elements", "wire_bytes", "messages", "ratio"):
                self.assertEqual(a[key], b[key], key)
            self.assertEqual(b["link"], "100Mbit, 1ms")
            self.assertGreater(b["seconds"], 0.002)  # two rounds, a millisecond each way

    def test_other_collectives(self):
        sizes = ["--min", "4004", "--max", "400400", "--factor", "100"]
        for options in ({}, {"ranks": 3}):
            ranks = [] if options else ["--ranks", "3"]
            rows = self.bench("--collective", "allreduce", *sizes, *ranks, **options)
            self.assertEqual([(r["codec"], r["collective"], r["device"]) for r in rows], [("{kind: none}", "allreduce", "cpu")] * 2)
            self.assertEqual([r["wire_bytes"] for r in rows], [2 * 2 * 4004, 2 * 2 * 400400])
        codecs = [a for codec in CODECS for a in ("--codec", codec)]
        rows = self.bench("--collective", "simulated", *codecs, *sizes, "--ranks", "3", wire_delta=16)
        self.assertEqual(len(rows), 2 * len(CODECS))

    def test_the_table(self):
        result = run("bench", "exchange", "--codec", "none", "--min", "1M", "--max", "1M", "--repeats", "1")
        self.assertEqual(result.status, 0, result)
        header, units, row, note = result.out.splitlines()
        self.assertEqual(header.split(), ["size", "count", "type", "over", "ranks", "time", "algbw", "busbw", "#wrong", "messages",
                                          "wire", "ratio", "memcpy", "codec"])
        self.assertEqual(row.split()[:5], ["1048576", "262144", "float", "threads", "2"])

    def test_what_is_refused(self):
        for arguments, ranks, expected in [
            (["--ranks", "2"], 2, "--ranks: is for transport threads"),
            (["--transport", "threads"], 2, "start it without mpirun"),
            (["--codec", "{kind: nope}"], 3, "'nope' is not known"),
            (["--min", "1M", "--max", "4K"], None, "--max: 4096 is less than --min 1048576"),
            (["--link", "{bandwidth: fast}"], None, "expected a number and a unit"),
            (["--collective", "allreduce", "--codec", "fp16"], 2, "allreduce sums float32 and takes codec none only"),
        ]:
            result = run("bench", "exchange", *arguments, ranks=ranks)
            self.assertEqual(result.status, 2, result)
            self.assertEqual(result.err.count(expected), 1, result)


class BenchLoader(Case):
    def test_its_rows(self):
        result = run("bench", "loader", "--json", "--repeats", "1", "--images", "4", "--workers", "1,2")
        self.assertEqual(result.status, 0, result)
        rows = json.loads(result.out)
        against_opencv = [r for r in rows if "ratio_to_opencv" in r]
        self.assertEqual([r["name"].split(",")[0] for r in against_opencv],
                         ["cv::imdecode + cv::resize", "files", "files", "files", "files", "packed JPEG", "packed pixels"])
        for r in rows:
            self.assertGreater(r["memcpy_seconds"], 0)
            self.assertEqual(r["bytes_moved"], 2 * r["elements"])
            self.assertAlmostEqual(r["images_per_s"] * r["seconds"], r["images"], delta=1e-6 * r["images"])
        for r in against_opencv:
            self.assertEqual(r["images"], 4)
            self.assertAlmostEqual(r["ratio_to_opencv"], r["opencv_seconds"] / r["seconds"], delta=1e-6 * r["ratio_to_opencv"])
        self.assertEqual([r["workers"] for r in rows if "ratio_to_processes" in r], [1, 2])
        batch = rows[-1]
        self.assertEqual(batch["bytes_moved"], 2 * 128 * 32 * 32 * 3)
        self.assertGreater(batch["memcpy_seconds"], 0)

    def test_the_table(self):
        result = run("bench", "loader", "--repeats", "1", "--images", "2", "--workers", "0")
        self.assertEqual(result.status, 0, result)
        self.assertEqual(len(result.out.splitlines()), 10)

    def test_folders_without_images_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run("bench", "loader", "--data", folder)
            self.assertEqual(result.status, 1, result)
            self.assertIn(folder, result.err)


class BenchLayers(Case):
    NETWORK = """input: [8, 8, 4]
classes: 10
layers:
  - {conv: c1, filters: 16, kernel: 3, pad: 1, bias: false}
  - {batch_norm: b1}
  - relu
  - {max_pool: p1, kernel: 2}
  - flatten
  - {dense: f1, units: 10}
"""

    def bench(self, *arguments, network=NETWORK):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(network)
            return run("bench", "layers", path, "--batch", "16", *(arguments if "--repeats" in arguments else
                       ["--repeats", "3", "--copied", "1000000", "--side", "64", *arguments]))

    def check(self, *arguments, operand=4):
        result = self.bench("--json", *arguments)
        self.assertEqual(result.status, 0, result)
        rows = json.loads(result.out)
        for r in rows:
            self.assertGreater(r["seconds"], 0, r)
            self.assertGreater(r["bytes_moved"], 0, r)
            least = max(r["bytes_moved"] / r["memcpy_bytes_per_s"], r["flops"] / r["product_flops_per_s"])
            self.assertAlmostEqual(r["fraction_of_roofline"] * r["seconds"], least, delta=1e-6 * least)
            self.assertEqual(r["bound"], "memory" if r["memcpy_seconds"] >= r["product_seconds"] else "arithmetic")
        by_name = {r["name"]: r for r in rows}
        self.assertEqual({r["kind"] for r in rows}, {"conv", "batch_norm", "max_pool", "flatten", "dense"})
        conv, inputs, outputs, weights = by_name["c1 forward"], 16 * 8 * 8 * 4, 16 * 8 * 8 * 16, 16 * 3 * 3 * 4
        self.assertEqual(conv["flops"], 2 * outputs * 3 * 3 * 4)
        self.assertEqual(conv["bytes_moved"], operand * (inputs + outputs + weights))
        # The first layer has no gradient of its input: the weights' alone, as float32.
        back = by_name["c1 backward"]
        self.assertEqual(back["flops"], conv["flops"])
        self.assertEqual(back["bytes_moved"], operand * (inputs + outputs) + 4 * weights)
        pooled = outputs // 4  # and two bytes each for the place of the maximum
        self.assertEqual(by_name["p1 forward"]["bytes_moved"], operand * (outputs + pooled) + 2 * pooled)
        self.assertEqual(by_name["p1 backward"]["bytes_moved"], operand * (outputs + pooled) + 2 * pooled)
        dense = by_name["f1 backward"]
        self.assertEqual(dense["flops"], 2 * by_name["f1 forward"]["flops"])
        return rows

    def test_its_rows(self):
        self.check()

    def test_its_rows_in_bfloat16(self):
        result = self.bench("--json", "--compute", "bf16")
        if "bf16 needs a processor with" in result.err:
            self.assertEqual(result.status, 2, result)
            self.skipTest("this processor has no bfloat16")
        self.check("--compute", "bf16", operand=2)

    def rows_of(self, network, *arguments):
        result = self.bench("--json", *arguments, network=network)
        self.assertEqual(result.status, 0, result)
        return {r["name"]: r for r in json.loads(result.out)}

    def test_a_batch_norm_that_runs_its_convolution_has_its_cost(self):
        network = ("input: [32, 32, 64]\nclasses: 10\nlayers:\n  - {conv: c0, filters: 64, kernel: 1, bias: false}\n  - {batch_norm: b0}\n"
                   "  - {conv: c1, filters: 128, kernel: 1, bias: false}\n  - {batch_norm: b1}\n  - relu\n"
                   "  - {average_pool: p1}\n  - flatten\n  - {dense: f1, units: 10}\n")
        rows = self.rows_of(network)
        self.assertNotIn("c1 backward", rows)
        pixels, small, large, weights = 16 * 32 * 32, 64, 128, 64 * 128
        norm = rows["b1+relu backward"]
        self.assertEqual(norm["flops"], 2 * rows["c1 forward"]["flops"] + 2 * rows["b1+relu forward"]["flops"])
        # Gradient and input of the norm (the ReLU's mask comes from it), its parameters twice; input and its gradient of the convolution, weights twice.
        self.assertEqual(norm["bytes_moved"], 4 * (2 * pixels * large + 2 * 2 * large + 2 * pixels * small + 2 * weights))

    def test_no_fraction_is_beyond_reason(self):
        rows = self.rows_of(self.NETWORK.replace("[8, 8, 4]", "[64, 64, 4]"), "--copied", "30000000", "--side", "256", "--repeats", "9")
        for r in rows.values():
            self.assertLess(r["fraction_of_roofline"], 3, r)

    def test_an_embedding_reads_the_rows_it_looks_up(self):
        network = ("input: [5]\nclasses: 1000\nlayers:\n  - {embedding: e, vocabulary: 1000, dimension: 8}\n"
                   "  - {lstm: l, cell: 8}\n  - {dense: f, units: 1000}\n")
        self.assertEqual(self.rows_of(network)["e forward"]["bytes_moved"], 4 * 16 * 5 * (1 + 2 * 8))

    def test_a_dropout_moves_no_mask(self):
        """On a CPU: backward draws again what forward has drawn."""
        rows = self.rows_of("input: [7]\nclasses: 10\nlayers: [{dense: d, units: 12}, {dropout: e}, {dense: f, units: 10}]\n")
        self.assertEqual(rows["e forward"]["bytes_moved"], 4 * 16 * (12 + 12))
        self.assertEqual(rows["e backward"]["bytes_moved"], 4 * 16 * (12 + 12))

    def test_a_sum_of_gradients_is_counted(self):
        network = ("input: [4, 4, 4]\nclasses: 10\nlayers:\n  - {conv: c0, filters: 4, kernel: 1}\n  - {relu: r}\n"
                   "  - {conv: c1, filters: 4, kernel: 1}\n  - {conv: c2, filters: 4, kernel: 1, input: r}\n  - {add: a, input: [c1, c2]}\n"
                   "  - flatten\n  - {dense: f1, units: 10}\n")
        row = self.rows_of(network)["c0+r backward"]
        value = 16 * 4 * 4 * 4  # two terms, their sum twice, the output's mask and the input
        self.assertEqual(row["bytes_moved"], 4 * (6 * value + 4 * 4 + 4))

    def test_the_table(self):
        result = self.bench()
        self.assertEqual(result.status, 0, result)
        lines = result.out.splitlines()
        self.assertEqual(lines[0].split(), ["operation", "pass", "us", "MB", "MFLOP", "least", "us", "fraction", "bound"])
        self.assertEqual(lines[1].split()[:2], ["c1", "forward"])
        self.assertIn("roofline of this run", lines[-1])

    def test_what_is_refused(self):
        self.assertEqual(run("bench", "layers", "nowhere.yaml").status, 2)
        self.assertEqual(run("bench", "layers", "--batch", "0").status, 2)

    def test_a_configuration_and_no_network(self):
        config = self.write("run.yaml", "network: net.yaml\ndata: {dataset: shapes}\n")
        self.write("net.yaml", self.NETWORK)
        rows = json.loads(run("bench", "layers", config, "--json", "--batch", "4", "--repeats", "1").out)
        self.assertEqual([(r["operation"], r["pass"], r["elements"]) for r in rows][0], ("c1", "forward", 4 * 8 * 8 * 16))
        rows = json.loads(run("bench", "layers", "--json", "--batch", "4", "--repeats", "1").out)
        self.assertEqual({r["network"] for r in rows}, {"resnet20"})

    def test_overrides_and_steps_to_warm_up(self):
        config = self.write("run.yaml", "network: net.yaml\ndata: {dataset: shapes}\n")
        self.write("net.yaml", self.NETWORK)
        words = ("bench", "layers", config, "--json", "--batch", "4", "--repeats", "1", "--copied", "1000", "--side", "64")
        for warm_up in ("0", "1"):
            rows = json.loads(run(*words, "--warm-up", warm_up, "--set", "network.layers.0.filters=8").out)
            self.assertEqual((rows[0]["operation"], rows[0]["elements"]), ("c1", 4 * 8 * 8 * 8))
            self.assertTrue(all(r["seconds"] > 0 for r in rows), rows)
        result = run(*words, "--set", "network.layers.0.filter=8")
        self.assertEqual(result.status, 2, result)
        self.assertIn("filter", result.err)
        self.assertEqual(run(*words, "--warm-up", "-1").status, 2)

    def test_columns_of_a_concatenation_cost_nothing(self):
        network = """input: [4, 4, 3]
classes: 4
layers:
  - {conv: c, filters: 3, kernel: 1, bias: false}
  - {batch_norm: a, input: c}
  - {max_pool: p, input: c, kernel: 1}
  - {conv: d, input: c, filters: 2, kernel: 1}
  - {concat: j, input: [a, p, d]}
  - flatten
  - {dense: f, units: 4}
"""
        rows = self.rows_of(network)
        for of in "forward", "backward":  # the convolution's two channels are read and written, the others lie there
            self.assertEqual(rows["j " + of]["bytes_moved"], 2 * 16 * 4 * 4 * 2 * 4, of)


if __name__ == "__main__":
    unittest.main(verbosity=2)
