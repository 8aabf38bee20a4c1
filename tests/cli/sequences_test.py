"""Training on speech and text: the same numbers for any number of ranks, carried state across a resume, errors."""

import json
import math
import os
import pathlib
import unittest

import numpy as np
from harness import model, run
from sequence_data import SequenceCase


class Sequences(SequenceCase):
    def test_show_counts_a_frame_or_a_piece(self):
        flops = 12 * 8 + 2 * 5 * 8 + 8 * 8 * (6 + 5) + 12 * 7 + 8 * 7 * (5 + 7) + 2 * 7 * 12 + 12
        table = run("show", self.path("text.yaml"))
        self.assertIn(f" {flops * 1e-6:.2f} MFLOP a frame forward", table.out)
        self.assertIn(" MFLOP a sample forward", run("show", self.text).out)
        self.assertEqual(self.json(run("show", "--json", self.path("text.yaml")))["flops"], flops)
        self.assertEqual(self.json(run("show", "--json", self.text))["flops"], 7 * flops)

    def test_text_is_the_same_for_any_number_of_ranks(self):
        one = self.records("one", config=self.text, ranks=1)
        for ranks in (2, 4):
            other = self.records(f"of{ranks}", config=self.text, ranks=ranks)
            self.assert_same(one, other, ("train_loss", "val_loss", "val_top1", "val_perplexity", "frames", "samples",
                                          "padding"))
        with open(self.path("train.txt")) as file:
            words = len(file.read().replace("\n", " eos ").split())
        batches = (words - 1) // 4 // 7
        self.assertEqual(one[0]["frames"], 28 * batches)
        self.assertEqual(one[0]["samples"], 4 * batches)
        self.assertEqual(one[0]["padding"], 0)
        self.assertAlmostEqual(one[1]["val_perplexity"], math.exp(one[1]["val_loss"]), 9)
        self.assertLess(one[1]["val_perplexity"], 11)

    def test_speech_is_the_same_for_any_number_of_ranks(self):
        config = self.write_speech()
        for truncate in (0, 6):
            set_ = ("--set", f"data.truncate={truncate}")
            one = self.records(f"one{truncate}", *set_, config=config, ranks=1)
            for ranks in (2, 4):
                other = self.records(f"of{ranks}-{truncate}", *set_, config=config, ranks=ranks)
                self.assert_same(one, other, ("train_loss", "val_loss", "val_top1", "frames", "samples"))
            self.assertGreater(one[0]["padding"], 0)
            self.assertEqual(one[0]["samples"] % 4, 0)
            if not truncate:
                self.assertEqual(one[0]["samples"], 16)

    def test_a_line_without_frames_has_no_loss(self):
        """The first rank's recording is one piece, the second's are three."""
        held = ", ".join(f"r{i}-{'held' if i % 5 == 0 else 'train'}" for i in range(7) if i not in (4, 6))
        result = run("train", self.write_speech(7), "--out", self.path("out"), "--set", "data.truncate=9", "--set",
                     "data.shuffle=false", "--set", f"data.speech.held_out=[{held}]", "--set", "train.batch_size=2", "--set",
                     "train.epochs=1", "--progress", "plain", ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertRegex(result.out, r"(?m)^step 1/2 \| loss \d\.\d{4} \| ")
        self.assertRegex(result.out, r"(?m)^step 2/2 \| loss - \| ")
        self.assertNotIn("nan", result.out)

    def test_a_transformer_is_the_same_for_any_number_of_ranks(self):
        layers = """
  - {%s}
  - {position: position, frames: 30}
  - {dense: in_proj, units: 36}
  - {attention: attention, heads: 3, causal: %s}
  - {dense: out_proj, units: 12}
  - {add: sum, input: [out_proj, position]}
  - layer_norm
  - {dense: wide, units: 24}
  - gelu
  - {dense: scores, units: %d}
"""
        speech = self.write_speech()
        for name, config, head, first, causal, classes, arguments in (
                ("text", self.text, "[any]", "embedding: words, vocabulary: 12, dimension: 12", "true", 12, ()),
                ("speech", speech, "[any, 99]", "dense: first, units: 12", "false", 3, ()),
                ("pieces", speech, "[any, 99]", "dense: first, units: 12", "true", 3, ("--set", "data.truncate=6"))):
            with self.subTest(name):
                network = self.write(name + "_transformer.yaml", f"input: {head}\nclasses: {classes}\nlayers:" +
                                     layers % (first, causal, classes))
                arguments += ("--set", f"network={network}", "--set", "optimizer={kind: adamw}", "--set", "schedule.lr=0.01")
                one = self.records(name + "-one", *arguments, config=config, ranks=1)
                self.assertLess(one[1]["train_loss"], 0.97 * one[0]["train_loss"])
                for ranks in (2, 4):
                    other = self.records(f"{name}-of{ranks}", *arguments, config=config, ranks=ranks)
                    self.assert_same(one, other, ("train_loss", "val_loss", "val_top1", "frames", "samples"))
                self.train(name + "-parts", *arguments, "--steps", 3, config=config)
                parts = self.train(name + "-parts", *arguments, "--resume", config=config)
                whole = self.train(name + "-whole", *arguments, config=config)
                for key, values in model(whole, "epoch-0002").items():
                    np.testing.assert_array_equal(values, model(parts, "epoch-0002")[key], key)

    def test_shared_weights_fixed_positions_and_dropout(self):
        """Of any number of ranks, across a resume, and as the beginning of another run."""
        network = self.write("shared.yaml", """
input: [any]
classes: 12
layers:
  - {embedding: words, vocabulary: 12, dimension: 12, init_deviation: 0.1}
  - {position: position, frames: 30, trained: false}
  - {dense: in_proj, units: 36}
  - {attention: attention, heads: 3, causal: true, dropout: 0.2}
  - {dense: out_proj, units: 12}
  - {dropout: dropout, probability: 0.1}
  - {add: sum, input: [dropout, position]}
  - {layer_norm: norm, bias: false}
  - {dense: scores, units: 12, weight_of: words}
""")
        arguments = ("--set", f"network={network}", "--set", "optimizer={kind: adamw}", "--set", "schedule.lr=0.01")
        one = self.records("one", *arguments, config=self.text, ranks=1)
        self.assertLess(one[1]["train_loss"], 0.97 * one[0]["train_loss"])
        for ranks, micro_batches in ((2, 1), (4, 1), (2, 2)):
            other = self.records(f"of{ranks}-{micro_batches}", *arguments, "--set", f"train.micro_batches={micro_batches}",
                                 config=self.text, ranks=ranks)
            self.assert_same(one, other, ("train_loss", "val_loss", "val_top1", "frames", "samples"))
        coded = (*arguments, "--set", "exchange={codec: {kind: qsgd, bits: 8, error_feedback: true}, min_elements: 0}")
        started = run("train", self.text, "--out", self.path("parts"), *coded, "--steps", 3, ranks=2)
        self.assertEqual(started.status, 0, started)
        self.assertNotIn("warning", started.err + started.out)
        parts = self.train("parts", *coded, "--resume", config=self.text)
        whole = self.train("whole", *coded, config=self.text)
        tensors = model(whole, "epoch-0002")
        for key, values in tensors.items():
            np.testing.assert_array_equal(values, model(parts, "epoch-0002")[key], key)
        self.assertEqual(sorted(tensors), ["in_proj.bias", "in_proj.weight", "norm.weight", "out_proj.bias", "out_proj.weight",
                                           "position.weight", "scores.bias", "words.weight"])
        np.testing.assert_allclose(tensors["position.weight"][:, 0], np.sin(np.arange(30)), atol=1e-6)
        self.train("again", *arguments, "--init", whole, config=self.text)
        trained = self.write("trained.yaml", pathlib.Path(network).read_text().replace(", trained: false", ""))
        refused = run("train", self.text, "--out", whole, *coded, "--set", f"network={trained}", "--set", "train.epochs=3",
                      "--resume", ranks=2)
        self.assertEqual(refused.status, 2, refused)
        self.assertIn("was written with another train.freeze or 'trained': it did not train 'position.weight'", refused.err)

    def test_a_resume_inside_an_epoch_continues_bit_for_bit(self):
        speech = self.write_speech()
        for name, config, arguments in (("text", self.text, ()), ("speech", speech, ("--set", "data.truncate=6"))):
            with self.subTest(name):
                whole = self.train(name + "-whole", *arguments, config=config)
                for steps in (2, 3):
                    self.train(name + "-parts", *arguments, "--steps", steps, "--resume", config=config)
                parts = self.train(name + "-parts", *arguments, "--resume", config=config)
                for key, values in model(whole, "epoch-0002").items():
                    np.testing.assert_array_equal(values, model(parts, "epoch-0002")[key], key)
                self.assert_same(self.metrics(whole), self.metrics(parts),
                                 ("train_loss", "val_loss", "frames", "samples", "padding"), 12)

    def test_carried_state_follows_its_position_to_another_number_of_ranks(self):
        whole = self.records("whole", config=self.text, ranks=2)
        for ranks in (1, 4):
            self.train(f"to{ranks}", "--steps", 3, config=self.text, ranks=2)
            other = self.records(f"to{ranks}", "--resume", config=self.text, ranks=ranks)
            self.assert_same(whole, other, ("train_loss", "val_loss"), 5)

    def test_eval_gives_the_last_epochs_numbers(self):
        out = self.train("out", config=self.text)
        result = run("eval", self.text, "--checkpoint", out, "--json")
        self.assertEqual(result.status, 0, result)
        last = self.metrics(out)[-1]
        with open(os.path.join(out, "summary.json")) as file:
            self.assertEqual(json.load(file)["val_perplexity"], last["val_perplexity"])
        self.assertAlmostEqual(self.json(result)["val_perplexity"], last["val_perplexity"], 4)
        self.assertEqual(self.json(result)["samples"], self.json(result)["frames"])
        result = run("eval", self.text, "--checkpoint", out)
        self.assertIn(f"tokens | loss {last['val_loss']:.4f} perplexity {last['val_perplexity']:.2f}\n", result.out)
        speech = self.write_speech()
        out = self.train("speech", config=speech)
        result = run("eval", speech, "--checkpoint", out, "--json")
        self.assertAlmostEqual(self.json(result)["val_loss"], self.metrics(out)[-1]["val_loss"], 4)
        self.assertEqual(self.json(result)["samples"], 4)

    def test_epoch_lines_speak_of_frames_and_perplexity(self):
        result = run("train", self.text, "--out", self.path("a"), "--progress", "plain")
        self.assertRegex(result.out, r"epoch 2/2 \| train loss [\d.]+ perplexity [\d.]+ \| val loss [\d.]+ perplexity ")
        result = run("train", self.write_speech(), "--out", self.path("b"), "--progress", "plain")
        self.assertRegex(result.out, r"epoch 1/2 \| train loss [\d.]+ frame accuracy [\d.]+% \| val loss [\d.]+ frame ")

    def refused(self, status, message, config, *arguments):
        result = run("train", config, "--out", self.path("refused"), *arguments)
        self.assertEqual(result.status, status, result)
        self.assertIn(message, result.err)
        self.assertFalse(os.path.exists(self.path("refused")))

    def test_data_that_do_not_fit_the_network_are_refused(self):
        speech = self.write_speech()
        text_ = self.path("text.yaml")
        self.refused(2, f"{text_}:4:10: network: vocabulary too small: the network has 9 tokens, data set text has 11",
                     self.text, "--set", "network.layers.0.vocabulary=9")
        self.refused(2, "data.truncate: missing: a text is one long sequence; after how many tokens to cut it",
                     self.text, "--set", "data.truncate=0")
        self.refused(2, "network.input: the network takes (7), data set an4 has sequences of (frames, 99)",
                     self.text, "--set", "data={dataset: an4, root: '%s', truncate: 7, speech: {context: 1, "
                     "features: filterbank, held_out: [held]}}" % self.dir)
        self.refused(2, "network.input: the network takes (26, 99), data set an4 has sequences of (frames, 33)",
                     speech, "--set", "data.speech.context=0")
        self.write("four", "a\nb\nc\nd\n")
        self.refused(2, "network.classes: the network has 3 classes, data set an4 has 4", speech, "--set",
                     "data.speech.states=four")
        self.refused(2, "the longest sequence of an4 has 26 frames, but the network takes 20", speech,
                     "--set", "network.input=[20, 99]")
        self.refused(2, "data.truncate: cuts sequences, and data set shapes has images", self.config, "--set",
                     "data.truncate=5")
        self.refused(2, "network.input: the network takes (32, 32, 3), data set text has tokens", self.text, "--set",
                     "network=" + self.path("tiny_network.yaml"))

    def test_check_names_every_bad_file(self):
        speech = self.write_speech()
        for name in ("corpus/train/r1-train", "corpus/held/r5-held"):
            self.write(f"wav/{name}.raw", "odd")
        for i in (7, 8, 9):
            os.remove(self.path(f"wav/corpus/train/r{i}-train.raw"))
        result = run("data", "check", speech)
        self.assertEqual(result.status, 1, result)
        lines = result.out.splitlines()
        self.assertEqual([line.split(": ")[1] for line in lines], [self.path("wav", "corpus", name + ".raw") for name in (
            "train/r1-train", "held/r5-held", "train/r7-train", "train/r8-train", "train/r9-train")])
        self.assertIn("truncated: 3 bytes", lines[1])
        self.assertIn("No such file or directory", lines[2])
        self.assertIn("data set an4: 5 files or samples are bad, named above", result.err)
        # Other commands name a few.
        result = run("train", speech, "--out", self.path("refused"))
        self.assertIn("r7-train.raw: cannot be read", result.err)
        self.assertNotIn("r8-train", result.err)
        self.assertIn("\nand 2 more, which `lpsgd data check` names", result.err)
        self.write("train.txt", "w1 w2")
        with open(self.path("train.txt"), "wb") as file:
            file.write(b"\xff")
        os.remove(self.path("valid.txt"))
        result = run("data", "check", self.text, "--set", "data.text.unit=characters")
        self.assertEqual([line.split(": ")[1].split(":")[0] for line in result.out.splitlines()],
                         [self.path("train.txt"), self.path("valid.txt")])

    def test_check_refuses_features_that_are_not_finite(self):
        speech = self.write_speech()
        numbers = lambda x: "[" + ", ".join(33 * [x]) + "]"
        result = run("data", "check", speech, "--set", "data.mean=" + numbers("0"), "--set", "data.std=" + numbers("1e-44"))
        self.assertEqual(result.status, 1, result)
        self.assertIn("r0-held.raw: a feature is not finite", result.out)

    def test_files_that_do_not_fit_together_are_refused(self):
        speech = self.write_speech()
        os.rename(self.path("wav/corpus/train/r3-train.raw"), self.path("elsewhere"))
        self.refused(1, "wav/corpus/train/r3-train.raw: cannot be read: No such file or directory", speech)
        os.rename(self.path("elsewhere"), self.path("wav/corpus/train/r3-train.raw"))
        self.write("valid.txt", "w1 w2\nw3 new\n")
        self.refused(1, f"{self.path('valid.txt')}:2: 'new' is not in the vocabulary, and no token stands for unknown",
                     self.text, "--set", "data.text.unknown=''")


if __name__ == "__main__":
    unittest.main()
