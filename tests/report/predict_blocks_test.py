"""lpsgd predict CONFIG with the collective hierarchical: messages and bytes, the pipeline, runs, output, mistakes.
77 is a skip.
"""

import json
import unittest
from dataclasses import replace

from predict_harness import TrainedTest, predict

import program
import synchronisation
from costmodel import config_report, links, local_steps, pipeline, plan, run_folder, scaling
from costmodel.errors import CostModelError

FAST = pipeline.Link(1e15, 0.0)
HIERARCHICAL = ("exchange.collective=hierarchical", "exchange.ranks_per_block=2")


class Plan(unittest.TestCase):
    def test_messages_and_bytes_are_those_of_the_exchange(self):
        for codec, bucket in (("none", 64), ("{kind: qsgd, bits: 4}", 512)):
            for ranks, size in ((4, 2), (6, 3), (6, 2), (4, 4), (4, 1)):
                words = f"--ranks {ranks} --ranks-per-block {size} --min 4K --max 4M --factor 32 --repeats 1".split()
                rows = program.ask("bench", "exchange", "--json", *words, "--collective", "hierarchical", "--codec", codec)
                self.assertGreater(len(rows), 1)
                blocks = pipeline.Machines(size, add=True)
                for row in rows:
                    with self.subTest(codec=codec, ranks=ranks, size=size, row=row):
                        n = row["size"] // 4
                        units = plan.make_plan([plan.PlannedTensor("x", n, 0, bucket, False)], ranks)
                        self.assertEqual(plan.messages(units, ranks, blocks), row["messages"])

    def test_messages_of_a_pack(self):
        """Of tensors of one bucket, whose owners are the ranks 5 and 0 of six: places 2 and 0 in blocks of three."""
        tensors = [plan.PlannedTensor(f"t{i}", 512, 0, 512, False) for i in range(2)]
        (unit,) = plan.make_plan(tensors, 6)
        self.assertEqual(unit.owners, {5, 0})
        # Two contributions and two means, and in each of two blocks two shares and two sets of means for each place.
        self.assertEqual(plan.messages([unit], 6, pipeline.Machines(3, add=True)), 4 + 2 * (2 + 2) * 2)

    def test_bytes_of_all_ranks(self):
        """As the study's estimate has them, which is tested with runs; those between blocks by hand."""
        exchanges = synchronisation.Exchanges(1, 1)
        for ranks, size in ((2, 1), (2, 2), (4, 2), (12, 3), (12, 4)):
            sent, between = plan.bytes_of_a_rank(1000, 5000, ranks, pipeline.Machines(size, add=True))
            encoded = synchronisation.copies(ranks, exchanges, None, size)
            float32 = synchronisation.float32_copies(ranks, exchanges, None, size)
            self.assertAlmostEqual(ranks * sent, 1000 * encoded + 20000 * float32)
            self.assertAlmostEqual(ranks * between, 2 * (ranks // size - 1) * 1000)
            sent, between = plan.bytes_of_a_rank(1000, 5000, ranks, pipeline.Machines(size))
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
        times = self.end(pipeline.Machines(2, self.WITHIN, True))
        share, handed_on = 4 * 600e-9 + 0.001, 1200e-9 + 0.001
        contribution = 600e-6 + 0.01
        coding = [1200 * 3e-6, 1200 * 4e-6 + 600 * 1e-6, 600 * 2e-6 + 300 * 1e-6, 0.0, 1200 * 2e-6]
        self.assertAlmostEqual(times.end, 0.5 + sum(coding) + share + 2 * contribution + handed_on)
        self.assertAlmostEqual(times.coding, sum(coding))
        self.assertAlmostEqual(times.sending, 1200e-6)

    def test_what_stays_on_a_machine_has_its_own_link(self):
        """Of four ranks, two on a machine: of the three quarters of a copy in each round one stays there."""
        times = self.end(pipeline.Machines(2, self.WITHIN))
        self.assertAlmostEqual(times.sending, 2 * 2400e-6 * 2 / 4)
        coding = 1200 * 1e-6 + 1200 * 2e-6 + 300 * 1e-6 + 1200 * 2e-6
        self.assertAlmostEqual(times.end, 0.5 + coding + 2 * (1200e-6 + 0.01))
        everything = self.end(pipeline.SINGLE)
        self.assertAlmostEqual(everything.sending, 2 * 2400e-6 * 3 / 4)
        self.assertAlmostEqual(self.end(pipeline.Machines(2, None)).sending, everything.sending)

    def test_one_block_sends_nothing_to_others(self):
        times = self.end(pipeline.Machines(4, FAST, True), link=pipeline.Link(1.0, 100.0))
        coding = 1200 * 3e-6 + 1200 * 4e-6 + 300 * 1e-6 + 300 * 2e-6 + 300 * 1e-6 + 1200 * 2e-6
        self.assertAlmostEqual(times.end, 0.5 + coding)
        self.assertEqual(times.sending, 0)

    def test_messages_and_bytes_cost_the_host(self):
        """Each is sent by one rank and received by another."""
        for ranks, size, messages in ((4, 2, 2 * 1 + 2 * 2 / 2), (8, 4, 2 * 3 + 2 * 1 / 2), (8, 2, 2 * 1 + 2 * 2 * 3 / 4)):
            blocks = pipeline.Machines(size, FAST, True)
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
            machines = pipeline.Machines(size, FAST, True)
            given = (shown, scaling.codec_of(shown), 8, 8, computing, FAST, pipeline.Host(0.0, 0.0), True, plan.PACK_BYTES)
            step = local_steps.mean_step(*given, found, local_steps.Blocks(4, FAST), machines=machines)
            flat = local_steps.mean_step(
                *given, found, local_steps.Blocks(4, FAST), machines=pipeline.Machines(size, FAST)
            )
            self.assertAlmostEqual(flat.bytes_per_rank * 80, shown["wire_bytes"] * 2 * (30 * 7 / 8 + 30 * 3 / 4), delta=1)
            encoded = synchronisation.copies(8, found, 4, size)
            float32 = synchronisation.float32_copies(8, found, 4, size)
            total = encoded * shown["wire_bytes"] + float32 * 4 * shown["parameters"]
            self.assertAlmostEqual(step.bytes_per_rank * 8 * 80 / total, 1)
            between = 30 * (8 // size - 1) * 2 + (30 * 2 * 2 * (4 // size - 1) if size < 4 else 0)
            self.assertAlmostEqual(step.bytes_to_others * 8 * 80, between * shown["wire_bytes"], delta=1)


    def test_blocks_on_several_machines(self):
        """Of four ranks, two of them on a machine, whose synchronisations need the network; or all on one."""
        shown = program.show(str(self.config))
        computing = scaling.Computing(((8, 1.0, 2.0, 0.0),), 0.1, "")
        slow = pipeline.Link(1e4, 0.0)
        given = (shown, scaling.codec_of(shown), 8, 8, computing, slow, pipeline.Host(0.0, 0.0), True, plan.PACK_BYTES)
        found = synchronisation.Exchanges(80, 0, 80, 0)
        for add in (False, True):
            steps = [
                local_steps.mean_step(*given, found, local_steps.Blocks(4, FAST), machines=pipeline.Machines(size, FAST, add))
                for size in (2, 4, 8)
            ]
            self.assertGreater(steps[0].link_busy, 0.5)
            self.assertGreater(steps[0].exposed, steps[0].link_busy)
            for step in steps[1:]:
                self.assertEqual((step.link_busy, step.bytes_to_others), (0, 0))
                self.assertLess(step.exposed, 0.1)


class Command(TrainedTest):
    WORDS = ("--step-seconds", "0.001", "--link", "1Mbit,1ms", "--codecs", "qsgd4", "--weak")

    def rows(self, *words):
        sets = [word for one in HIERARCHICAL for word in ("--set", one)]
        status, out, err = predict(str(self.config), *self.WORDS, *sets, "--json", *words)
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def test_beside_reduce_broadcast_on_the_same_machines(self):
        found = self.rows("--ranks", "1,2,3,8", "--sync", "{kind: local_sgd, steps: 2}")
        rows = [(r["ranks"], r["codec"], r["collective"], r["sync"]) for r in found["rows"]]
        local = "local SGD, H = 2"
        ways = [(collective, sync) for sync in ("every_step", local) for collective in ("reduce_broadcast", "hierarchical")]
        self.assertEqual(rows, [(k, codec, *way) for k in (2, 8) for codec in ("none", "qsgd4") for way in ways])
        reasons = ["1 rank cannot be divided into blocks of 2", "3 ranks cannot be divided into blocks of 2"]
        self.assertEqual([s["reason"] for s in found["skipped"]], reasons)
        of_eight = [r for r in found["rows"] if r["ranks"] == 8]
        self.assertEqual([r["verdict"] is None for r in of_eight], [True] + [False] * 7)
        for flat, added in zip(of_eight[::2], of_eight[1::2]):
            to_others = [r["bytes_per_rank_to_other_machines"] for r in (flat, added)]
            self.assertAlmostEqual(to_others[0] / to_others[1], 2)  # as many ranks as a machine has
            self.assertTrue(0.4 < added["link_busy_s"] / flat["link_busy_s"] < 0.6)
            self.assertLess(added["step_s"], 0.9 * flat["step_s"])
        slow = self.rows("--ranks", "8", "--block-link", "1Mbit,1ms")["rows"]
        self.assertGreater(slow[1]["step_s"], slow[0]["step_s"])  # float32 within the block

    def test_blocks_of_one_rank(self):
        """Are as reduce_broadcast, of which no machines are known."""
        words = (*self.WORDS, "--set", "exchange.collective=hierarchical", "--set", "exchange.ranks_per_block=1", "--json")
        found = json.loads(predict(str(self.config), *words, "--ranks", "4")[1])["rows"]
        self.assertEqual([r["collective"] for r in found], ["reduce_broadcast"] * 2)
        self.assertEqual({r["bytes_per_rank_to_other_machines"] for r in found}, {None})
        flat = json.loads(predict(str(self.config), *self.WORDS, "--json", "--ranks", "4")[1])["rows"]
        self.assertEqual([r["messages"] for r in found], [r["messages"] for r in flat])

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
        node = self.train("node", "exchange.ranks=4", "exchange.collective=hierarchical")
        self.assertEqual(run_folder.read(str(node)).adding, 4)
        path = node / "environment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "hosts": ["a", "a", "a", "b"]}))
        with self.assertRaisesRegex(CostModelError, r"/node/environment\.json: the hosts do not tell the blocks of the"):
            run_folder.read(str(node))
        flat = self.train("flat", "exchange.ranks=4", HIERARCHICAL[0], "exchange.ranks_per_block=1")
        self.assertEqual(set(self.predicted("--run", str(flat))["coding"].values()), {"benchmarked", "measured"})

    def test_what_ranks_waited_for_each_other(self):
        """The run's step less the model's, of blocks whose messages all go over an emulated link."""
        link = "exchange.link={bandwidth: 20Mbit, latency: 1ms}"
        run = run_folder.read(str(self.train("run", "exchange.ranks=4", link, *HIERARCHICAL)))
        shown = program.show(str(self.root / "run" / "config.yaml"))
        base = pipeline.Host(0.0, 0.0)
        computing = scaling.from_runs([run])
        host, _ = scaling.host_for(scaling.codec_of(shown), [run], shown["parameters"], base, True)
        self.assertGreater(min(host.divide, host.add), 0)
        wire = links.emulated(run.config["exchange"], "there")
        given = (shown, "", 4, run.local_batch, computing, wire, host, True, plan.PACK_BYTES)
        step = scaling.predict(*given, pipeline.Machines(2, None, True))
        self.assertNotAlmostEqual(step.seconds, scaling.predict(*given).seconds, places=4)
        late = {**run.seconds, "total": step.seconds + 0.5 * step.computation + run.seconds["eval"]}
        slow = (computing, [replace(run, seconds=late)], shown["parameters"], base, None, run.config)
        self.assertAlmostEqual(config_report.waiting_of(*slow).waits(4), 0.5, places=3)

    def test_mistakes(self):
        hierarchical = ("--set", "exchange.collective=hierarchical")
        across = "{kind: hierarchical_local_sgd, steps: 2, ranks_per_block: 3}"
        label = "hierarchical local SGD, H = 2, ranks per block 3"
        node = (
            "tiny.yaml: exchange.ranks_per_block: how many ranks a node has is not known here; give the number: --set "
            "exchange.ranks_per_block=N\n"
        )
        eight = ("--set", "exchange.ranks_per_block=8", "--ranks", "2,4,12")
        for words, text in (((), node), (eight, "tiny.yaml: 2 ranks cannot be divided into blocks of 8\n")):
            status, out, err = predict(str(self.config), *self.WORDS, *hierarchical, *words)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(text, err)
        found = self.rows("--ranks", "6", "--sync", across)
        reason = f"{label}: its blocks lie across those of the exchange, of 2 ranks"
        self.assertEqual({s["reason"] for s in found["skipped"]}, {reason})


if __name__ == "__main__":
    unittest.main()
