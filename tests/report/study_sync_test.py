"""What a study says of local steps before it runs: how often ranks exchange, bytes, time. 77 is a skip."""

import unittest

from harness import require, rows_of
from study_harness import HEAD, LPSGD, StudyTest

import synchronisation
import table
from study import estimate, launcher, progress, timing


def by_steps(settings, epochs, per_epoch):
    """Exchanges of gradients, within blocks and of all ranks: one step after the other, as the trainer takes
    them."""
    sync = settings["sync"]
    blocks = sync["kind"] == "hierarchical_local_sgd"
    started = blocks or sync["kind"] == "block_momentum"
    gradients = within = everywhere = since = rounds = 0
    for step in range(epochs * per_epoch):
        h = synchronisation.interval(settings, step, per_epoch)
        if not started and h == 1:
            gradients += 1
            continue
        started = True
        since += 1
        if since < h:
            continue
        since, rounds = 0, rounds + 1
        if blocks and rounds < sync.get("block_steps", 1):
            within += 1
        else:
            rounds, everywhere = 0, everywhere + 1
    return synchronisation.Exchanges(epochs * per_epoch, gradients, within, everywhere)


def flow(sync):
    return "{" + ", ".join(f"{key}: {value}" for key, value in sync.items()) + "}"


LOCAL = {"kind": "local_sgd", "steps": 5}
BLOCKS = {"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 3}
KINDS = (
    {"kind": "every_step"},
    LOCAL,
    {**LOCAL, "warmup": "constant", "warmup_epochs": 1},
    {**LOCAL, "warmup": "linear", "warmup_epochs": 2},
    {"kind": "local_sgd", "steps": 16, "warmup": "exponential", "warmup_epochs": 3},
    {"kind": "post_local_sgd", "steps": 3},
    {"kind": "post_local_sgd", "steps": 3, "from": 1},
    {"kind": "post_local_sgd", "steps": 3, "from": 99},
    {"kind": "block_momentum", "steps": 4, "warmup": "linear", "warmup_epochs": 1},
    {**BLOCKS, "ranks_per_block": 2},
    BLOCKS,
    {**BLOCKS, "block_steps": 1},
)


class Counts(unittest.TestCase):
    def settings(self, sync):
        return {"sync": sync, "schedule": {"decay": {"2": 0.1, "3": 0.1}}}

    def test_one_step_between_two_synchronisations(self):
        """What is as every_step exchanges gradients: tests/trainer/sync_options_test.cc."""
        momentum, blocks = {"kind": "block_momentum", "steps": 1}, {"kind": "hierarchical_local_sgd", "steps": 1}
        for sync, gradients in (
            ({"kind": "local_sgd", "steps": 1}, 12),
            ({"kind": "local_sgd", "steps": 1, "reset_momentum": True}, 0),
            ({"kind": "post_local_sgd", "steps": 1, "reset_momentum": True}, 12),
            (momentum, 0),
            ({**momentum, "momentum": 0}, 12),
            ({**momentum, "momentum": 0, "rate": 0.5}, 0),
            ({**momentum, "momentum": 0, "reset_momentum": True}, 0),
            (blocks, 12),
            ({**blocks, "block_steps": 1}, 12),
            ({**blocks, "block_steps": 2}, 0),
        ):
            with self.subTest(sync=sync):
                found = synchronisation.exchanges(self.settings(sync), 2, 6)
                self.assertEqual((found.steps, found.gradients, found.total), (12, gradients, 12))

    def test_the_interval_during_a_warm_up(self):
        """As tests/trainer/sync_options_test.cc has it: each half of five epochs of ten steps."""
        for warmup, expected in (
            ("none", [16] * 10),
            ("constant", [1] * 8 + [16, 16]),
            ("linear", [1, 2, 4, 6, 8, 10, 12, 14, 16, 16]),
            ("exponential", [1, 1, 2, 2, 4, 5, 8, 11, 16, 16]),
        ):
            sync = {"kind": "local_sgd", "steps": 16, "warmup": warmup, "warmup_epochs": 4}
            found = [synchronisation.interval(self.settings(sync), 5 * half, 10) for half in range(10)]
            self.assertEqual(found, expected, warmup)
        cube = self.settings({"kind": "local_sgd", "steps": 64, "warmup": "exponential", "warmup_epochs": 3})
        self.assertEqual([synchronisation.interval(cube, 10 * e, 10) for e in range(4)], [1, 4, 16, 64])
        post = self.settings({"kind": "post_local_sgd", "steps": 8})
        self.assertEqual([synchronisation.interval(post, step, 10) for step in (19, 20)], [1, 8])
        for decay in ({"1": 10, "2": 0.1, "8": 0.1}, {8: 0.1, 2: 0.5}, {"every": 2, "factor": 0.94}):
            post["schedule"] = {"decay": decay}
            found = [synchronisation.interval(post, step, 10) for step in (10, 19, 20)]
            self.assertEqual(found, [1, 1, 8], decay)

    def test_every_kind_step_by_step(self):
        for sync in KINDS:
            for per_epoch in (1, 7, 32):
                for epochs in (0, 1, 2, 5):
                    with self.subTest(sync=sync, per_epoch=per_epoch, epochs=epochs):
                        settings = self.settings(sync)
                        self.assertEqual(
                            synchronisation.exchanges(settings, epochs, per_epoch),
                            by_steps(settings, epochs, per_epoch),
                        )

    def test_the_turns_of_fragments_are_one_exchange(self):
        whole = {"kind": "local_sgd", "steps": 4}
        turns = self.settings({**whole, "fragments": 2, "delay": 1})
        for epochs, per_epoch in ((0, 7), (1, 7), (5, 7), (2, 32), (3, None)):
            with self.subTest(epochs=epochs, per_epoch=per_epoch):
                self.assertEqual(
                    synchronisation.exchanges(turns, epochs, per_epoch),
                    synchronisation.exchanges(self.settings(whole), epochs, per_epoch),
                )

    def test_a_long_run_takes_no_time(self):
        sync = {"kind": "local_sgd", "steps": 16, "warmup": "linear", "warmup_epochs": 10**8}
        found = synchronisation.exchanges(self.settings(sync), 10**9, 10**6)
        self.assertEqual(found.steps, 10**15)
        mean = 0.1 * sum(1 / h for h in range(1, 16)) / 15 + 0.9 / 16
        self.assertAlmostEqual(found.total / found.steps, mean)

    def test_blocks(self):
        settings = self.settings(BLOCKS)
        self.assertEqual(synchronisation.block_size(settings, 4, [4]), 4)
        self.assertEqual(synchronisation.block_size(settings, 4, [2, 2]), 2)
        for machines in ([3, 1], [], [1, 2, 1]):
            self.assertIsNone(synchronisation.block_size(settings, 4, machines))
        given = self.settings({**BLOCKS, "ranks_per_block": 2})
        self.assertEqual(synchronisation.block_size(given, 4, []), 2)
        self.assertIsNone(synchronisation.block_size(given, 3, [3]))
        for hosts, expected in (
            (["a:2", "b:2"], [2, 2]),
            (["a:4", "b:4"], [4]),
            (["a:1", "b:3"], [1, 3]),
            (["a", "b"], []),  # a, b, a, b: a block's ranks are consecutive
            (["a", "a", "b", "b"], [2, 2]),
        ):
            self.assertEqual(
                synchronisation.machines_of(launcher.host_of_each_rank(hosts, 4)), expected, hosts
            )


class Estimates(StudyTest):
    def test_bytes_and_synchronisations_are_those_of_the_runs(self):
        """Of four ranks with seven steps in each of four epochs; the blocks are of two ranks, and of all."""
        text = (
            HEAD + "set: {train.epochs: 4, data.train_samples: 224, data.test_samples: 4, "
            "checkpoint.every_epochs: 0, schedule.decay: {2: 0.1, 3: 0.1}}\n"
            f"axes: {{sync: [{', '.join(map(flow, KINDS))}], ranks: 4}}\n"
        )
        for run, shown, records in self.trained(text):
            with self.subTest(run.label):
                self.assertEqual(len(records), 4)
                for done in range(5):
                    found = estimate.exchanges(run, done)
                    self.assertEqual(
                        estimate.bytes_of(run, shown, found),
                        sum(record["bytes_sent"] for record in records[done:]),
                    )
                    if run.settings["sync"]["kind"] != "every_step":
                        self.assertEqual(found.total, sum(r["synchronisations"] for r in records[done:]))

    def test_blocks_on_hosts(self):
        sync = flow({**BLOCKS, "ranks_per_block": "node"})
        text = HEAD + f"set: {{exchange.transport: mpi}}\naxes: {{sync: [{sync}], ranks: 4}}\n"
        study, (run,) = self.expand(text)
        shown = self.shown(study, [run])
        each = shown[run.digest]["wire_bytes"]
        # Of 16 steps 8 end with a synchronisation: 6 within blocks and 2 of all ranks, which send 6 copies.
        for hosts, copies in (([], 6 * 6), (["a:2", "b:2"], 6 * 4), (["a:4"], 6 * 6)):
            folders = {run.digest: str(self.root / "none")}
            row = estimate.lines([run], shown, 1, folders, None, hosts)[1]
            found = estimate.bytes_of(run, shown[run.digest], estimate.exchanges(run), hosts)
            self.assertEqual(found, (copies + 2 * 6) * each)
            self.assertEqual(row.split()[-3:-1], table.bytes_text(found).split())
        row, last = estimate.lines([run], shown, 1, folders, None, ["a", "b"])[1:]
        self.assertEqual(row.split()[-3:], ["?", "?", "?"])
        self.assertIn("0 B on the wire in 0 of 1 run (the blocks of ranks of the others are not known)", last)

    def test_blocks_that_add_their_gradients(self):
        """Bytes of the collective hierarchical are those of the runs, in all and in tables; the codecs warm up."""
        local = flow({"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 2, "ranks_per_block": 2})
        text = HEAD + (
            "set: {exchange.collective: hierarchical, exchange.warmup_epochs: 1, exchange.min_elements: 100}\n"
            f"axes: {{exchange.ranks_per_block: [1, 2, node], sync: [every_step, {local}], ranks: 4}}\n"
        )
        rows = []
        for run, shown, records in self.trained(text):
            with self.subTest(run.label):
                for done in range(3):
                    sent = sum(record["bytes_sent"] for record in records[done:])
                    parts = estimate.exchanges(run, done), estimate.warmup_exchanges(run, done)
                    self.assertEqual(estimate.bytes_of(run, shown, parts[0], warm=parts[1]), sent)
                rows.append(sum(record["bytes_between_blocks"] for record in records))
        self.assertEqual([int(row["bytes_between_blocks"]) for row in rows_of(self.root / "out" / "runs.csv")], rows)
        self.assertEqual([rows[4:], rows[0] > rows[2] > 0], [[0, 0], True])
        epochs = rows_of(self.root / "out" / "epochs.csv")
        self.assertEqual(sum(int(row["bytes_between_blocks"]) for row in epochs), sum(rows))

    def test_blocks_that_add_their_gradients_within_others(self):
        """Of eight ranks; blocks of four synchronise, whose halves, wholes and pairs add their gradients first."""
        local = flow({"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 2, "ranks_per_block": 4})
        head = HEAD + f"set: {{exchange.collective: hierarchical, exchange.warmup_epochs: 1, sync: {local}}}\n"
        for run, shown, records in self.trained(head + "axes: {exchange.ranks_per_block: [1, 2, 4, 8], ranks: 8}\n"):
            with self.subTest(run.label):
                for done in range(3):
                    sent = sum(record["bytes_sent"] for record in records[done:])
                    parts = estimate.exchanges(run, done), estimate.warmup_exchanges(run, done)
                    self.assertEqual(estimate.bytes_of(run, shown, parts[0], warm=parts[1]), sent)
        across = HEAD + f"set: {{exchange.collective: hierarchical, exchange.ranks_per_block: 3, sync: {local}}}\n"
        study, (run,) = self.expand(across + "axes: {ranks: 12}\n")
        shown = self.shown(study, [run])[run.digest]
        self.assertIsNone(estimate.bytes_of(run, shown, estimate.exchanges(run)))  # lpsgd refuses it

    def test_where_the_samples_are_not_known(self):
        """The mean of a step is still known, but for a warm-up's rounding."""
        text = HEAD + (
            "set: {data: {dataset: images, root: /none}, train.epochs: 10, schedule.decay: {5: 0.1}}\n"
            "axes: {sync: [{kind: local_sgd, steps: 4}, {kind: post_local_sgd, steps: 3}], ranks: 2}\n"
        )
        _, runs = self.expand(text)
        for run, mean in zip(runs, (1 / 4, 1 / 2 + 1 / 6)):
            self.assertIsNone(estimate.steps(run))
            found = estimate.exchanges(run)
            self.assertAlmostEqual(found.total / found.steps, mean, places=3)

    def test_seconds_are_of_one_way_to_synchronise(self):
        sync = "[every_step, {kind: local_sgd, steps: 4}, {kind: local_sgd, steps: 8}]"
        _, runs = self.expand(HEAD + f"axes: {{sync: {sync}, seed: [1, 2], ranks: 2}}\n")
        clock = progress.Clock(runs, 1)
        clock.measured = {runs[0].digest: (1, 90.0), runs[2].digest: (2, 40.0)}
        self.assertEqual(
            [clock.seconds_per_epoch(run) for run in runs], [90, 90, 20, 20, 130 / 3, 130 / 3]
        )

    def test_the_time_is_of_local_steps(self):
        """Over a slow link an exchange is nearly all of a step, so that every fourth one takes a quarter."""
        require("numpy", "scipy")
        self.study(HEAD + "axes: {seed: 1, ranks: 2}\n")
        (folder,) = (self.root / "out" / "runs").iterdir()
        kinds = (
            "every_step",
            "{kind: local_sgd, steps: 4}",
            "{kind: local_sgd, steps: 4, warmup: constant, warmup_epochs: 2}",
            "{kind: post_local_sgd, steps: 4, from: 1}",
            "{kind: hierarchical_local_sgd, steps: 1, block_steps: 8, ranks_per_block: 1}",
        )
        text = HEAD + (
            "set: {exchange.link: {bandwidth: 100kbit, burst: 1B}}\n"
            f"axes: {{sync: [{', '.join(kinds)}], seed: 1, ranks: 2}}\n"
        )
        study, runs = self.expand(text)
        shown = self.shown(study, runs)
        folders = {run.digest: str(self.root / "none") for run in runs}
        _, (done,) = self.expand(HEAD + "axes: {seed: 1, ranks: 2}\n")
        model = estimate.CostModel([done], {done.digest: str(folder)}, 1)
        seconds = [
            model.seconds_per_step(run, shown[run.digest], *estimate.rest(run, folders[run.digest]))
            for run in runs
        ]
        each = shown[runs[0].digest]["wire_bytes"] * 8 * 1514 / 1448 / 1e5
        self.assertGreater(seconds[0], 0.9 * each)
        for found, share in zip(seconds, (1, 1 / 4, 1, 5 / 8, 1 / 8)):
            self.assertAlmostEqual(found / seconds[0], share, delta=0.05)

    def test_local_steps_are_timed_over_whole_phases(self):
        text = HEAD + (
            "axes: {sync: [every_step, {kind: local_sgd, steps: 4}, "
            "{kind: post_local_sgd, steps: 4, from: 1}, "
            "{kind: block_momentum, steps: 5, momentum: 0.5, warmup: constant, warmup_epochs: 1}, "
            "{kind: hierarchical_local_sgd, steps: 2, block_steps: 3, ranks_per_block: 1}], ranks: 2}\n"
        )
        _, runs = self.expand(text)
        parts = [
            [
                (round(share, 3), form.run.settings["sync"], count)
                for share, form, count in timing.parts_of(run, estimate.exchanges(run), 10)
            ]
            for run in runs
        ]
        every, local = {"kind": "every_step"}, {"kind": "local_sgd", "steps": 4, "distance": False}
        self.assertEqual(parts[0], [(1, every, 10)])
        self.assertEqual(parts[1], [(1, local, 13)])
        self.assertEqual(parts[2], [(0.5, every, 10), (0.5, local, 13)])
        # Of 16 steps the first 8 exchange, of the others one.
        share = round((9 / 16 - 1 / 5) / (1 - 1 / 5), 3)
        momentum = {"kind": "block_momentum", "steps": 5, "momentum": 0.5, "distance": False}
        self.assertEqual(parts[3], [(share, every, 10), (round(1 - share, 3), momentum, 11)])
        self.assertEqual(parts[4], [(1, {**runs[4].settings["sync"], "distance": False}, 13)])

    def test_time_steps_of_local_steps(self):
        """What differs only before or after the phases is timed once, in the study's folder."""
        program = self.write(
            "program",
            f'#!/bin/sh\n[ "$1" = train ] && echo "$@" >> {self.root}/seen\nexec {LPSGD} "$@"\n',
        )
        program.chmod(0o755)
        text = HEAD + (
            "axes: {sync: [every_step, {kind: local_sgd, steps: 4}, "
            "{kind: post_local_sgd, steps: 4, from: 1}], ranks: 2}\n"
        )
        status, out, err = self.study(
            text, "--dry-run", "--time-steps", "3", out="a/deep/out", program=str(program)
        )
        self.assertEqual((status, err), (0, ""))
        self.assertIn("s without evaluation for 3 of 3 runs", out)
        seen = (self.root / "seen").read_text().splitlines()
        self.assertEqual([line.split("--steps ")[1] for line in seen], ["3", "5"])
        for line in seen:
            self.assertIn(f"--out {self.root}/a/deep/out/time-steps-", line)
        self.assertFalse((self.root / "a").exists())

    def test_a_folder_that_cannot_be_made(self):
        (self.root / "file").write_text("")
        status, out, err = self.study(HEAD, "--dry-run", "--time-steps", "3", out="file/out")
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn("/file/out: cannot be made: Not a directory", err)


if __name__ == "__main__":
    unittest.main()
