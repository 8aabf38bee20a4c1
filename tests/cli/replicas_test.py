"""Replicas that are compared while a run trains: a flipped bit is found, named, and never saved."""

import unittest

import numpy as np

from harness import Case, checkpoints, model, run

FLIP = "exchange.inject={step: 6, rank: 1, tensor: conv2.weight, element: 17, bit: 21}"


class Replicas(Case):
    def setUp(self):
        super().setUp()
        self.out = self.path("out")

    def drill(self, every, *arguments, ranks=2):
        return run("train", self.config, "--out", self.out, "--set", FLIP, "--check-replicas", every, *arguments, ranks=ranks)

    def test_a_flipped_bit_ends_the_run(self):
        for ranks, who in ((2, "rank 0 and rank 1 differ"), (3, "rank 1 differs from ranks 0, 2")):
            self.out = self.path(f"out{ranks}")
            result = self.drill(1, ranks=ranks)
            self.assertEqual(result.status, 1, result)
            self.assertEqual(result.err.count("lpsgd: error: "), 1, result)
            self.assertIn(f"step 5: the replicas are not equal: in the weights of 'conv2.weight' {who}, from element 17 on; "
                          "1 of 8 tensors differ; the last checkpoint is ", result.err)
            self.assertEqual(checkpoints(self.out), ["epoch-0001"])

    def test_it_is_found_before_it_is_saved(self):
        result = self.drill(1000)
        self.assertEqual(result.status, 1, result)
        self.assertIn("step 7: the replicas are not equal", result.err)
        self.assertEqual(checkpoints(self.out), ["epoch-0001"])

    def test_the_resumed_run_is_that_without_the_fault(self):
        self.drill(1)
        result = run("train", self.config, "--out", self.out, "--resume", "--check-replicas", 1, ranks=2)
        self.assertEqual(result.status, 0, result)
        whole = self.train("whole")
        ours, expected = model(self.out, "epoch-0002"), model(whole, "epoch-0002")
        for name, array in expected.items():
            np.testing.assert_array_equal(ours[name].view("<u4"), array.view("<u4"), name)

    def test_comparing_changes_no_bit(self):
        compared, plain = self.train("compared", "--check-replicas", 2), self.train("plain")
        for name, array in model(plain, "epoch-0002").items():
            np.testing.assert_array_equal(model(compared, "epoch-0002")[name].view("<u4"), array.view("<u4"), name)

    def test_without_comparing_the_epoch_tells(self):
        result = run("train", self.config, "--out", self.out, "--set", FLIP, ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertEqual([record["replicas_equal"] for record in self.metrics(self.out)], [True, False])
        self.assertIn("REPLICAS DIFFER", result.out)
        self.assertEqual(result.err.count("warning: epoch 2: the ranks' weights differ"), 1, result)

    def test_over_threads(self):
        result = self.drill(2, "--set", "exchange.transport=threads", "--set", "exchange.ranks=3", ranks=None)
        self.assertEqual(result.status, 1, result)
        self.assertIn("rank 1 differs from ranks 0, 2", result.err)

    def test_what_is_refused(self):
        for words, text in (
            (("--check-replicas", "0"), "--check-replicas"),
            (("--check-replicas", "1", "--set", "exchange.collective=simulated"),
             "--check-replicas: with exchange.collective: simulated the replicas are not equal"),
            (("--set", "exchange.inject={step: 1, tensor: none}"), "exchange.inject.tensor: the network has no 'none'"),
            (("--set", "exchange.inject={rank: 1}"), "exchange.inject: the key 'step' is missing"),
            (("--set", "exchange.inject={step: 1, bit: 32}"), "exchange.inject.bit"),
        ):
            result = run("train", self.config, "--out", self.path("refused"), *words, ranks=2)
            self.assertEqual(result.status, 2, result)
            self.assertIn(text, result.err)


if __name__ == "__main__":
    unittest.main()
