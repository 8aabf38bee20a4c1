"""Every file in configs/ is one that `show` takes, and every network of the studies has an experiment."""

import glob
import json
import os
import unittest

from harness import SOURCE, Case, run

CONFIGS = os.path.join(SOURCE, "configs")
os.environ.pop("LPSGD_DATA", None)  # `show` needs no data


class Configs(Case):
    def test_show_takes_every_experiment(self):
        shown = set()
        for path in sorted(glob.glob(os.path.join(CONFIGS, "*.yaml"))):
            with self.subTest(os.path.basename(path)):
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

    def test_imagenet_and_noise_have_the_same_recipe(self):
        def recipe(path):
            with open(path) as file:
                lines = file.read().splitlines()
            return [line for line in lines if line.split(":")[0] in ("network", "train", "optimizer", "schedule", "exchange")]

        pairs = sorted(glob.glob(os.path.join(CONFIGS, "*_noise.yaml")))
        self.assertEqual(len(pairs), 5)
        for noise in pairs:
            self.assertEqual(recipe(noise), recipe(noise.replace("_noise", "_imagenet")), noise)
            self.assertEqual(len(recipe(noise)), 5)

    def test_show_takes_every_network(self):
        for path in sorted(glob.glob(os.path.join(CONFIGS, "networks", "*.yaml"))):
            with self.subTest(os.path.basename(path)):
                result = run("show", path, "--json")
                self.assertEqual(result.status, 0, result)
                self.assertEqual(json.loads(result.out)["network"], os.path.basename(path)[: -len(".yaml")])


if __name__ == "__main__":
    unittest.main()
