"""exchange.collective: hierarchical from outside: bytes, transports, resuming, other blocks, mistakes."""

import json
import os
import unittest

from harness import Case, checkpoints, equal, model, run

QSGD = "exchange.codec={kind: qsgd, bits: 4, bucket: 64}"
EF = "exchange.codec={kind: onebit, bucket: 64}"
PARAMETERS = 8 * 27 + 16 + 16 * 72 + 32 + 170  # of the harness's network


class Hierarchical(Case):
    def run_of(self, out, *sets, ranks=4, block=2, mpi=None, options=()):
        where = ["exchange.transport=mpi"] if mpi else ["exchange.transport=threads", f"exchange.ranks={ranks}"]
        blocks = ["exchange.collective=hierarchical", f"exchange.ranks_per_block={block}"] if block else []
        sets = [*where, *blocks, "exchange.min_elements=0", *sets]
        return self.train(out, *(f"--set={s}" for s in sets), *options, ranks=mpi)

    def last(self, folder):
        return model(folder, [c for c in checkpoints(folder) if c.startswith("epoch")][-1])

    def test_bytes_are_the_formulas(self):
        for ranks, block in ((4, 2), (6, 3), (4, 1), (3, 3)):
            with self.subTest(ranks=ranks, block=block):
                folder = self.run_of(f"run{ranks}{block}", QSGD, ranks=ranks, block=block)
                shown = run("show", os.path.join(folder, "config.yaml"), "--json")
                self.assertEqual(shown.status, 0, shown)
                wire = json.loads(shown.out)["wire_bytes"]
                blocks = ranks // block
                for record in self.metrics(folder):
                    between = 4 * 2 * (blocks - 1) * wire  # four steps an epoch
                    within = 4 * blocks * (block - 1) * (wire + 4 * PARAMETERS)
                    self.assertEqual(record["bytes_between_blocks"], between)
                    self.assertEqual(record["bytes_sent"], between + within)
                    self.assertTrue(record["replicas_equal"])

    def test_blocks_of_one_rank_are_reduce_broadcast(self):
        for codec in (QSGD, EF):
            one = self.run_of("one" + codec[22:26], codec, block=1)
            plain = self.run_of("plain" + codec[22:26], codec, block=None)
            self.assertTrue(equal(self.last(one), self.last(plain)))
            self.assertNotIn("bytes_between_blocks", self.metrics(plain)[0])

    def test_float32_is_the_mean(self):
        blocks, plain = self.run_of("blocks", "exchange.codec=none"), self.run_of("plain", "exchange.codec=none", block=None)
        for name, values in self.last(plain).items():
            self.assertLess(abs(self.last(blocks)[name] - values).max(), 1e-5, name)

    def test_transports_give_the_same_bits(self):
        for codec in (QSGD, EF):
            threads, mpi = self.run_of("threads" + codec[22:26], codec), self.run_of("mpi" + codec[22:26], codec, mpi=4)
            self.assertTrue(equal(self.last(threads), self.last(mpi)))

    def test_a_machine_is_a_block(self):
        folder = self.path("node")
        result = run("train", self.config, "--out", folder, "--set=exchange.collective=hierarchical", ranks=2)
        self.assertEqual(result.status, 0, result)
        self.assertIn("exchange.ranks_per_block: all 2 ranks are one block", result.err)
        self.assertEqual(self.metrics(folder)[0]["bytes_between_blocks"], 0)

    def test_resumes_bit_for_bit(self):
        for sync in ("sync={kind: every_step}", "sync={kind: local_sgd, steps: 2}",
                     "sync={kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 2}"):
            with self.subTest(sync=sync):
                name = f"run{len(sync)}"
                straight = self.run_of(name, EF, sync)
                for stop in (["--steps=3"], []):
                    stopped = self.run_of(name + "stopped", EF, sync, options=[*stop, "--resume"])
                self.assertTrue(equal(self.last(straight), self.last(stopped)))
                keep = lambda r: {k: v for k, v in r.items() if "seconds" not in k and not k.endswith("_s") and k != "bytes_average"}  # noqa: E731
                self.assertEqual([keep(r) for r in self.metrics(straight)], [keep(r) for r in self.metrics(stopped)])

    def test_goes_on_with_other_blocks(self):
        for before, after in (((4, 2), (4, 1)), ((4, None), (4, 2)), ((4, 2), (4, 4)), ((4, 2), (6, 3)), ((2, 2), (3, None))):
            with self.subTest(before=before, after=after):
                name = f"from{before}to{after}".replace(" ", "")
                self.run_of(name, EF, ranks=before[0], block=before[1], options=["--steps=3"])
                blocks = ["exchange.collective=hierarchical", f"exchange.ranks_per_block={after[1]}"] if after[1] else []
                sets = ["exchange.transport=threads", f"exchange.ranks={after[0]}", "exchange.min_elements=0", EF, *blocks]
                result = run("train", self.config, "--out", self.path(name), "--resume", *(f"--set={s}" for s in sets))
                self.assertEqual(result.status, 0, result)
                self.assertIn("round-1 residuals are the mean of the old ones", result.err)

    def test_a_simulated_run_goes_on_with_another_collective(self):
        for before, after in (("simulated", "reduce_broadcast"), ("reduce_broadcast", "simulated"), ("simulated", "hierarchical")):
            with self.subTest(before=before, after=after):
                options = [f"--set={s}" for s in ("exchange.transport=threads", "exchange.ranks=2", EF)]
                name = self.path(before + after)
                for collective, more in ((before, ["--steps=3"]), (after, ["--resume"])):
                    result = run("train", self.config, "--out", name, *options, f"--set=exchange.collective={collective}", *more)
                    self.assertEqual(result.status, 0, result)
                self.assertRegex(result.err, "round-2 residuals (start at zero|are dropped|are cut anew)")

    def test_synchronisations_within_blocks(self):
        """Of hierarchical_local_sgd: between the exchange's blocks, where those are smaller, goes one copy of a block."""
        for sync, exchange, between in ((4, 2, None), (2, 4, 0), (2, 2, 0)):
            with self.subTest(sync=sync, exchange=exchange):
                local = f"sync={{kind: hierarchical_local_sgd, steps: 1, block_steps: 100, ranks_per_block: {sync}}}"
                folder = self.run_of(f"run{sync}{exchange}", QSGD, local, ranks=8, block=exchange)
                shown = run("show", os.path.join(folder, "config.yaml"), "--json")
                wire = json.loads(shown.out)["wire_bytes"]
                # Four synchronisations an epoch in two blocks of `sync`, each of two blocks of the exchange.
                expected = 4 * 2 * 2 * wire if between is None else between
                self.assertEqual([r["bytes_between_blocks"] for r in self.metrics(folder)], [expected] * 2)
        result = run("train", self.config, "--out", self.path("bad"), "--set=exchange.transport=threads", "--set=exchange.ranks=12",
                     "--set=exchange.collective=hierarchical", "--set=exchange.ranks_per_block=4",
                     "--set=sync={kind: hierarchical_local_sgd, steps: 1, block_steps: 2, ranks_per_block: 6}")
        self.assertEqual(result.status, 2, result)
        self.assertIn("sync.ranks_per_block: blocks of 6 ranks lie across those of exchange.ranks_per_block, 4 ranks", result.err)

    def test_warnings_are_true(self):
        """Of residuals, where there are none, and where they begin."""
        def go_on(name, before, after):
            for sets, more in ((before, ["--steps=3"]), (after, ["--resume"])):
                result = run("train", self.config, "--out", self.path(name), *(f"--set={s}" for s in sets), *more)
                self.assertEqual(result.status, 0, result)
            return result.err

        threads = lambda n, *sets: ["exchange.transport=threads", f"exchange.ranks={n}", *sets]  # noqa: E731
        blocks = ["exchange.collective=hierarchical", "exchange.ranks_per_block=2"]
        self.assertNotIn("residuals", go_on("none", threads(4, QSGD), threads(4, QSGD, *blocks)))
        simulated = "exchange.collective=simulated"
        self.assertNotIn("residuals are", go_on("new", threads(2, simulated, "exchange.codec=none"), threads(2, simulated, EF)))
        self.assertIn("round-2 residuals start at zero, running", go_on("more", threads(2, simulated, EF), threads(4, EF)))

    def test_mistakes(self):
        for sets, message in (
            (["exchange.collective=hierarchical", "exchange.ranks_per_block=3"],
             "exchange.ranks_per_block: 4 ranks cannot be divided into blocks of 3"),
            (["exchange.ranks_per_block=2"], "exchange.ranks_per_block: is a key of collective hierarchical"),
            (["exchange.collective=hierarchical", "exchange.ranks_per_block=0"], "exchange.ranks_per_block"),
            (["exchange.collective=hierarchical", "exchange.ranks_per_block=machine"], "exchange.ranks_per_block"),
        ):
            result = run("train", self.config, "--out", self.path("bad"), "--set=exchange.transport=threads",
                         "--set=exchange.ranks=4", *(f"--set={s}" for s in sets))
            self.assertEqual(result.status, 2, result)
            self.assertIn(message, result.err)
            self.assertFalse(os.path.exists(self.path("bad")))


if __name__ == "__main__":
    unittest.main()
