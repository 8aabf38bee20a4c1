"""Training on speech and text on a GPU: agrees with the CPU, and resumes bit for bit inside an epoch."""

import json
import sys
import unittest

import numpy as np
from harness import model, run
from sequence_data import SequenceCase

CUDA = ("--set", "train.device=cuda")


class OnTheGpu(SequenceCase):
    def runs(self):
        """Name, configuration and options: text, whole utterances, and utterances in pieces."""
        speech = self.write_speech()
        return ("text", self.text, ()), ("whole", speech, ()), ("pieces", speech, ("--set", "data.truncate=6"))

    def test_an_epochs_losses_are_the_cpus(self):
        for name, config, options in self.runs():
            with self.subTest(name):
                cpu = self.records(name + "-cpu", *options, config=config, ranks=1)
                gpu = self.records(name + "-gpu", *options, *CUDA, config=config, ranks=2)
                for a, b in zip(cpu, gpu):
                    for key in ("train_loss", "val_loss"):
                        self.assertLess(abs(a[key] - b[key]), 2e-3 * a[key], key)
                    for key in ("samples", "frames"):
                        self.assertEqual(a[key], b[key], key)
                    self.assertTrue(b["replicas_equal"])

    def test_resuming_inside_an_epoch_changes_no_bit(self):
        fixed = (*CUDA, "--set", "train.deterministic=true")
        for name, config, options in self.runs():
            with self.subTest(name):
                whole = self.train(name + "-whole", *options, *fixed, "--steps", "5", config=config, ranks=1)
                self.train(name + "-parts", *options, *fixed, "--steps", "3", config=config, ranks=1)
                parts = self.train(name + "-parts", *options, *fixed, "--steps", "5", "--resume", config=config, ranks=1)
                for key, values in model(whole, "step-000005").items():
                    np.testing.assert_array_equal(values, model(parts, "step-000005")[key], key)


if __name__ == "__main__":
    version = json.loads(run("version", "--json").out)
    if not version["is_cuda_available"]:
        print("skipped: needs a GPU:", version["cuda_unavailable_because"])
        sys.exit(77)
    unittest.main()
