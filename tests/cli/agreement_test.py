"""Ranks that were started differently: another configuration, command or option, or other data. All end with 2."""

import json
import os
import re
import subprocess
import unittest

from harness import CONFIG, LPSGD, MPIRUN, NETWORK, Case, Result, run

# A value other than that of the test's configuration, for keys whose schema does not name one.
OTHER = {
    "network": "other_network.yaml",
    "checkpoint.keep": "5",
    "data.augment": "none",
    "data.dataset": "noise",
    "data.evaluate": "{resize: 40}",
    "data.image": "[8, 8, 3]",
    "data.mean": "[0.1, 0.1, 0.1]",
    "data.std": "[0.5, 0.5, 0.5]",
    "data.speech.held_out": "[x]",
    "exchange.codec": "onebit",
    "exchange.collective": "simulated",
    "exchange.inject": "{step: 3}",
    "exchange.link.bandwidth": "1Gbit",
    "exchange.link.burst": "1MB",
    "exchange.link.latency": "5us",
    "exchange.min_elements": "7",
    "exchange.timeout": "5min",
    "exchange.timeout_outside_step": "1h",
    "exchange.rules": "[{kind: conv, codec: none}]",
    "optimizer.lars_exclude": "[bias]",
    "optimizer.no_decay": "[bias]",
    "schedule.decay": "{1: 0.2}",
    "schedule.momentum": "{1: 0.5}",
    "sync.from": "3",
    "sync.ranks_per_block": "2",
    "train.batch_size": "48",
    "train.device": "auto",
    "train.epochs": "3",
    "train.threads": "2",
}
# Keys below those of the schema.
INNER = {"data.augment.pad": "3", "exchange.codec.bits": "8", "exchange.codec.norm": "l2",
         "exchange.inject.step": "3", "network.parameters.activation": "tanh"}


def other_value(key, schema):
    """None if there is only one value."""
    if key in OTHER:
        return OTHER[key]
    if "enum" in schema:
        return next((str(value).lower() for value in schema["enum"] if value not in (schema.get("default"), "auto")), None)
    if schema["type"] == "boolean":
        return str(not schema["default"]).lower()
    if schema["type"] == "string":
        return "elsewhere"
    if schema["type"] == "integer":
        return str(schema["default"] + 1)
    if schema["type"] == "number":
        return "0.125"
    raise AssertionError(f"{key}: give a value in OTHER")


def keys(schema, prefix=""):
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name, inner
        if prefix + name not in OTHER:
            yield from keys(inner, prefix + name + ".")


def apart(first, second, programs=(LPSGD, LPSGD)):
    """Two ranks with arguments of their own."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [MPIRUN, "-n", "1", programs[0], *first, ":", "-n", "1", programs[1], *second]
    return Result(subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment))


class Disagreement(Case):
    def setUp(self):
        super().setUp()
        self.write("other_network.yaml", NETWORK.replace("filters: 16", "filters: 12"))
        self.start = ["train", self.config, "--out", self.path("out")]

    def refused(self, result, *expected):
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        for text in expected:
            self.assertIn(text, result.err)
        self.assertFalse(os.path.exists(self.path("out")), "nothing may start")

    def test_every_key_of_the_configuration(self):
        schema = json.loads(run("help", "--schema").out)
        changes = {key: other_value(key, inner) for key, inner in keys(schema)
                   if key in OTHER or "properties" not in inner}
        self.assertGreater(len(changes), 60)
        for key, value in {**changes, **INNER}.items():
            if value is None:
                continue
            with self.subTest(key=key, value=value):
                self.refused(apart(self.start, [*self.start, "--set", f"{key}={value}"]), key)

    def test_the_message_has_both_values(self):
        result = apart(self.start, [*self.start, "--set", "schedule.lr=0.1", "--set", "train.seed=4"])
        self.refused(result, "lpsgd: error: the ranks disagree on train.seed: 3 on rank 0, 4 on rank 1; also on schedule.lr\n")

    def test_options(self):
        for option in (["--steps", "1"], ["--resume"], ["--trace", self.path("trace")]):
            with self.subTest(option=option):
                self.refused(apart(self.start, [*self.start, *option]), f"the ranks disagree on {option[0]}: ")
        self.refused(apart(self.start, ["train", self.config, "--out", self.path("elsewhere")]), "the ranks disagree on --out")
        result = apart([*self.start, "--steps", "1"], [*self.start, "--steps", "1", "--progress", "none"])
        self.assertEqual(result.status, 0, result)

    def test_commands(self):
        for other in (["show", self.config], ["version"], ["--help"], ["bench", "exchange"]):
            for order in ((self.start, other), (other, self.start)):
                with self.subTest(order=order):
                    name = {"--help": "--help or --version"}.get(other[0], " ".join(w for w in other if w != self.config))
                    values = [name, "train"] if order[0] == other else ["train", name]
                    self.refused(apart(*order), "the ranks disagree on the command: "
                                                f"{values[0]} on rank 0, {values[1]} on rank 1")
        self.refused(apart(self.start, ["trian"]), "rank 1: no command 'trian'")
        result = run("show", self.config, ranks=2)
        self.assertEqual(result.status, 0, result)

    def images(self, root, shade):
        for split in ("train", "val"):
            for number in range(24):
                folder = self.path(root, split, "ab"[number % 2])
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"{number:02}.ppm"), "wb") as file:
                    file.write(b"P6\n32 32\n255\n" + bytes([shade if number == 5 else number]) * (32 * 32 * 3))

    def test_builds(self):
        """The same program, with the revision that it was built from changed in a copy."""
        revision = re.search(r"\(([0-9a-f]{12})", run("version").out)
        if not revision:
            self.skipTest("the program was built outside a repository")
        with open(LPSGD, "rb") as file:
            program = file.read()
        self.assertGreater(program.count(revision[1].encode()), 0)
        other = self.path("lpsgd")
        with open(other, "wb") as file:
            file.write(program.replace(revision[1].encode(), b"0123456789ab"))
        os.chmod(other, 0o755)
        self.assertIn("(0123456789ab", subprocess.run([other, "version"], capture_output=True, text=True, timeout=30).stdout)
        for programs in ((LPSGD, other), (other, LPSGD)):
            result = apart(self.start, self.start, programs)
            self.refused(result, "lpsgd: error: the ranks disagree on the revision of lpsgd: ", f"{revision[1]}", "0123456789ab")

    def test_data(self):
        self.write("two.yaml", NETWORK.replace("classes: 10", "classes: 2").replace("units: 10", "units: 2"))
        config = self.write("images.yaml", CONFIG.replace("tiny_network", "two").replace(
            "dataset: shapes", "dataset: images").replace("{pad: 2, mirror: true}", "none").replace(", train_samples: 96, test_samples: 50", ""))
        for root, shade in (("here", 1), ("mounted", 1), ("other", 2)):
            self.images(root, shade)
        start = ["train", config, "--out", self.path("out"), "--steps", "1", "--set"]
        here = [*start, f"data.root={self.path('here')}"]
        self.refused(apart(here, [*start, f"data.root={self.path('other')}"]),
                     "the ranks disagree on the checksum of the content of the training data: ",
                     "also on the checksum of the content of the test data")
        result = apart(here, [*start, f"data.root={self.path('mounted')}"])
        self.assertEqual(result.status, 0, result)


if __name__ == "__main__":
    unittest.main()
