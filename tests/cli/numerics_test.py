"""Full precision: K ranks equal one rank with the same global batch; `quantize` equals the slow reference."""

import json
import os
import struct
import sys
import unittest

import numpy as np

from harness import Case, load, model, run, save

sys.path.insert(0, os.path.join(os.environ["LPSGD_SOURCE"], "tests", "golden"))


class RanksAgree(Case):
    def test_k_ranks_equal_one(self):
        """tanh, no batch norm, codec none: three steps agree with K = 1 to 1e-5 in norm."""
        plain = ["--steps", "3", "--set", "exchange.codec={kind: none}", "--set", "network.parameters.activation=tanh",
                 "--set", "network.parameters.norm=false"]
        one = model(self.train("one", *plain, ranks=1), "step-000003")
        start = model(self.train("zero", *plain, "--steps", "0", ranks=1), "step-000000")
        for ranks in (2, 3, 4):
            many = model(self.train(f"k{ranks}", *plain, ranks=ranks), "step-000003")
            for name, a in one.items():
                distance = np.linalg.norm(many[name].astype("f8") - a) / np.linalg.norm(a.astype("f8"))
                self.assertLess(distance, 1e-5, (name, ranks))
                self.assertGreater(np.linalg.norm(a - start[name]), 0, "training moves every tensor")


class Quantize(Case):
    def test_none_is_the_mean_in_rank_order(self):
        rng = np.random.default_rng(1)
        for ranks in (1, 2, 3, 5):
            x = rng.standard_normal((2, ranks, 1001)).astype("f4")
            save(self.path("in.safetensors"), {"a": x})
            result = run("quantize", self.path("in.safetensors"), "--codec", "{kind: none}", "--out", self.path("o.safetensors"))
            self.assertEqual(result.status, 0, result)
            total = x[:, 0].copy()
            for r in range(1, ranks):
                total = total + x[:, r]
            expected = total * np.float32(1.0 / ranks)
            self.assertTrue(np.array_equal(load(self.path("o.safetensors"))["a"], expected))

    def test_a_header_without_padding_is_read(self):
        x = np.arange(12, dtype="f4").reshape(2, 1, 6)
        header = json.dumps({"a": {"dtype": "F32", "shape": [2, 1, 6], "data_offsets": [0, 48]}}).encode()
        header += b" " * ((1 - len(header)) % 4)  # one byte off
        with open(self.path("in.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + x.tobytes())
        result = run("quantize", self.path("in.safetensors"), "--codec", "none", "--out", self.path("o.safetensors"))
        self.assertEqual(result.status, 0, result)
        self.assertTrue(np.array_equal(load(self.path("o.safetensors"))["a"], x[:, 0]))

    def test_wrong_shape_and_wrong_codec(self):
        save(self.path("in.safetensors"), {"a": np.zeros((3, 4))})
        result = run("quantize", self.path("in.safetensors"), "--codec", "{kind: none}", "--out", self.path("o.safetensors"))
        self.assertEqual(result.status, 1, result)
        self.assertIn("tensor 'a' has 2 dimensions; expected (steps, K, n)", result.err)
        result = run("quantize", self.path("in.safetensors"), "--codec", "{kind: nope}", "--out", self.path("o.safetensors"))
        self.assertEqual(result.status, 2, result)
        self.assertIn("--codec", result.err)
        self.assertFalse(os.path.exists(self.path("o.safetensors")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
