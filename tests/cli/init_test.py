"""lpsgd train --init: runs that start from given weights, from all of a file or, with --init-skip, from a part of it."""

import json
import os
import re
import shlex
import struct
import unittest

import numpy as np
from harness import NETWORK, SOURCE, Case, equal, load, model, run, save

# The same network with another number of classes for each run.
ANY_CLASSES = NETWORK.replace("classes: 10", "classes: $outputs").replace("norm: true}", "norm: true, outputs: 10}").replace(
    "units: 10", "units: $outputs")
FIVE = ("--set", "network=any.yaml", "--set", "network.parameters.outputs=5", "--set",
        "data={dataset: noise, image: [32, 32, 3], classes: 5, train_samples: 96, test_samples: 50}")


def save_as_pytorch(path, weights):
    """As PyTorch writes a state dict, with its counters of batches."""
    header, pieces, at = {}, [], 0
    counters = ((f"{k[:-11]}num_batches_tracked", np.int64(7)) for k in weights if k.endswith("running_var"))
    for name, values in [*weights.items(), *counters]:
        data = np.asarray(values).tobytes()
        kind = {"int64": "I64", "float16": "F16", "float32": "F32"}[np.asarray(values).dtype.name]
        header[name] = {"dtype": kind, "shape": list(np.shape(values)), "data_offsets": [at, at + len(data)]}
        pieces.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def copied(weights):
    return {name: values.copy() for name, values in weights.items()}


class Init(Case):
    def setUp(self):
        super().setUp()
        self.write("any.yaml", ANY_CLASSES)

    def refused(self, *arguments, expected, ranks=2):
        result = run("train", self.config, "--out", self.path("new"), *arguments, ranks=ranks)
        self.assertEqual(result.status, 2, result)
        self.assertIn(expected, result.err)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        self.assertFalse(os.path.exists(self.path("new")), "nothing may start")

    def test_a_run_starts_from_given_weights(self):
        first = self.train("first", "--set", "train.epochs=1")
        given = os.path.join(first, "checkpoints", "epoch-0001", "model.safetensors")
        weights = copied(load(given))
        with open(given, "rb") as file:
            trained = file.read()
        for name, init in (("file", given), ("checkpoint", os.path.dirname(given)), ("run", first)):
            folder = self.train(name, "--init", init, "--steps", "0")
            with open(os.path.join(folder, "checkpoints", "step-000000", "model.safetensors"), "rb") as file:
                self.assertEqual(file.read(), trained, name)
        save_as_pytorch(self.path("torch.safetensors"), weights)
        again = self.train("torch", "--init", self.path("torch.safetensors"), "--steps", "0")
        self.assertTrue(equal(model(again, "step-000000"), weights))
        halves = {name: values.astype(np.float16) for name, values in weights.items()}
        save_as_pytorch(self.path("half.safetensors"), halves)
        again = self.train("half", "--init", self.path("half.safetensors"), "--steps", "0")
        self.assertTrue(equal(model(again, "step-000000"), {name: v.astype(np.float32) for name, v in halves.items()}))
        # The first step is the trained network's: its loss is that of an evaluation with these weights, not of random ones.
        local = self.train("local", "--init", first, "--set", "sync={kind: local_sgd, steps: 2}")
        self.assertTrue(all(record["replicas_equal"] for record in self.metrics(local)))
        self.assertLess(self.metrics(local)[0]["train_loss"], self.metrics(first)[0]["train_loss"])
        # A run that is resumed goes on from its own checkpoint.
        result = run("train", self.config, "--out", self.path("first"), "--resume", "--init", self.path("torch.safetensors"), ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertNotIn("starting from the weights", result.out)

    def test_weights_that_do_not_fit_are_refused(self):
        weights = copied(model(self.train("out", "--steps", "0"), "step-000000"))
        more, fewer, nan = dict(weights), dict(weights), copied(weights)
        more["fc2.weight"] = np.zeros(3)
        del fewer["bn1.running_var"]
        nan["bn1.running_mean"][2] = np.nan
        wide = {**weights, "fc.bias": np.zeros(11)}
        for name, tensors, expected in (
            ("more", more, "holds 'fc2.weight', which the network does not have; --init-skip fc2 leaves that layer out"),
            ("fewer", fewer, "has no tensor 'bn1.running_var'; --init-skip bn1 leaves that layer out"),
            ("wide", wide, "tensor 'fc.bias' has shape (11), expected (10); --init-skip fc leaves that layer out"),
            ("nan", nan, "the running statistics of 'bn1.running_mean' hold a NaN or an infinity"),
        ):
            path = self.path(name + ".safetensors")
            save(path, tensors)
            self.refused("--init", path, expected="lpsgd: error: --init: " + path + ": " + expected)
        self.refused("--init", self.path("missing"), expected="lpsgd: error: --init: " + self.path("missing"))

    def test_skipped_layers_start_from_random_values(self):
        trained = model(self.train("first", "--set", "train.epochs=1"), "epoch-0001")
        random = model(self.train("random", "--steps", "0", *FIVE), "step-000000")
        for skip, but_for in (
            (["fc"], "fc.weight, fc.bias"),
            (["fc.{weight,bias}"], "fc.weight, fc.bias"),
            (["b?2,fc"], "bn2.weight, bn2.bias, fc.weight, fc.bias and 2 more"),
            (["bn2.running_var", "--init-skip", "fc.*"], "fc.weight, fc.bias, bn2.running_var"),
        ):
            with self.subTest(skip):
                out = "-".join(skip)
                arguments = ("--init", self.path("first"), "--init-skip", *skip, *FIVE, "--steps", "0")
                result = run("train", self.config, "--out", self.path(out), *arguments, ranks=2)
                self.assertEqual(result.status, 0, result)
                self.assertIn(f"starting from the weights of {self.path('first')}, but for {but_for}\n", result.out)
                names = but_for.replace(" and 2 more", ", bn2.running_mean, bn2.running_var").split(", ")
                self.assertTrue(set(names) <= trained.keys())
                expected = {name: (random if name in names else trained)[name] for name in trained}
                self.assertTrue(equal(model(self.path(out), "step-000000"), expected))
        self.assertFalse(np.array_equal(random["bn2.weight"], trained["bn2.weight"]), "else the test shows nothing")

    def test_a_pytorch_file_whose_last_layer_differs(self):
        trained = copied(model(self.train("first", "--set", "train.epochs=1"), "epoch-0001"))
        wide = {**trained, "fc.weight": np.ones((1000, 16), "<f4"), "fc.bias": np.full(1000, np.nan, "<f4")}
        save_as_pytorch(self.path("wide.safetensors"), wide)
        for name, tensors, skip in (("wide", wide, "fc"),  # of the same name
                                    ("head", {n.replace("fc.", "classifier.1."): v for n, v in wide.items()}, "fc,classifier")):
            path = self.path(name + ".safetensors")
            save_as_pytorch(path, tensors)
            out = self.train(name, "--init", path, "--init-skip", skip, "--steps", "0", *FIVE)
            started = model(out, "step-000000")
            self.assertEqual(started["fc.weight"].shape, (5, 16))
            for tensor in trained:
                self.assertEqual(np.array_equal(started[tensor], trained[tensor]), not tensor.startswith("fc."), tensor)
        # Ranks begin, and stay, equal; a run that is resumed goes on from its own weights.
        start = ("--init", self.path("wide.safetensors"), "--init-skip", "fc", *FIVE, "--check-replicas", "1")
        out = self.train("tuned", *start)
        self.assertTrue(all(record["replicas_equal"] for record in self.metrics(out)))
        done = model(out, "epoch-0002")
        halfway = self.train("halfway", *start, "--steps", "3")
        self.train("halfway", *start, "--resume")
        self.assertTrue(equal(model(halfway, "epoch-0002"), done))

    def test_a_run_goes_on_under_a_network_with_its_classes_as_a_parameter(self):
        done = model(self.train("done"), "epoch-0002")
        half = self.train("half", "--steps", "5")
        self.train("half", "--resume", "--set", "network=any.yaml")
        self.assertTrue(equal(model(half, "epoch-0002"), done))

    def test_names_that_cannot_be_skipped(self):
        self.train("first", "--steps", "0")
        init = ("--init", self.path("first"))
        self.refused(*init, "--init-skip", "fcc", expected="lpsgd: error: --init-skip: 'fcc' is the name of no layer and no "
                                                          "tensor, did you mean 'fc'? (looked for in the network and in ")
        self.refused(*init, "--init-skip", "fc,block7.*", expected="'block7.*' is the name of no layer and no tensor; tensors have "
                                                                  "names such as 'conv1.weight' (looked for")
        # Which name is wrong comes before what does not fit without it.
        self.write("other.yaml", NETWORK.replace("classes: 10", "classes: 5").replace("units: 10", "units: 5"))
        self.refused(*init, "--init-skip", "fx", "--set", f"network={self.path('other.yaml')}", expected="'fx' is the name of")
        self.refused(*init, "--init-skip", "", expected="--init-skip: is empty")
        for empty in ("fc,", ",fc"):
            self.refused(*init, "--init-skip", empty, expected="--init-skip: an empty name")
        self.refused("--init-skip", "fc", expected="--init-skip requires --init")

    def test_classes_that_differ_name_the_parameter(self):
        self.refused("--set", f"network={self.path('any.yaml')}", "--set", "network.parameters.outputs=7",
                     expected="network.classes: the network has 7 classes, data set shapes has 10; "
                              "set network.parameters.outputs=10 (with --set")


def picture(path, number):
    with open(path, "wb") as file:
        file.write(b"P6\n48 40\n255\n" + np.random.default_rng(number).integers(0, 256, 48 * 40 * 3, np.uint8).tobytes())


class Classes(Case):
    """Of a run, beside those of the data that it is evaluated or resumed on."""

    def leaves(self, name, kinds):
        for split, count in (("train", 12), ("val", 2)):
            for kind in kinds:
                os.makedirs(self.path(name, split, kind))
                for i in range(count):
                    picture(self.path(name, split, kind, f"{i}.ppm"), i)
        return ["--set", f"data={{dataset: images, root: {self.path(name)}}}"]

    def test_other_names_are_warned_of(self):
        self.write("any.yaml", ANY_CLASSES)
        two = ["--set", "network=any.yaml", "--set", "network.parameters.outputs=2"]
        ours, others = self.leaves("ours", ["lime", "oak"]), self.leaves("others", ["lime", "pine"])
        folder = self.train("run", *two, *ours, "--set", "train.epochs=1")
        warning = f"{folder}: class 1 is 'oak' in the run but 'pine' in this data: only the numbers of classes are compared"
        newest = os.path.join(folder, "checkpoints", "epoch-0001")
        for checkpoint in (folder, newest, os.path.join(newest, "model.safetensors")):
            for data, count in ((ours, 0), (others, 1), (["--set", "data={dataset: noise, image: [32, 32, 3], classes: 2}"], 0)):
                result = run("eval", self.config, "--checkpoint", checkpoint, *two, *data)
                self.assertEqual(result.status, 0, result)
                self.assertEqual(result.err.count("warning"), count, result)
                self.assertEqual(result.err.count(warning), count, result)
        result = run("train", self.config, "--out", folder, "--resume", *two, *others, ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.err.count(warning), 1, result)


class Documentation(Case):
    """The example of docs/trained-networks.md, with small data sets in place of the real ones."""

    def test_fine_tuning(self):
        with open(os.path.join(SOURCE, "docs", "trained-networks.md")) as file:
            section = re.search(r"## Fine-tuning\n(.*?)\n## ", file.read(), re.DOTALL).group(1)
        block = re.search(r"```\n(\$ lpsgd train .*?)```", section, re.DOTALL).group(1).replace("\\\n", "")
        commands = [shlex.split(line)[2:] for line in block.splitlines() if line.startswith("$ ")]
        printed = [line for line in block.splitlines() if not line.startswith("$ ")]
        self.assertEqual(len(commands), 2)
        os.mkdir(self.path("cifar-10-batches-bin"))
        rng = np.random.default_rng(1)
        for name in (*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"):
            records = rng.integers(0, 256, (60, 3073), np.uint8)
            records[:, 0] %= 10
            records.tofile(self.path("cifar-10-batches-bin", name + ".bin"))
        for split, count in (("train", 16), ("val", 2)):
            for kind in ("birch", "lime", "maple", "oak", "poplar"):
                os.makedirs(self.path("leaves", split, kind))
                for i in range(count):
                    picture(self.path("leaves", split, kind, f"{i}.ppm"), i)
        os.symlink(os.path.join(SOURCE, "configs"), self.path("configs"))
        out = ""
        for number, command in enumerate(commands):
            if number == 0:  # fewer steps, to save time
                command = [{"100": "2"}.get(word, word) for word in command]
            result = run(*command, "--set", "train.device=cpu", "--set", "train.epochs=1", "--set", "schedule.decay={}",
                         env={"LPSGD_DATA": self.dir}, cwd=self.dir)
            self.assertEqual(result.status, 0, result)
            out += result.out
        for line in printed:
            self.assertIn(line, out)
        first = model(self.path("runs", "base"), "step-000002")
        tuned = model(self.path("runs", "leaves"), "epoch-0001")
        self.assertEqual([tuned["fc.weight"].shape, first["fc.weight"].shape], [(5, 64), (10, 64)])
        with open(self.path("runs", "leaves", "environment.json")) as file:
            names = json.load(file)["classes"]
        self.assertEqual(names, ["birch", "lime", "maple", "oak", "poplar"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
