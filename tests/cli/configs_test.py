"""Every file in configs/ is one that `show` takes, and every network of the studies has an experiment."""

import glob
import json
import os
import re
import shlex
import unittest

from harness import SOURCE, Case, run

CONFIGS = os.path.join(SOURCE, "configs")
os.environ.pop("LPSGD_DATA", None)  # `show` needs no data


class Configs(Case):
    def experiments(self):
        return sorted(glob.glob(os.path.join(CONFIGS, "*.yaml")) + glob.glob(os.path.join(CONFIGS, "study", "*.yaml"))
                      + glob.glob(os.path.join(CONFIGS, "local-sgd", "*.yaml")))

    def test_show_takes_every_experiment(self):
        shown = set()
        for path in self.experiments():
            with self.subTest(os.path.relpath(path, CONFIGS)):
                result = run("show", path, "--json")
                self.assertEqual(result.status, 0, result)
                tree = json.loads(result.out)
                self.assertEqual(sum(t["elements"] for t in tree["tensors"]), tree["parameters"])
                self.assertEqual(sum(t["wire_bytes"] for t in tree["tensors"]), tree["wire_bytes"])
                shown.add(tree["network"])
                with open(path) as file:
                    self.assertTrue(file.readline().startswith("# "), "the first line says what it is")
        networks = {os.path.basename(p)[: -len(".yaml")] for p in glob.glob(os.path.join(CONFIGS, "networks", "*.yaml"))}
        self.assertEqual(shown, networks, "each network has an experiment")

    def test_show_says_what_training_holds(self):
        path = self.write("small.yaml", "name: small\ninput: [8, 8, 4]\nclasses: 4\nlayers:\n"
                          "  - {conv: c1, filters: 16, kernel: 3, pad: 1}\n  - {relu: r}\n  - average_pool\n  - flatten\n"
                          "  - {dense: fc, units: 4}\n")
        tree = json.loads(run("show", path, "--json").out)
        # Where most is in use: the input; the convolution's output and its gradient; the logits and the mean's gradient.
        self.assertEqual(tree["activation_bytes"], 8 * 8 * 4 * 4 + 2 * 8 * 8 * 16 * 4 + 2 * 64)
        # Of the tensors each begins at a multiple of 64 bytes: 576, 16, 64 and 4 values.
        self.assertEqual(tree["parameter_bytes"], 4 * (576 + 16 + 64 + 16))
        self.assertIn("training holds 9344 bytes of layers' outputs and their gradients for each sample", run("show", path).out)

    def test_show_needs_no_data(self):
        network = "name: small\ninput: [8]\nclasses: 4\nlayers: [{dense: fc, units: 4}]\n"
        self.write("small.yaml", network)
        without = self.write("without.yaml", "network: small.yaml\nexchange: {codec: {kind: qsgd, bits: 2}, min_elements: 0}\n")
        tree = json.loads(run("show", without, "--json").out)
        self.assertEqual([(t["name"], t["codec"]["kind"] if isinstance(t["codec"], dict) else t["codec"]) for t in tree["tensors"]],
                         [("fc.weight", "qsgd"), ("fc.bias", "qsgd")])
        result = run("show", without, "--set", "data.train_samples=9")
        self.assertEqual((result.status, result.err), (0, ""))
        result = run("train", without)
        self.assertEqual((result.status, result.out), (2, ""))
        self.assertIn("without.yaml:1:1: data: the key 'dataset' is missing", result.err)

    def test_noise_has_the_recipe_of_the_study(self):
        def recipe(path):
            with open(path) as file:
                return [line for line in file.read().splitlines() if line.split(":")[0] in ("optimizer", "schedule")]

        noise = set(glob.glob(os.path.join(CONFIGS, "*_noise.yaml"))) - {os.path.join(CONFIGS, "vit_b_16_noise.yaml")}
        self.assertEqual(len(noise), 5)
        for path in noise:
            study = os.path.join(CONFIGS, "study", os.path.basename(path).replace("_noise", ""))
            self.assertEqual(recipe(path), recipe(study), path)
            self.assertEqual(len(recipe(path)), 2)

    def test_the_studys_codecs_and_primitives(self):
        with open(os.path.join(CONFIGS, "study", "README.md")) as file:
            rows = [shlex.split(cell) for row in file if row.startswith("| ") for cell in re.findall("`(--set [^`]*)`", row)]
        self.assertEqual(len(rows), 8)
        for options in rows:
            with self.subTest(options):
                result = run("show", os.path.join(CONFIGS, "study", "resnet110.yaml"), *options)
                self.assertEqual(result.status, 0, result)

    def test_the_local_sgd_studys_runs(self):
        folder = os.path.join(CONFIGS, "local-sgd")
        with open(os.path.join(folder, "README.md")) as file:
            rows = [row for row in file if row.startswith("| ") and ".yaml`" in row]
        self.assertEqual(len(rows), 27)
        files = set()
        for row in rows:
            with self.subTest(row):
                file = re.search("`([^`]*\\.yaml)`", row).group(1)
                files.add(file)
                options = [word for text in re.findall("`(--set [^`]*)`", row) for word in shlex.split(text)]
                result = run("show", os.path.join(folder, file), *options, "--json")
                self.assertEqual(result.status, 0, result)
        self.assertLessEqual({os.path.basename(f) for f in glob.glob(os.path.join(folder, "*.yaml"))} - files, {"short.yaml"})

    def test_show_takes_every_network(self):
        for path in sorted(glob.glob(os.path.join(CONFIGS, "networks", "*.yaml"))):
            with self.subTest(os.path.basename(path)):
                result = run("show", path, "--json")
                self.assertEqual(result.status, 0, result)
                self.assertEqual(json.loads(result.out)["network"], os.path.basename(path)[: -len(".yaml")])


if __name__ == "__main__":
    unittest.main()
