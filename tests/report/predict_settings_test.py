"""lpsgd predict CONFIG reads a configuration as the program does: --set, environment variables, network files. 77 is
a skip."""

import json
import os
import unittest
from unittest import mock

from harness import SOURCE, FolderTest, UserError
from predict_harness import TrainedTest, predict

from costmodel import settings

CONFIG = f"""network: {SOURCE}/configs/networks/logistic.yaml
data: {{dataset: shapes, root: "${{NOWHERE}}/x"}}
train: {{batch_size: "${{BATCH}}", seed: "${{NOWHERE}}", device: cpu, threads: 1}}
schedule: {{decay: {{4: 0.1}}}}
exchange: {{overlap: '${{OVERLAP}}', codec: "${{CODEC}}"}}
sync: {{kind: local_sgd, steps: "${{STEPS}}"}}
"""
SET = {"BATCH": "64", "OVERLAP": "false", "CODEC": "fp16", "STEPS": "4"}


class Read(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = str(self.write("run.yaml", CONFIG))
        patch = mock.patch.dict(os.environ, SET)
        patch.start()
        self.addCleanup(patch.stop)
        os.environ.pop("NOWHERE", None)

    def test_variables_have_their_values_and_types(self):
        found = settings.read(self.path)
        self.assertEqual(found["train"]["batch_size"], 64)
        self.assertIs(found["exchange"]["overlap"], False)
        self.assertEqual(found["exchange"]["codec"], "fp16")
        self.assertEqual(found["sync"], {"kind": "local_sgd", "steps": 4})
        self.assertEqual(found["data"]["root"], "${NOWHERE}/x")  # not needed

    def test_plain_strings_have_no_variables(self):
        path = str(self.write("plain.yaml", CONFIG.replace('"${NOWHERE}/x"', "$BATCH")))
        self.assertEqual(settings.read(path)["data"]["root"], "$BATCH")

    def test_a_variable_that_is_read_and_not_set(self):
        for name, key, line in (
            ("BATCH", "train.batch_size", 3),
            ("OVERLAP", "exchange.overlap", 5),
            ("STEPS", "sync.steps", 6),
        ):
            with mock.patch.dict(os.environ):
                del os.environ[name]
                said = f"^{self.path}:{line}(:[0-9]+)?: {key}: environment variable {name} is not set$"
                with self.assertRaisesRegex(UserError, said):  # of the program, where it has no default
                    settings.read(self.path)

    def test_overrides(self):
        found = settings.read(
            self.path,
            (
                "train.batch_size=32",
                "exchange.link.latency=1ms",
                "exchange.rules=[{kind: conv, codec: none}]",
                "exchange.rules.0.codec={kind: qsgd}",
                "exchange.codec=none",
                "exchange.codec.kind=sign",
                'sync.steps="${BATCH}"',
                "data.augment=none",
                "train.batch_size=16",
            ),
        )
        self.assertEqual(found["train"]["batch_size"], 16)
        self.assertEqual(found["exchange"]["link"], {"latency": "1ms"})
        self.assertEqual(found["exchange"]["rules"], [{"kind": "conv", "codec": {"kind": "qsgd"}}])
        self.assertEqual(found["exchange"]["codec"], {"kind": "sign"})
        self.assertEqual(found["sync"]["steps"], 64)

    def test_what_the_program_refuses(self):
        for override, text in (
            ("train.batch=3", "train.batch"),
            ("train.batch_size=many", "train.batch_size"),
            ("nothing", "expected key=value"),
            ("exchange.rules.7.codec=none", "exchange.rules: expected a list"),
            ("network.parameters.width=3", "has no parameter 'width'"),
            ("exchange.codec={kind: onebit", "--set"),
        ):
            words = (self.path, "--step-seconds", "1", "--link", "1Gbit,50us", "--set", override)
            status, out, err = predict(*words)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)

    def test_a_network_file_has_defaults(self):
        path = str(SOURCE / "configs" / "networks" / "logistic.yaml")
        found = settings.read(path, ("train.batch_size=16", "sync={kind: local_sgd, steps: 2}"))
        self.assertEqual(found, {"train": {"batch_size": 16}, "sync": {"kind": "local_sgd", "steps": 2}})


class Command(TrainedTest):
    def test_a_variable_gives_what_its_value_gives(self):
        plain = self.predicted("--step-seconds", "0.01")
        text = self.config.read_text()
        text = text.replace("batch_size: 32", 'batch_size: "${BATCH}"').replace("bits: 4", 'bits: "${B}"')
        self.config.write_text(text)
        with mock.patch.dict(os.environ, {"BATCH": "32", "B": "4"}):
            self.assertEqual(self.predicted("--step-seconds", "0.01"), plain)
        with mock.patch.dict(os.environ, {"BATCH": "8", "B": "4"}):
            self.assertEqual(self.predicted("--step-seconds", "0.01")["rows"][0]["local_batch"], 4)

    def test_overrides_reach_network_batch_and_codec(self):
        words = ("--step-seconds", "0.01", "--set", "train.batch_size=8", "--set", "exchange.codec=fp16")
        found = self.predicted(*words, "--set", "network.layers.0.filters=16")
        self.assertEqual(found["parameters"], 16 * 27 + 16 + 16 * 64 * 10 + 10)
        self.assertEqual([(row["codec"], row["local_batch"]) for row in found["rows"]], [("none", 4), ("fp16", 4)])
        run = self.train("wide", "network.layers.0.filters=16")
        status, _, err = predict(str(self.config), "--run", str(run), "--link", "1Gbit,50us")
        self.assertEqual((status, err.count("\n")), (2, 1))
        self.assertEqual(
            self.predicted("--run", str(run), "--set", "network.layers.0.filters=16")["parameters"], found["parameters"]
        )

    def test_overrides_reach_what_is_measured_here(self):
        words = (str(self.config), "--ranks", "2", "--link", "1Gbit,50us", "--json", "--set", "train.batch_size=64")
        narrow, wide = (
            json.loads(predict(*words, "--set", f"network.layers.0.filters={n}")[1])["rows"][0] for n in (1, 512)
        )
        self.assertEqual((narrow["local_batch"], wide["local_batch"]), (32, 32))
        self.assertGreater(wide["computation_s"], 5 * narrow["computation_s"])


if __name__ == "__main__":
    unittest.main()
