"""The warm-up of codecs, from outside: exchange.warmup_epochs."""

import os
import shutil
import unittest

from harness import Case, equal, load, model, run

# Four steps an epoch: six of the twelve are in the warm-up.
OPTIONS = ("--set", "train.epochs=3", "--set", "exchange.warmup_epochs=1.5", "--set", "metrics.codec_error=true",
           "--set", "exchange.codec={kind: onebit, bucket: 64}")
SYNCS = ("{kind: every_step}", "{kind: block_momentum, steps: 4, fragments: 2, delay: 1}",
         "{kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 2}")


class Warmup(Case):
    def residuals(self, folder, checkpoint, ranks):
        for rank in range(ranks):
            state = load(os.path.join(folder, "checkpoints", checkpoint, f"state-rank{rank:04}.safetensors"))
            yield from (value for name, value in state.items() if "residual" in name)

    def test_bytes_and_errors_by_epoch(self):
        for ranks in (2, 3):
            folder = self.train(f"out-{ranks}", *OPTIONS, ranks=ranks)
            first, second, third = self.metrics(folder)
            self.assertEqual(first["bytes_sent"], first["bytes_fp32"])
            self.assertLess(third["bytes_sent"], first["bytes_sent"] / 8)
            self.assertEqual(2 * second["bytes_sent"], first["bytes_sent"] + third["bytes_sent"])
            for record in (first, second, third):
                self.assertEqual(sum(t["bytes"] for t in record["codec_error"].values()), record["bytes_sent"])
                self.assertTrue(record["replicas_equal"])
            for name in ("conv1.weight", "conv2.weight", "fc.weight"):
                self.assertEqual((first["codec_error"][name]["error"], first["codec_error"][name]["residual"]), (0, 0))
                self.assertAlmostEqual(second["codec_error"][name]["error"], third["codec_error"][name]["error"], delta=0.3)
                self.assertGreater(second["codec_error"][name]["residual"], 0)

    def test_the_warmup_is_a_run_without_codecs(self):
        for ranks in (1, 2):
            warm = self.train(f"warm-{ranks}", *OPTIONS, "--steps", "6", ranks=ranks)
            none = self.train(f"none-{ranks}", *OPTIONS, "--set", "exchange.codec=none", "--steps", "6", ranks=ranks)
            self.assertTrue(equal(model(warm, "step-000006"), model(none, "step-000006")))
            values = list(self.residuals(warm, "step-000006", ranks))
            self.assertTrue(values and not any(v.any() for v in values))

    def test_what_it_says(self):
        result = run("train", self.config, "--out", self.path("out"), *OPTIONS, "--progress", "plain", ranks=2)
        self.assertEqual((result.status, result.err), (0, ""))
        lines = result.out.splitlines()
        self.assertIn("error_feedback: true} after 1.5 epochs of float32 | ", lines[0])
        self.assertIn("the codecs begin with step 7", lines)
        ratios = [float(line.split("wire ")[1].split("x")[0]) for line in lines if line.startswith("step ")]
        self.assertEqual(ratios[0], 1)
        self.assertGreater(ratios[-1], 8)
        result = run("show", self.config, *OPTIONS)
        self.assertIn("for 1.5 epochs all tensors go as float32, and then through their codecs\n", result.out)
        self.assertNotIn("all tensors go as float32", run("show", self.config).out)
        result = run("train", self.config, "--out", self.path("never"), *OPTIONS, "--set", "exchange.warmup_epochs=3")
        self.assertIn("warning: exchange.warmup_epochs: the run of 3 epochs ends before the codecs begin", result.err)
        for value, said in (("-1", "from 0 to"), ("much", "expected a number")):
            result = run("train", self.config, "--out", self.path("bad"), "--set", f"exchange.warmup_epochs={value}")
            self.assertEqual(result.status, 2)
            self.assertIn("exchange.warmup_epochs", result.err)
            self.assertIn(said, result.err)

    def test_a_resume_goes_on_bit_for_bit(self):
        """From before the codecs' first step, at it, and after it."""
        for sync in SYNCS:
            options = (*OPTIONS, "--set", f"sync={sync}")
            whole = self.train("whole", *options)
            for stop in (3, 6, 8):
                part = self.train("part", *options, "--steps", str(stop))
                self.train("part", *options, "--resume")
                self.assertTrue(equal(model(part, "epoch-0003"), model(whole, "epoch-0003")), f"{sync} from {stop}")
                self.assertEqual(self.metrics(part)[-1]["bytes_sent"], self.metrics(whole)[-1]["bytes_sent"])
                shutil.rmtree(part)
            shutil.rmtree(whole)

    def test_a_resume_with_other_ranks_or_another_warmup(self):
        part = self.train("part", *OPTIONS, "--steps", "5")
        result = run("train", self.config, "--out", part, *OPTIONS, "--resume", "--set", "exchange.warmup_epochs=2",
                     ranks=3)
        self.assertEqual(result.status, 0, result)
        self.assertIn("the codecs begin with step 9", result.out)
        last = self.metrics(part)[-1]
        self.assertLess(last["bytes_sent"], last["bytes_fp32"] / 8)

        # A longer one than the run had: the residuals wait.
        late = self.train("late", *OPTIONS, "--steps", "9")
        before = list(self.residuals(late, "step-000009", 2))
        self.assertTrue(any(v.any() for v in before))
        self.train("late", *OPTIONS, "--set", "exchange.warmup_epochs=3", "--resume")
        after = list(self.residuals(late, "epoch-0003", 2))
        self.assertTrue(all((a == b).all() for a, b in zip(after, before, strict=True)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
