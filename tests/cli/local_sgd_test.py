"""Local steps, from outside: what they send, what they record, checkpoints between two synchronisations."""

import json
import os
import unittest

import numpy as np

from harness import Case, load, model, run

EIGHT_STEPS = ["--set", "train.batch_size=12", "--set", "data.train_samples=96"]


def sync(text):
    return ["--set", f"sync={{{text}}}"]


class LocalSteps(Case):
    def records(self, out, *arguments, ranks=2):
        return self.metrics(self.train(out, *EIGHT_STEPS, *arguments, ranks=ranks))

    def averages(self, record, ranks):
        """How often all weights, tensors filled up to 64 bytes, were averaged: K - 1 ranks send each one to its owner, which
        sends the mean to K - 1."""
        once = 2 * (ranks - 1) * 4 * self.stored_parameters()
        self.assertEqual(record["bytes_average"] % once, 0, record)
        return record["bytes_average"] // once

    def stored_parameters(self):
        tensors = json.loads(run("show", self.config, "--json").out)["tensors"]
        return sum((t["elements"] + 15) // 16 * 16 for t in tensors)

    def test_bytes_fall_with_the_number_of_steps(self):
        for ranks in (2, 3):
            every = self.records(f"every-{ranks}", ranks=ranks)
            for h in (2, 4, 8):
                for one, all_steps in zip(self.records(f"{h}-{ranks}", *sync(f"kind: local_sgd, steps: {h}"), ranks=ranks), every, strict=True):
                    self.assertEqual(one["bytes_sent"] * h, all_steps["bytes_sent"])
                    self.assertEqual(one["bytes_fp32"], all_steps["bytes_fp32"])
                    self.assertEqual(one["synchronisations"], 8 // h)
                    self.assertEqual(one["bytes_per_synchronisation"] * 8, all_steps["bytes_sent"])
                    self.assertEqual(self.averages(one, ranks), 1, "for the distance; all epochs end with a synchronisation")
                    self.assertGreater(one["replica_distance"], 0)
                    self.assertTrue(one["replicas_equal"])
            self.assertNotIn("synchronisations", every[0])

    def test_fragments_and_a_delay_send_as_many_bytes(self):
        every = self.records("every", ranks=2)
        for text, exchanges in (("kind: local_sgd, steps: 4, fragments: 2", 4), ("kind: local_sgd, steps: 4, delay: 3", 2),
                                ("kind: block_momentum, steps: 8, fragments: 4, delay: 1", 4)):
            h = int(text.split("steps: ")[1].split(",")[0])
            for one, all_steps in zip(self.records(f"streamed-{h}-{exchanges}", *sync(text), ranks=2), every, strict=True):
                self.assertEqual(one["bytes_sent"] * h, all_steps["bytes_sent"], text)
                self.assertEqual(one["synchronisations"], exchanges)
                self.assertGreater(one["replica_distance"], 0)
                self.assertTrue(one["replicas_equal"])

    def test_a_delay_hides_a_slow_link(self):
        """On which an exchange takes longer than a step."""
        options = [*EIGHT_STEPS, *sync("kind: local_sgd, steps: 4, fragments: 2, delay: 1"), "--set", "train.epochs=1"]
        fast = self.train("fast", *options, ranks=2)
        slow = self.train("slow", *options, "--set", "exchange.link={bandwidth: 2Mbit, latency: 2ms}", ranks=2)
        for name, values in model(fast, "epoch-0001").items():
            self.assertTrue(np.array_equal(values, model(slow, "epoch-0001")[name]), name)

    def test_without_a_distance_nothing_is_averaged(self):
        options = ["--set", "train.epochs=1"]
        measured, = self.records("measured", *sync("kind: local_sgd, steps: 4"), *options)
        record, = self.records("plain", *sync("kind: local_sgd, steps: 4, distance: false"), *options)
        self.assertEqual((record["bytes_average"], record["replica_distance"]), (0, None))
        for key in ("train_loss", "val_loss", "bytes_sent", "synchronisations"):
            self.assertEqual(record[key], measured[key], key)

    def test_a_phase_goes_on_in_the_next_epoch(self):
        records = self.records("five", *sync("kind: local_sgd, steps: 5"), "--set", "train.epochs=5",
                               "--set", "checkpoint.every_epochs=0")
        self.assertEqual([r["synchronisations"] for r in records], [1, 2, 1, 2, 2])
        # One for the distance, and one for the evaluation where an epoch ends between two synchronisations.
        self.assertEqual([self.averages(r, 2) for r in records], [2, 2, 2, 2, 1])

    def test_bytes_of_the_tensors_are_those_of_the_run(self):
        for ranks, text in ((2, "kind: local_sgd, steps: 4"),
                            (4, "kind: hierarchical_local_sgd, steps: 1, block_steps: 3, ranks_per_block: 2"),
                            (3, "kind: hierarchical_local_sgd, steps: 1, block_steps: 3, ranks_per_block: 1")):
            for codec in ("none", "{kind: qsgd, bits: 4, bucket: 64, error_feedback: true}"):
                for record in self.records(f"{ranks}{codec[:4]}", *sync(text), "--set", f"exchange.codec={codec}",
                                           "--set", "metrics.codec_error=true", ranks=ranks):
                    tensors = record["codec_error"].values()
                    self.assertEqual(sum(t["bytes"] for t in tensors), record["bytes_sent"], (text, codec))

    def test_evaluation_and_the_model_are_of_the_average(self):
        folder = self.train("run", *EIGHT_STEPS, *sync("kind: local_sgd, steps: 5"), "--set", "train.epochs=1", ranks=2)
        checkpoint = os.path.join(folder, "checkpoints", "epoch-0001")
        own = [load(os.path.join(checkpoint, f"state-rank{r:04}.safetensors")) for r in (0, 1)]
        self.assertFalse(np.array_equal(own[0]["weights.fc.weight"], own[1]["weights.fc.weight"]))
        mean = (own[0]["weights.fc.weight"] + own[1]["weights.fc.weight"]) * np.float32(0.5)
        self.assertTrue(np.array_equal(model(folder, "epoch-0001")["fc.weight"].ravel(), mean))
        result = run("eval", self.config, "--checkpoint", checkpoint, "--json")
        self.assertEqual(result.status, 0, result)
        self.assertAlmostEqual(json.loads(result.out)["val_loss"], self.metrics(folder)[0]["val_loss"], delta=1e-5)

    def test_resuming_within_a_phase_changes_no_bit(self):
        for ranks, text in ((2, "kind: local_sgd, steps: 5"), (4, "kind: post_local_sgd, steps: 3, from: 1"),
                            (4, "kind: hierarchical_local_sgd, steps: 2, block_steps: 3, ranks_per_block: 2"),
                            (2, "kind: block_momentum, steps: 10, fragments: 2, delay: 3, nesterov: true"),
                            (4, "kind: local_sgd, steps: 5, delay: 3, mix: 0.25")):
            with self.subTest(text=text):
                options = [*EIGHT_STEPS, *sync(text)]
                name = f"{text.split()[1][:5]}-{ranks}"
                whole = self.train(f"whole-{name}", *options, ranks=ranks)
                self.train(f"parts-{name}", *options, "--steps", "11", ranks=ranks)
                parts = self.train(f"parts-{name}", *options, "--resume", ranks=ranks)
                for rank in range(ranks):
                    file = os.path.join("checkpoints", "epoch-0002", f"state-rank{rank:04}.safetensors")
                    with open(os.path.join(whole, file), "rb") as a, open(os.path.join(parts, file), "rb") as b:
                        self.assertEqual(a.read(), b.read(), file)
                for key in ("synchronisations", "bytes_sent", "bytes_average", "train_loss", "val_loss"):
                    difference = 0
                    if key == "bytes_average":  # the checkpoint in between took an average, too
                        difference = self.metrics(parts)[1][key] - self.metrics(whole)[1][key]
                        self.assertGreaterEqual(difference, 0)
                    self.assertEqual(self.metrics(parts)[1][key], self.metrics(whole)[1][key] + difference, key)

    def test_other_ranks_continue_from_the_average(self):
        options = [*EIGHT_STEPS, *sync("kind: local_sgd, steps: 5")]
        out = self.train("run", *options, "--steps", "11", ranks=2)
        result = run("train", self.config, "--out", out, *options, "--resume", ranks=3)
        self.assertEqual(result.status, 0, result)
        self.assertIn("the ranks go on from the average of its 2 ranks' weights and momentum", result.err + result.out)
        self.assertTrue(self.metrics(out)[1]["replicas_equal"])

    def test_what_does_not_fit_is_refused(self):
        for text, why in (
            ("kind: hierarchical_local_sgd, steps: 2, block_steps: 2, ranks_per_block: 3", "2 ranks cannot be divided into blocks of 3"),
            ("kind: local_sgd, steps: 2, nesterov: true", "sync.nesterov: is no key of local_sgd"),
            ("kind: post_local_sgd, steps: 2, from: soon", "sync.from"),
            ("kind: local_sgd, steps: 100, fragments: 100", "sync.fragments: 100 fragments need as many tensors, and the network has"),
            ("kind: local_sgd, steps: 4, fragments: 2, delay: 2", "sync.delay: a mean must arrive before the next exchange begins"),
        ):
            result = run("train", self.config, "--out", self.path("refused"), *sync(text), ranks=2)
            self.assertEqual(result.status, 2, result)
            self.assertIn(why, result.err)
        result = run("train", self.config, "--out", self.path("refused"), *sync("kind: local_sgd, steps: 2, delay: 1"),
                     "--check-replicas", "2", ranks=2)
        self.assertEqual(result.status, 2, result)
        self.assertIn("--check-replicas: with sync.fragments or sync.delay the replicas are never equal", result.err)


if __name__ == "__main__":
    unittest.main()
