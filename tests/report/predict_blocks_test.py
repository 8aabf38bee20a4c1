"""lpsgd predict CONFIG with the collective hierarchical: messages and bytes, the pipeline, runs, output, mistakes.
77 is a skip.
"""

import json
import unittest

from predict_harness import LPSGD, TrainedTest, predict  # noqa: F401

import program
import synchronisation
from costmodel import local_steps, pipeline, plan, run_folder, scaling

FAST = pipeline.Link(1e15, 0.0)
HIERARCHICAL = ("exchange.collective=hierarchical", "exchange.ranks_per_block=2")


class Plan(unittest.TestCase):
    def test_messages_and_bytes_are_those_of_the_exchange(self):
        for codec, bucket in (("none", 64), ("{kind: qsgd, bits: 4}", 512)):
            for ranks, size in ((4, 2), (6, 3), (6, 2), (4, 4), (4, 1)):
                words = f"--ranks {ranks} --ranks-per-block {size} --min 4K --max 4M --factor 32 --repeats 1".split()
                rows = program.ask("bench", "exchange", "--json", *words, "--collective", "hierarchical", "--codec", codec)
                self.assertGreater(len(rows), 1)
                blocks = pipeline.Blocks(size, add=True)
                for row in rows:
                    with self.subTest(codec=codec, ranks=ranks, size=size, row=row):
                        n = row["size"] // 4
                        units = plan.make_plan([plan.PlannedTensor("x", n, 0, bucket, False)], ranks)
                        self.assertEqual(plan.messages(units, ranks, blocks), row["messages"])

    def test_bytes_of_all_ranks(self):
        """As the study's estimate has them, which is tested with runs; those between blocks by hand."""
        exchanges = synchronisation.Exchanges(1, 1)
        for ranks, size in ((2, 1), (2, 2), (4, 2), (12, 3), (12, 4)):
            sent, between = plan.bytes_of_a_rank(1000, 5000, ranks, pipeline.Blocks(size, add=True))
            encoded = synchronisation.copies(ranks, exchanges, None, size)
            float32 = synchronisation.float32_copies(ranks, exchanges, None, size)
            self.assertAlmostEqual(ranks * sent, 1000 * encoded + 20000 * float32)
            self.assertAlmostEqual(ranks * between, 2 * (ranks // size - 1) * 1000)
            sent, between = plan.bytes_of_a_rank(1000, 5000, ranks, pipeline.Blocks(size))
            self.assertAlmostEqual(ranks * sent, 1000 * synchronisation.copies(ranks, exchanges))
            # Of the two copies that each rank sends to and from K owners, those of another machine.
            self.assertAlmostEqual(between, sent * (ranks - size) / (ranks - 1))


class Pipeline(unittest.TestCase):
    HOST = pipeline.Host(1e-6, 2e-6, 0.0, 0.0, divide=3e-6, add=4e-6)
    LINK = pipeline.Link(8e6 * pipeline.Link.HEADERS, 0.01)  # a second a MB
    WITHIN = pipeline.Link(8e9 * pipeline.Link.HEADERS, 0.001)  # a millisecond a MB
    UNIT = plan.Unit(1200, 2400, 4, (0,))

    def end(self, blocks, ranks=4, host=HOST, link=LINK):
        return pipeline.simulate([self.UNIT], [0.5], ranks, link, host, blocks)

    def test_one_unit_by_hand(self):
        """Of two blocks of two ranks: shares, a contribution of 600 values, a mean of 300, which is handed on."""
        times = self.end(pipeline.Blocks(2, self.WITHIN, True))
        share, handed_on = 4 * 600e-9 + 0.001, 1200e-9 + 0.001
        contribution = 600e-6 + 0.01
        coding = [1200 * 3e-6, 1200 * 4e-6 + 600 * 1e-6, 600 * 2e-6 + 300 * 1e-6, 0.0, 1200 * 2e-6]
        self.assertAlmostEqual(times.end, 0.5 + sum(coding) + share + 2 * contribution + handed_on)
        self.assertAlmostEqual(times.coding, sum(coding))
        self.assertAlmostEqual(times.sending, 1200e-6)

    def test_what_stays_on_a_machine_has_its_own_link(self):
        """Of four ranks, two on a machine: of the three quarters of a copy in each round one stays there."""
        times = self.end(pipeline.Blocks(2, self.WITHIN))
        self.assertAlmostEqual(times.sending, 2 * 2400e-6 * 2 / 4)
        coding = 1200 * 1e-6 + 1200 * 2e-6 + 300 * 1e-6 + 1200 * 2e-6
        self.assertAlmostEqual(times.end, 0.5 + coding + 2 * (1200e-6 + 0.01))
        everything = self.end(pipeline.SINGLE)
        self.assertAlmostEqual(everything.sending, 2 * 2400e-6 * 3 / 4)
        self.assertAlmostEqual(self.end(pipeline.Blocks(2, None)).sending, everything.sending)

    def test_one_block_sends_nothing_to_others(self):
        times = self.end(pipeline.Blocks(4, FAST, True), link=pipeline.Link(1.0, 100.0))
        coding = 1200 * 3e-6 + 1200 * 4e-6 + 300 * 1e-6 + 300 * 2e-6 + 300 * 1e-6 + 1200 * 2e-6
        self.assertAlmostEqual(times.end, 0.5 + coding)
        self.assertEqual(times.sending, 0)

    def test_messages_and_bytes_cost_the_host(self):
        """Each is sent by one rank and received by another."""
        for ranks, size, messages in ((4, 2, 2 * 1 + 2 * 2 / 2), (8, 4, 2 * 3 + 2 * 1 / 2), (8, 2, 2 * 1 + 2 * 2 * 3 / 4)):
            blocks = pipeline.Blocks(size, FAST, True)
            of_messages = self.end(blocks, ranks, pipeline.Host(0.0, 0.0, message=1.0, copy=0.0), FAST).end
            self.assertAlmostEqual(of_messages, 0.5 + 2 * messages, places=6)
            sent = plan.bytes_of_a_rank(2400, 1200, ranks, blocks)[0]
            of_bytes = self.end(blocks, ranks, pipeline.Host(0.0, 0.0, message=0.0, copy=1.0), FAST).end
            self.assertAlmostEqual(of_bytes, 0.5 + 2 * sent, places=3)


class LocalSteps(TrainedTest):
    def test_blocks_within_blocks(self):
        """Bytes of a run of eight ranks, whose blocks of four synchronise; pairs, or all, add their gradients."""
        shown = program.show(str(self.config))
        computing = scaling.Computing(((8, 1.0, 2.0, 0.0),), 0.1, "")
        found = synchronisation.Exchanges(80, 20, 30, 10)
        for size in (2, 4, 8):
            machines = pipeline.Blocks(size, FAST, True)
            given = (shown, scaling.codec_of(shown), 8, 8, computing, FAST, pipeline.Host(0.0, 0.0), True, plan.PACK_BYTES)
            step = local_steps.mean_step(*given, found, local_steps.Blocks(4, FAST), machines=machines)
            encoded = synchronisation.copies(8, found, 4, size)
            float32 = synchronisation.float32_copies(8, found, 4, size)
            total = encoded * shown["wire_bytes"] + float32 * 4 * shown["parameters"]
            self.assertAlmostEqual(step.bytes_per_rank * 8 * 80 / total, 1)
            between = 30 * (8 // size - 1) * 2 + (30 * 2 * 2 * (4 // size - 1) if size < 4 else 0)
            self.assertAlmostEqual(step.bytes_to_others * 8 * 80, between * shown["wire_bytes"], delta=1)


class Command(TrainedTest):
    WORDS = ("--step-seconds", "0.001", "--link", "1Mbit,1ms", "--codecs", "qsgd4", "--weak")

    def rows(self, *words):
        sets = [word for one in HIERARCHICAL for word in ("--set", one)]
        status, out, err = predict(str(self.config), *self.WORDS, *sets, "--json", *words)
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def test_beside_reduce_broadcast_on_the_same_machines(self):
        found = self.rows("--ranks", "2,3,8", "--sync", "{kind: local_sgd, steps: 4}")
        rows = [(r["ranks"], r["codec"], r["collective"], r["sync"]) for r in found["rows"]]
        local = "local SGD, H = 4"
        ways = [("reduce_broadcast", "every_step"), ("hierarchical", "every_step"), ("hierarchical", local)]
        expected = [(k, codec, *way) for k in (2, 3, 8) for codec in ("none", "qsgd4") for way in ways[: 1 if k == 3 else 3]]
        self.assertEqual(rows, expected)
        reason = "hierarchical: 3 ranks cannot be divided into blocks of 2"
        self.assertEqual([(s["ranks"], s["reason"]) for s in found["skipped"]], [(3, reason)] * 2)
        of_eight = [r for r in found["rows"] if r["ranks"] == 8]
        self.assertEqual([r["verdict"] is None for r in of_eight], [True] + [False] * 5)
        for flat, added in ((of_eight[0], of_eight[1]), (of_eight[3], of_eight[4])):
            to_others = [r["bytes_per_rank_to_other_machines"] for r in (flat, added)]
            self.assertAlmostEqual(to_others[0] / to_others[1], 2)  # as many ranks as a machine has
            self.assertTrue(0.4 < added["link_busy_s"] / flat["link_busy_s"] < 0.6)
            self.assertLess(added["step_s"], 0.7 * flat["step_s"])
        slow = self.rows("--ranks", "8", "--block-link", "1Mbit,1ms")["rows"]
        self.assertGreater(slow[1]["step_s"], slow[0]["step_s"])  # float32 within the block

    def test_the_table(self):
        sets = [word for one in HIERARCHICAL for word in ("--set", one)]
        status, out, err = predict(str(self.config), *self.WORDS, *sets, "--ranks", "4")
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"MB/rank +MB/link +gain\n")
        self.assertIn("\n    4  qsgd4, hierarchical ", out)
        self.assertRegex(out, r"\n4 ranks: qsgd4, hierarchical (pays|is too close to tell|does not pay): ")

    def test_a_run(self):
        """Of blocks: its coding is not taken, because its seconds are also of copies and sums."""
        folder = self.train("run", "exchange.ranks=4", *HIERARCHICAL)
        run = run_folder.read(str(folder))
        self.assertEqual((run.adding, run.ranks), (2, 4))
        found = self.predicted("--run", str(folder))
        self.assertEqual(set(found["coding"].values()), {"benchmarked"})
        node = run_folder.read(str(self.train("node", "exchange.ranks=4", "exchange.collective=hierarchical")))
        self.assertEqual(node.adding, 4)
        with self.subTest("waiting"):  # of one that trains as predicted there is none
            flat = self.predicted("--run", str(self.train("flat")))
            self.assertEqual(flat["coding"]["qsgd4"], "measured")

    def test_mistakes(self):
        hierarchical = ("--set", "exchange.collective=hierarchical")
        across = "{kind: hierarchical_local_sgd, steps: 2, ranks_per_block: 3}"
        label = "hierarchical local SGD, H = 2, ranks per block 3"
        for words, text in (
            ((), "tiny.yaml: exchange.ranks_per_block: how many ranks a node has is not known here; give the number: --set "
                 "exchange.ranks_per_block=N\n"),
        ):
            status, out, err = predict(str(self.config), *self.WORDS, *hierarchical, *words)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)
        found = self.rows("--ranks", "6", "--sync", across)
        reason = f"{label}: its blocks lie across those of the exchange, of 2 ranks"
        self.assertEqual({s["reason"] for s in found["skipped"]}, {reason})


if __name__ == "__main__":
    unittest.main()
