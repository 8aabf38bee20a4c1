"""lpsgd predict CONFIG with local steps: the mean step, runs that were trained so, options, mistakes. 77 is a
skip.
"""

import json
import math
import unittest

from harness import SOURCE
from predict_harness import TrainedTest, predict

import program
import synchronisation
from costmodel import local_steps, pipeline, plan, run_folder, scaling

LOCAL = "{kind: local_sgd, steps: 4}"
BLOCKS = "{kind: hierarchical_local_sgd, steps: 2, block_steps: 4, ranks_per_block: 2}"


class MeanStep(unittest.TestCase):
    """Of AlexNet's layers, which compute for 3.1 s; coding and the host cost nothing."""

    HOST = pipeline.Host(0.0, 0.0, 0.0, 0.0)
    LINK = pipeline.Link(1e10, 1e-3)

    def setUp(self):
        self.shown = program.show(str(SOURCE / "configs" / "alexnet_noise.yaml"))
        self.computing = scaling.Computing(((8, 1.0, 2.0, 0.0),), 0.1, "")

    def step(self, ranks, exchanges, blocks=None, computing=None, codec=None):
        codec, computing = codec or scaling.codec_of(self.shown), computing or self.computing
        given = (self.shown, codec, ranks, 8, computing, self.LINK, self.HOST, True, plan.PACK_BYTES)
        return local_steps.mean_step(*given, exchanges, blocks)

    def end(self, ranks, link):
        """Of an exchange that nothing hides."""
        units = plan.make_plan(plan.planned(self.shown), ranks)
        return pipeline.simulate(units, [0.0] * len(units), ranks, link, self.HOST).end

    def test_computing_and_a_share_of_the_exchange(self):
        for h in (1, 4, 100):
            step = self.step(4, synchronisation.Exchanges(100, 0, 0, 100 // h))
            exchange = self.end(4, self.LINK)
            self.assertAlmostEqual(step.exposed, exchange / h)
            self.assertAlmostEqual(step.computation, 3.1 + 0.14 / h)  # differences and their mean
            self.assertAlmostEqual(step.seconds, step.computation + step.exposed)
            self.assertAlmostEqual(step.exchanges, 1 / h)
            every = self.step(4, synchronisation.EVERY_STEP)
            self.assertAlmostEqual(step.bytes_per_rank, every.bytes_per_rank / h)
            self.assertAlmostEqual(step.messages, every.messages / h)

    def test_frozen_layers_have_no_backward(self):
        """All but fc7 and fc8, whose tensors are ready after their shares of the two layers' FLOPs."""
        frozen = "train.freeze=['conv?', fc6]"
        shown = program.show(str(SOURCE / "configs" / "alexnet_noise.yaml"), (frozen,))
        self.assertEqual({t["name"].split(".")[0] for t in shown["tensors"]}, {"fc7", "fc8"})
        flops = {layer["name"]: layer["flops"] for layer in shown["layers"]}
        units = [plan.Unit(0, 1, 1, (t,)) for t in reversed(range(len(shown["tensors"])))]
        times = scaling.ready_times(shown, units, 1.0, 2.0, True)
        share = flops["fc8"] / (flops["fc7"] + flops["fc8"])
        for found, expected in zip(times, (1 + 2 * share, 1 + 2 * share, 3.0, 3.0)):
            self.assertAlmostEqual(found, expected)

    def test_only_the_backward_of_the_last_micro_batch_hides_communication(self):
        words = ("train.micro_batches=4",)
        shown = program.show(str(SOURCE / "configs" / "alexnet_noise.yaml"), words)
        units = [plan.Unit(0, 1, 1, (t,)) for t in reversed(range(len(shown["tensors"])))]
        one = scaling.ready_times({**shown, "micro_batches": 1}, units, 1.0, 2.0, True)
        self.assertEqual(one[-1], 3.0)
        for whole, last in zip(one, scaling.ready_times(shown, units, 1.0, 2.0, True)):
            self.assertAlmostEqual(3.0 - last, (3.0 - whole) / 4)

    def test_it_is_not_hidden_behind_backward(self):
        every = self.step(4, synchronisation.EVERY_STEP)
        self.assertLess(every.exposed, 0.2 * self.end(4, self.LINK))
        self.assertGreater(self.step(4, synchronisation.Exchanges(2, 0, 0, 1)).exposed, every.exposed)

    def test_steps_that_exchange_gradients_first(self):
        every = self.step(4, synchronisation.EVERY_STEP)
        local = self.step(4, synchronisation.Exchanges(40, 0, 0, 10))
        both = self.step(4, synchronisation.Exchanges(100, 60, 0, 10))
        for name in local_steps.SUMMED:
            parts = 0.6 * getattr(every, name) + 0.4 * getattr(local, name)
            self.assertAlmostEqual(getattr(both, name), parts, delta=1e-9 * abs(parts), msg=name)

    def test_blocks(self):
        fast = pipeline.Link(1e12, 0.0)
        found = synchronisation.Exchanges(80, 0, 30, 10)
        step = self.step(4, found, local_steps.Blocks(2, fast))
        self.assertAlmostEqual(step.exposed, (3 * self.end(2, fast) + self.end(4, self.LINK)) / 8)
        wire = self.shown["wire_bytes"]
        self.assertAlmostEqual(step.bytes_per_rank, wire * (3 * 2 * 1 / 2 + 2 * 3 / 4) / 8, delta=10)
        found = synchronisation.Exchanges(8, 0, 8, 0)
        alone = self.step(2, found, local_steps.Blocks(1), codec="{kind: none}")
        self.assertEqual((alone.exposed, alone.bytes_per_rank), (0, 0))

    def test_ranks_wait_once_in_an_exchange(self):
        found = synchronisation.Exchanges(100, 0, 0, 25)
        plain = self.step(4, found)
        waiting = scaling.with_waiting(self.computing, [(plain.seconds + 0.1, plain)])
        again = self.step(4, found, computing=waiting)
        self.assertAlmostEqual(again.waiting, 0.1, delta=0.1 * 0.02)
        every = self.step(4, synchronisation.EVERY_STEP, computing=waiting)
        self.assertAlmostEqual(every.waiting, 4 * again.waiting, delta=0.4 * 0.02)
        none = self.step(4, synchronisation.Exchanges(9, 0, 0, 0))
        self.assertEqual(scaling.with_waiting(self.computing, [(99.0, none)]).waits(4), 0)


class Runs(TrainedTest):
    def test_exchanges_of_a_trained_run(self):
        for name, ranks, sync in (
            ("every", 2, "{kind: every_step}"),
            ("local", 2, "{kind: local_sgd, steps: 5, warmup: linear, warmup_epochs: 2}"),
            ("blocks", 4, BLOCKS),
            ("node", 4, BLOCKS.replace("ranks_per_block: 2", "ranks_per_block: node")),
        ):
            with self.subTest(sync):
                folder = self.train(name, "train.epochs=3", f"exchange.ranks={ranks}", f"sync={sync}")
                run = run_folder.read(str(folder))
                records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual(run.exchanges.steps, 16)
                if name != "every":
                    self.assertEqual(run.exchanges.total, sum(r["synchronisations"] for r in records[1:]))
                    self.assertEqual(run.block, {"blocks": 2, "node": 4}.get(name, run.block))
                self.assertEqual(len(self.predicted("--run", str(folder))["rows"]), 2)

    def test_a_way_that_the_program_has_written(self):
        """With all its keys, of which the usual ones are not told."""
        for sync, label in (
            (LOCAL, "local SGD, H = 4"),
            (BLOCKS, "hierarchical local SGD, H = 2 x 4, ranks per block 2"),
            ("{kind: block_momentum, steps: 3}", "block momentum, H = 3, momentum 0.9"),
        ):
            name = label.split(",")[0].replace(" ", "_")
            folder = self.train(name, "train.epochs=1", f"sync={sync}")
            self.config = folder / "config.yaml"
            found = self.predicted("--run", str(folder))
            self.assertEqual([row["sync"] for row in found["rows"][:2]], ["every_step", label])
            self.config = self.root / "tiny.yaml"

    def test_rates_of_coding_are_those_of_the_exchanges(self):
        parts = dict.fromkeys(run_folder.PARTS, 0.0)
        for exchanges, seconds in (
            (synchronisation.Exchanges(40, 40), (1.25, 2.0)),
            (synchronisation.Exchanges(40, 0, 0, 10), (1.25 / 4, 0.5)),
            (synchronisation.Exchanges(40, 0, 30, 10), ((30 * 1.5 + 10 * 1.25) / 40, 2.0)),
        ):
            run = run_folder.Measured(
                "r", 4, 8, {}, {**parts, "encode": seconds[0], "decode": seconds[1]}, exchanges, 2
            )
            for rate in scaling.measured_host(run, 1000):
                self.assertAlmostEqual(rate, 1e-3)


class Command(TrainedTest):
    def setUp(self):
        super().setUp()
        self.words = (str(self.config), "--step-seconds", "0.001", "--link", "1Mbit,1ms", "--codecs", "qsgd4")

    def test_the_configured_way_beside_every_step(self):
        self.config.write_text(self.config.read_text() + f"sync: {LOCAL}\n")
        status, out, err = predict(*self.words, "--ranks", "2,4", "--json")
        self.assertEqual((status, err), (0, ""))
        found = json.loads(out)
        self.assertEqual(
            [(r["ranks"], r["codec"], r["sync"], r["exchanges_per_step"]) for r in found["rows"]],
            [
                (k, codec, sync, share)
                for k in (2, 4)
                for codec in ("none", "qsgd4")
                for sync, share in (("every_step", 1), ("local SGD, H = 4", 1 / 4))
            ],
        )
        self.assertAlmostEqual(found["rows"][1]["speedup_over_none"], 4, delta=0.3)
        self.assertTrue(
            math.isclose(found["rows"][1]["bytes_per_rank"] * 4, found["rows"][0]["bytes_per_rank"])
        )
        verdict = found["verdicts"][0]
        self.assertRegex(verdict, r"^2 ranks: none, local SGD, H = 4 pays: [34]\.\d\d times none's ")
        out = predict(*self.words, "--ranks", "2")[1]
        self.assertIn("\n    2  qsgd4, local SGD, H = 4             0.250 ", out)

    def test_ways_that_are_given(self):
        words = ("--ranks", "2,3,4", "--weak", "--json", "--sync", BLOCKS, "--sync", "every_step")
        found = json.loads(predict(*self.words, *words, "--sync", LOCAL)[1])
        ways = [(r["ranks"], r["sync"]) for r in found["rows"] if r["codec"] == "none"]
        blocks = "hierarchical local SGD, H = 2 x 4, ranks per block 2"
        of_each = [("every_step", (2, 3, 4)), (blocks, (2, 4)), ("local SGD, H = 4", (2, 3, 4))]
        self.assertEqual(ways, [(k, way) for k in (2, 3, 4) for way, allowed in of_each if k in allowed])
        reason = f"{blocks}: 3 ranks cannot be divided into such blocks"
        self.assertEqual(found["skipped"], [{"ranks": 3, "sync": blocks, "reason": reason}])
        slow = json.loads(predict(*self.words, *words, "--block-link", "1Mbit,1ms")[1])
        seconds = [
            next(r["step_s"] for r in rows if (r["ranks"], r["sync"]) == (4, blocks))
            for rows in (found["rows"], slow["rows"])
        ]
        self.assertGreater(seconds[1], 2 * seconds[0])

    def test_mistakes(self):
        for words, text in (
            (("--sync", "local"), "--sync: 'local' is not a map such as {kind: local_sgd, steps: 8}"),
            (("--sync", "{kind: [}"), "--sync: '{kind: [}' is not a map"),
            (("--sync", "{kind: local_sgd}"), "local_sgd needs sync.steps"),
            (("--sync", "{kind: local_sgd, steps: 2, period: 3}"), "sync.period: unknown key"),
            (
                ("--sync", "{kind: hierarchical_local_sgd, steps: 2}"),
                "sync.ranks_per_block: how many ranks a node has is not known here; give the number: --sync "
                "'{kind: hierarchical_local_sgd, steps: 2, ranks_per_block: N}'",
            ),
            (("--block-link", "fast"), "--block-link: 'fast'"),
        ):
            with self.subTest(text):
                status, out, err = predict(*self.words, *words)
                self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
                self.assertIn(text, err)


if __name__ == "__main__":
    unittest.main()
