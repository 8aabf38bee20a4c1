"""train.freeze: layers that are not trained, alone and with --init, checkpoints, codecs and local SGD."""

import json
import unittest

from harness import CONFIG, Case, equal, model, run

HEAD = ("fc.weight", "fc.bias")
BODY = "[conv1, bn1, conv2, bn2]"


def freezing(layers=BODY, *more):
    return ("--set", f"train.freeze={layers}", *more)


class Freeze(Case):
    def start(self):
        """A trained run to start from, and its weights."""
        first = self.train("first", "--set", "train.epochs=1")
        return ("--init", first), model(first, "epoch-0001")

    def test_frozen_tensors_stay_and_are_not_sent(self):
        init, given = self.start()
        for name, more in (
            ("qsgd", ()),
            ("onebit", ("--set", "exchange.codec={kind: onebit, bucket: 64}", "--set", "exchange.min_elements=0")),
            ("none", ("--set", "exchange.codec=none")),
            ("three", ()),
            ("alone", ("--set", "optimizer.clip_norm=1")),
            ("adam", ("--set", "optimizer={kind: adamw, weight_decay: 0.1}", "--set", "schedule.lr=0.001")),
            ("local", ("--set", "sync={kind: local_sgd, steps: 2}")),
            ("block", ("--set", "sync={kind: hierarchical_local_sgd, steps: 2, ranks_per_block: 2}")),
        ):
            with self.subTest(name):
                ranks = {"alone": 1, "three": 3, "block": 4}.get(name, 2)
                out = self.train(name, *init, *freezing(BODY, *more), ranks=ranks)
                trained = model(out, "epoch-0002")
                self.assertEqual(trained.keys(), given.keys())
                for tensor in given:
                    # The running statistics of frozen layers, too.
                    self.assertEqual(equal({0: trained[tensor]}, {0: given[tensor]}), tensor not in HEAD, tensor)
                if name in ("qsgd", "onebit", "none"):
                    values = sum(given[tensor].size for tensor in HEAD)
                    for record in self.metrics(out):
                        self.assertEqual(record["bytes_fp32"], 4 * 2 * (ranks - 1) * 4 * values, record)  # 4 steps
                    shown = json.loads(run("show", self.config, "--json", *freezing(BODY, *more)).out)
                    self.assertEqual(shown["parameters"], values)
                    self.assertEqual(record["bytes_sent"], 4 * 2 * (ranks - 1) * shown["wire_bytes"])

    def test_first_layers(self):
        init, given = self.start()
        result = run("train", self.config, "--out", self.path("out"), *init, *freezing("['{conv,bn}1']"), ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertIn("tiny | 1354 parameters, 232 more are frozen | 2 ranks", result.out)
        trained = model(self.path("out"), "epoch-0002")
        for tensor in given:
            self.assertEqual(equal({0: trained[tensor]}, {0: given[tensor]}), tensor.split(".")[0] in ("conv1", "bn1"), tensor)
        self.assertTrue(all(record["replicas_equal"] for record in self.metrics(self.path("out"))))

    def test_a_resumed_run_goes_on_to_the_same_bytes(self):
        init, _ = self.start()
        for name, more in (("every", ()), ("local", ("--set", "sync={kind: local_sgd, steps: 3}"))):
            start = (*init, *freezing("[conv1, bn1]", *more))
            done = model(self.train(name, *start), "epoch-0002")
            halfway = self.train(name + "_halfway", *start, "--steps", "5")
            self.train(name + "_halfway", *start, "--resume")
            self.assertTrue(equal(model(halfway, "epoch-0002"), done), name)

    def test_other_layers_cannot_be_frozen_in_a_resumed_run(self):
        out = self.train("out", *freezing("[conv1, bn1]"), "--steps", "5")
        for layers, expected in (("[conv1]", "was written with another train.freeze or 'trained': it did not train 'bn1.weight'"),
                                 (BODY, "was written with another train.freeze or 'trained': it trained 'conv2.weight'")):
            result = run("train", self.config, "--out", out, "--resume", *freezing(layers), ranks=2)
            self.assertEqual(result.status, 2, result)
            self.assertIn(expected, result.err)
            self.assertEqual(result.err.count("lpsgd: error:"), 1, result)

    def test_trained_networks_are_used_whole(self):
        init, _ = self.start()
        out = self.train("out", *init, *freezing())
        record = self.metrics(out)[-1]
        for config in (self.config, self.path("out", "config.yaml")):
            found = json.loads(run("eval", config, "--checkpoint", out, "--json").out)
            self.assertAlmostEqual(found["val_loss"], record["val_loss"], 6)
            self.assertEqual(found["val_top1"], record["val_top1"])
        again = self.train("again", "--init", out, "--steps", "0")  # without train.freeze
        self.assertTrue(equal(model(again, "step-000000"), model(out, "epoch-0002")))

    def test_what_cannot_be_frozen(self):
        for layers, expected in (
            ("[conv7]", "train.freeze: 'conv7' is the name of no layer, did you mean 'conv1'?"),
            ("[fc]", "train.freeze: 'fc' cannot be frozen, because 'bn2' in front of it is trained"),
            ("[conv1.weight]", "train.freeze: 'conv1.weight' is one tensor: layers are frozen as a whole, here 'conv1'"),
            ("['*']", "train.freeze: no layer is left to train"),
            ("conv1", "train.freeze: expected a list of names, such as [conv1, layer1]"),
            ("['']", "train.freeze: a name is empty"),
        ):
            for command in (("train", self.config, "--out", self.path("out")), ("show", self.config)):
                result = run(*command, *freezing(layers))
                self.assertEqual(result.status, 2, result)
                self.assertIn(f"lpsgd: error: --set train.freeze={layers}: {expected}", result.err)
                self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        config = self.write("frozen.yaml", CONFIG.replace("epochs: 2", "epochs: 2, freeze: [fc]"))
        result = run("show", config)
        self.assertIn(f"lpsgd: error: {config}:3:28: train.freeze: 'fc' cannot be frozen", result.err)

    def test_what_stays_random_is_named(self):
        init, _ = self.start()
        for number, (more, expected) in enumerate((
            ((), "frozen tensors keep their random initial values: conv1.weight, bn1.weight, bn1.bias, conv2.weight and 2 more "
                 "(--init gives them others)"),
            ((*init, "--init-skip", "fc,bn2.bias"), "frozen tensors keep their random initial values: bn2.bias (--init-skip"),
            ((*init, "--init-skip", "fc"), None),
        )):
            out = ("--out", self.path(f"out{number}"), "--steps", "2")
            for arguments in (out, (*out, "--resume")):
                result = run("train", self.config, *arguments, *freezing(), *more, ranks=2)
                self.assertEqual(result.status, 0, result)
                if expected and arguments == out:
                    self.assertIn("warning: train.freeze: " + expected, result.err)
                else:
                    self.assertNotIn("warning", result.err)

    def test_frozen_weights_that_differ_are_found(self):
        flip = ("--set", "exchange.inject={step: 3, rank: 1, tensor: conv1.weight, element: 17, bit: 21}")
        for sync in ((), ("--set", "sync={kind: local_sgd, steps: 2}")):
            out = self.train("out" + str(len(sync)), *freezing(BODY, *flip), *sync)
            self.assertEqual([record["replicas_equal"] for record in self.metrics(out)], [False, False])
        result = run("train", self.config, "--out", self.path("new"), *freezing(BODY, *flip), "--check-replicas", "1", ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertIn("the replicas are not equal: in the frozen weights of 'conv1.weight'", result.err)
        self.assertIn("from element 17 on; 1 of 6 tensors differ", result.err)

    def test_a_rule_of_frozen_tensors_has_no_effect(self):
        rule = ("--set", "exchange.rules=[{name: conv1.weight, codec: none}]")
        expected = "it matches only frozen tensors, such as 'conv1.weight', which are not exchanged"
        self.assertIn(expected, run("show", self.config, *freezing(BODY, *rule)).err)
        self.assertNotIn("exchange.rules", run("show", self.config, *rule).err)

    def test_show_marks_them(self):
        shown = run("show", self.config, *freezing())
        self.assertIn("tiny: 170 parameters, 1416 more are frozen", shown.out)
        self.assertRegex(shown.out, r"\nbn2 .* frozen\n")
        self.assertNotRegex(shown.out, r"\nfc .* frozen\n")
        self.assertNotIn("conv1.weight", shown.out)
        self.assertNotIn("frozen", run("show", self.config).out)


if __name__ == "__main__":
    unittest.main()
