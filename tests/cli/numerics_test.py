"""Full precision: K ranks equal one rank with the same global batch; `quantize` equals the slow reference."""

import json
import os
import struct
import sys
import unittest

import numpy as np

from harness import Case, load, model, run, save

sys.path.insert(0, os.path.join(os.environ["LPSGD_SOURCE"], "tests", "golden"))


import reference  # noqa: E402  (tests/golden)


class RanksAgree(Case):
    def test_k_ranks_equal_one(self):
        """tanh, codec none, and no batch norm or group norm: three steps agree with K = 1 to 1e-5 in norm."""
        groups = os.path.join(os.environ["LPSGD_SOURCE"], "configs", "networks", "resnet20_gn.yaml")
        with_groups = f"network={{file: {groups}, parameters: {{n: 1, width: 8, activation: tanh}}}}"
        self.check_k_ranks("groups", "--set", with_groups)
        self.check_k_ranks("plain", "--set", "network.parameters.activation=tanh", "--set", "network.parameters.norm=false")

    def check_k_ranks(self, name, *network):
        plain = ["--steps", "3", "--set", "exchange.codec={kind: none}", *network]
        one = model(self.train(f"{name}_1", *plain, ranks=1), "step-000003")
        start = model(self.train(f"{name}_0", *plain, "--steps", "0", ranks=1), "step-000000")
        for ranks in (2, 3, 4):
            many = model(self.train(f"{name}_{ranks}", *plain, ranks=ranks), "step-000003")
            for tensor, a in one.items():
                distance = np.linalg.norm(many[tensor].astype("f8") - a) / np.linalg.norm(a.astype("f8"))
                self.assertLess(distance, 1e-5, (name, tensor, ranks))
                self.assertGreater(np.linalg.norm(a - start[tensor]), 0, "training moves every tensor")


class LabelSmoothing(Case):
    def test_it_is_of_training_alone(self):
        """Weights that do not move: the evaluation's loss stays, and that of training is of other labels."""
        still = ["--set", "schedule.lr=1e-20", "--set", "train.epochs=1"]
        plain = self.metrics(self.train("plain", *still))[0]
        smooth = self.metrics(self.train("smooth", *still, "--set", "train.label_smoothing=0.5"))[0]
        self.assertEqual(smooth["val_loss"], plain["val_loss"])
        self.assertEqual(smooth["train_top1"], plain["train_top1"])
        self.assertGreater(abs(smooth["train_loss"] - plain["train_loss"]), 0.001)


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

    def exchanged(self, codec, x, seed):
        """Means of the steps, by the slow reference: x is (steps, K, n), the file's only tensor."""
        steps, ranks, n = x.shape
        bucket = n if codec["bucket"] == "tensor" else codec["bucket"]
        buckets = -(-n // bucket)
        feedback = codec["error_feedback"]
        zeros = np.zeros(n, dtype="f4")
        residual1 = [zeros.copy() for _ in range(ranks)]
        residual2 = zeros.copy()
        means = np.empty((steps, n), dtype="f4")
        for step in range(steps):
            decoded = []
            for rank in range(ranks):
                context = dict(seed=seed, tensor=0, step=step, rank=rank, round_=1)
                _, left, q = reference.encode(codec, x[step, rank], residual1[rank] if feedback else None, 0, bucket, **context)
                residual1[rank] = left
                decoded.append(q)
            for stripe in range(ranks):
                a = min(n, stripe * buckets // ranks * bucket)
                b = min(n, (stripe + 1) * buckets // ranks * bucket)
                if a == b:
                    continue
                context = dict(seed=seed, tensor=0, step=step, rank=stripe, round_=2)
                _, left, q = reference.reduce(
                    codec, [d[a:b] for d in decoded], residual2[a:b] if feedback else None, first=a, bucket=bucket, **context
                )
                residual2[a:b] = left
                means[step, a:b] = q
        return means

    def test_every_codec_equals_the_slow_reference(self):
        rng = np.random.default_rng(2)
        for ranks, codec in [
            (2, dict(kind="onebit", bucket=64, error_feedback=True)),
            (3, dict(kind="qsgd", bits=2, bucket=128, error_feedback=True)),
            (2, dict(kind="qsgd", bits=4, norm="l2", bucket=64, error_feedback=False)),
            (3, dict(kind="qsgd", bits=8, levels="interval", bucket=96, error_feedback=False)),
            (2, dict(kind="qsgd", bits=4, levels="exponential", bucket=64, error_feedback=True)),
            (3, dict(kind="qsgd", bits=4, levels="optimal", bucket=64, error_feedback=True)),
            (2, dict(kind="qsgd", bits=8, levels="optimal", bucket=32, error_feedback=False)),
            (2, dict(kind="sign", bucket="tensor", error_feedback=True)),
            (3, dict(kind="sign", majority=True, bucket=64, error_feedback=False)),
            (2, dict(kind="topk", density=0.05, bucket=128, error_feedback=True)),
            (1, dict(kind="dynamic8", bucket=64, error_feedback=True)),
            (3, dict(kind="dynamic8", type="static_tree", bucket=512, error_feedback=False)),
            (3, dict(kind="mx", element="e2m1", rounding="stochastic", bucket=64, error_feedback=False)),
            (2, dict(kind="mx", element="e5m2", rounding="nearest", bucket=512, error_feedback=True)),
        ]:
            x = (rng.standard_normal((2, ranks, 333)) * 0.01).astype("f4")
            save(self.path("in.safetensors"), {"a": x})
            text = "{" + ", ".join(f"{k}: {str(v).lower() if isinstance(v, bool) else v}" for k, v in codec.items()) + "}"
            result = run("quantize", self.path("in.safetensors"), "--codec", text, "--seed", "7", "--out", self.path("o.safetensors"))
            self.assertEqual(result.status, 0, result)
            got = load(self.path("o.safetensors"))["a"]
            self.assertTrue(np.array_equal(got.view("u4"), self.exchanged(codec, x, 7).view("u4")), text)

    def test_a_nan_is_a_nan_of_its_bucket_or_refused(self):
        x = np.full((2, 3, 128), 0.01, dtype="f4")
        x[1, 2, 70] = np.nan
        save(self.path("in.safetensors"), {"a": x})
        quantize = lambda codec: run("quantize", self.path("in.safetensors"), "--codec", codec, "--out", self.path("o.safetensors"))
        self.assertEqual(quantize("{kind: qsgd, bits: 4, bucket: 64}").status, 0)
        got = np.isnan(load(self.path("o.safetensors"))["a"])
        self.assertEqual((got[0].any(), got[1, :64].any(), got[1, 64:].all()), (False, False, True))
        result = quantize("{kind: sign, majority: true, error_feedback: false}")
        self.assertEqual(result.status, 1, result)
        self.assertIn("tensor 'a', step 1: the values of rank 2 hold a NaN or an infinity", result.err)

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
