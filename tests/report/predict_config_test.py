"""lpsgd predict CONFIG: the plan of messages, the step's pipeline, computing by batch, its output, mistakes.
77 is a skip.
"""

import json
import pathlib
import unittest

from harness import SOURCE, FolderTest
from predict_harness import predict

import program
from costmodel import config_report, devices, links, pipeline, plan, run_folder, scaling
from costmodel.errors import CostModelError

CONFIG = SOURCE / "configs" / "alexnet_noise.yaml"
SECONDS = {
    "total": 11.0,
    "data": 0.5,
    "forward": 3.0,
    "backward": 6.0,
    "encode": 1.2,
    "transfer": 1.0,
    "decode": 0.8,
    "exposed_comm": 0.3,
    "update": 0.1,
    "eval": 1.0,
    "other": 0.1,
}


class Plan(unittest.TestCase):
    def test_messages_are_those_of_the_exchange(self):
        for codec, bucket in (
            ("none", 64),
            ("{kind: qsgd, bits: 4}", 512),
            ("{kind: onebit, bucket: 64}", 64),
        ):
            for ranks in (2, 3):
                rows = program.ask(
                    "bench",
                    "exchange",
                    "--json",
                    "--ranks",
                    str(ranks),
                    "--min",
                    "4K",
                    "--max",
                    "4M",
                    "--factor",
                    "32",
                    "--repeats",
                    "1",
                    "--codec",
                    codec,
                )
                self.assertGreater(len(rows), 1)
                for row in rows:
                    tensor = plan.PlannedTensor("x", row["size"] // 4, 0, bucket, False)
                    self.assertEqual(
                        plan.messages(plan.make_plan([tensor], ranks), ranks), row["messages"], row
                    )

    def test_bytes_and_order(self):
        shown = program.show(str(CONFIG))
        tensors = plan.planned(shown)
        units = plan.make_plan(tensors, 4)
        self.assertAlmostEqual(sum(unit.wire_bytes for unit in units), shown["wire_bytes"], delta=1)
        firsts = [max(unit.tensors) for unit in units]
        self.assertEqual(units[0].tensors, (14,))  # fc8.weight; its bias waits in a pack
        self.assertEqual(sum(len(unit.tensors) for unit in units if len(unit.tensors) > 1) > 1, True)
        self.assertEqual(len(tensors) - 1 in units[-1].tensors, True)
        self.assertEqual(set(firsts) | {t for unit in units for t in unit.tensors}, set(range(16)))


    def test_packs_are_larger_where_a_gpus_messages_are_staged(self):
        small = [plan.PlannedTensor(f"fc{i}.weight", 16384, 65536, 512, False) for i in range(16)]  # 1 MiB in all

        def units(exchange, device):
            return len(plan.make_plan(small, 2, plan.pack_bytes({"exchange": exchange}, device)))

        self.assertEqual(units({}, "cuda"), 1)
        self.assertEqual(units({"transport": "mpi", "device_pointers": "auto"}, "cuda"), 1)
        for other in (({}, "cpu"), ({"transport": "nccl"}, "cuda"), ({"device_pointers": True}, "cuda")):
            self.assertEqual(units(*other), 4, other)


class Pipeline(unittest.TestCase):
    HOST = pipeline.Host(1e-6, 1e-6, 0.0, 0.0)

    def test_one_unit_by_hand(self):
        """encode, half of it to the other rank, reduce, half of it back, decode."""
        link = pipeline.Link(8e6 * pipeline.Link.HEADERS, 0.01)  # a second a MB
        times = pipeline.simulate([plan.Unit(1000, 4000, 2, (0,))], [0.5], 2, link, self.HOST)
        self.assertAlmostEqual(times.end, 0.5 + 1e-3 + 2e-3 + 0.01 + 1.5e-3 + 2e-3 + 0.01 + 1e-3)
        self.assertAlmostEqual(times.sending, 4e-3)
        self.assertAlmostEqual(times.coding, 3.5e-3)

    def test_messages_and_bytes_cost_the_host_in_four_directions(self):
        """Of K ranks, one sends and receives (K - 1)/K of a unit's messages and bytes in each of the two
        rounds."""
        fast = pipeline.Link(1e15, 0.0)
        unit = plan.Unit(0, 1000, 2, (0,))
        for ranks, each in ((2, 1 / 2), (4, 3 / 4)):
            for host, expected in (
                (pipeline.Host(0.0, 0.0, message=1.0, copy=0.0), 4 * each * 2),
                (pipeline.Host(0.0, 0.0, message=0.0, copy=1.0), 4 * each * 1000),
            ):
                end = pipeline.simulate([unit], [0.0], ranks, fast, host).end
                self.assertAlmostEqual(end, expected, places=6)

    def test_over_nccl_all_that_a_unit_sends_at_once_is_one_call(self):
        """Two of each unit, one after another, each with its latency; none of them holds up coding."""
        base = pipeline.Host(1e-3, 0.0, message=1.0, copy=1.0)
        host = devices.host_of({"exchange": {"transport": "nccl"}}, "cuda", base)
        for ranks in (2, 8):
            link = pipeline.Link(8e3 * pipeline.Link.HEADERS, 0.25)  # a second a kB
            units = [plan.Unit(1000, 1000, ranks, (0,))] * 2
            times = pipeline.simulate(units, [0.0, 0.0], ranks, link, host)
            part = (ranks - 1) / ranks
            self.assertAlmostEqual(times.end, 1.0 + 4 * (1.0 + part + 0.25))
            self.assertAlmostEqual(times.sending, 4 * part)
            self.assertAlmostEqual(times.coding, 2 * (1.0 + 1.0 / ranks))
        for config, copy in (({}, 1.0), ({"device_pointers": "auto"}, 1.0), ({"device_pointers": True}, 0.0)):
            other = devices.host_of({"exchange": config}, "cuda", base)
            self.assertEqual((other.ordered, other.copy), (False, copy))

    def test_calls_of_blocks_over_nccl(self):
        """The links of a block and between blocks are used at the same time; without the first one it is the second."""
        within, between = pipeline.Link(8e3, 0.5), pipeline.Link(4e3, 0.25)
        unit = plan.Unit(0, 1000, 4, (0,))
        host = devices.host_of({"exchange": {"transport": "nccl"}}, "cuda", pipeline.Host(0.0, 0.0, message=1.0))
        per = 1000 / 4 * 8 * pipeline.Link.HEADERS  # a quarter stays within a machine of two, half does not
        both = pipeline.simulate([unit], [0.0], 4, between, host, pipeline.Machines(2, within)).end
        self.assertAlmostEqual(both, 2 * (1.0 + 2 * per / 4e3 + 0.5))
        one = pipeline.simulate([unit], [0.0], 4, between, host, pipeline.Machines(2, None)).end
        self.assertAlmostEqual(one, 2 * (1.0 + 3 * per / 4e3 + 0.25))

    def test_tensors_of_a_layer_keep_their_order(self):
        names = ("conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias")
        tensors = [plan.PlannedTensor(name, 1 << 16, 1 << 18, 512, False) for name in names]
        self.assertEqual([unit.tensors for unit in plan.make_plan(tensors, 2)], [(4,), (5,), (2,), (3,), (0,), (1,)])
        self.assertEqual([unit.tensors for unit in plan.make_plan(tensors, 2, numbers=[1, 2, 3])], [(2,), (3,), (1,)])

    def test_many_units_fill_the_link(self):
        link = pipeline.Link(8e6 * pipeline.Link.HEADERS, 0.0)
        units = [plan.Unit(10, 10000, 2, (0,)) for _ in range(100)]
        times = pipeline.simulate(units, [0.0] * 100, 2, link, self.HOST)
        self.assertAlmostEqual(times.sending, 1.0)
        self.assertLess(times.end, 1.03)  # all but the ends overlaps

    def test_more_bandwidth_is_never_slower(self):
        units = [plan.Unit(5000, 20000, 2, (0,)) for _ in range(30)]
        ends = [
            pipeline.simulate(units, [0.01 * i for i in range(30)], 4, pipeline.Link(b, 1e-4), self.HOST).end
            for b in (1e6, 1e7, 1e8, 1e9)
        ]
        self.assertEqual(ends, sorted(ends, reverse=True))

    def test_a_burst_leaves_at_once(self):
        units = [plan.Unit(0, 2000, 2, (0,))]
        plain = pipeline.simulate(units, [10.0], 2, pipeline.Link(8e3, 0.0), self.HOST).end
        burst = pipeline.simulate(units, [10.0], 2, pipeline.Link(8e3, 0.0, 1e6), self.HOST).end
        self.assertAlmostEqual(plain - 10, 2 * pipeline.Link.HEADERS)
        self.assertAlmostEqual(burst, 10.0)


class Computing(unittest.TestCase):
    def run_of(self, batch, forward):
        seconds = dict.fromkeys(run_folder.PARTS, 0.0) | {
            "forward": forward,
            "backward": 2 * forward,
            "update": 0.1,
        }
        return run_folder.Measured("r", 1, batch, {}, seconds)

    def test_between_two_batches(self):
        computing = scaling.from_runs([self.run_of(32, 1.0), self.run_of(8, 0.4)])
        self.assertAlmostEqual(computing.at(20)[0], 0.7)
        self.assertAlmostEqual(computing.at(2)[1], 2 * 0.25)
        self.assertAlmostEqual(computing.at(64)[0], 1.8)
        self.assertGreater(computing.at(1)[0], 0)

    def test_one_batch_is_never_a_plain_fraction(self):
        computing = scaling.from_runs([self.run_of(32, 1.0)])
        self.assertAlmostEqual(computing.at(32)[0], 1.0)
        self.assertGreater(computing.at(16)[0], 0.5)


class Waiting(unittest.TestCase):
    """Ranks wait for each other and for coding that takes their cores;
    bench/link/predict_check.py checks the same terms.
    """

    def setUp(self):
        self.shown = program.show(str(CONFIG))
        self.computing = scaling.Computing(((8, 1.0, 2.0, 0.0),), 0.0, "")

    def step(self, computing, ranks, host, overlap=True):
        codec = scaling.codec_of(self.shown)
        return scaling.predict(self.shown, codec, ranks, 8, computing, pipeline.NO_LINK, host, overlap)

    def test_what_a_run_took_longer(self):
        host = pipeline.Host(0.0, 0.0, 0.0, 0.0)
        plain = self.step(self.computing, 2, host)
        waiting = scaling.with_waiting(self.computing, [(plain.seconds + 0.3, plain)])
        self.assertAlmostEqual(self.step(waiting, 2, host).seconds, plain.seconds + 0.3)
        self.assertAlmostEqual(self.step(waiting, 4, host).waiting, 0.3)  # the nearest that was measured
        self.assertEqual(self.step(waiting, 1, host).waiting, 0)
        self.assertEqual(scaling.with_waiting(self.computing, [(0.1, plain)]).waits(2), 0)

    def test_coding_takes_from_computing_only_beside_it(self):
        none, half = (pipeline.Host(1e-9, 1e-9, 0.0, 0.0, share) for share in (0.0, 0.5))
        plain, shared = (self.step(self.computing, 2, host) for host in (none, half))
        self.assertEqual(plain.waiting, 0)
        self.assertAlmostEqual(shared.waiting, 0.5 * (shared.coding - shared.exposed))
        self.assertGreater(shared.waiting, 0.01)
        self.assertAlmostEqual(self.step(self.computing, 2, half, overlap=False).waiting, 0)


class Options(unittest.TestCase):
    def test_links(self):
        link = links.link_of("10Gbit,50us")
        self.assertEqual((link.bandwidth, link.burst), (1e10, 0))
        self.assertAlmostEqual(link.latency, 50e-6)
        self.assertEqual(links.link_of("100 Mbit, 1.5ms, 64kB"), pipeline.Link(1e8, 1.5e-3, 64000))
        for burst in ("500B", "256kB", "2MB"):  # in the units of the configuration
            words = {"bandwidth": "1Gbit", "latency": "50us", "burst": burst}
            self.assertEqual(links.link_of(f"1Gbit,50us,{burst}"), links.emulated({"link": words}, "x"))
        for text in ("", "10Gbit", "50us", "ten,50us", "0Gbit,1us", "10Gbit,50", "1e400Gbit,1us"):
            with self.assertRaises(CostModelError):
                links.link_of(text)

    def test_ranks(self):
        self.assertEqual(config_report.ranks_of("2,4,..,64"), [2, 4, 8, 16, 32, 64])
        self.assertEqual(config_report.ranks_of("3, 5"), [3, 5])
        for text in ("", "0", "..", "2,..", "2,..,x", "-1", "9999"):
            with self.assertRaises(CostModelError):
                config_report.ranks_of(text)


class Command(FolderTest):
    def setUp(self):
        super().setUp()
        self.config = self.root / "config.yaml"
        self.config.write_text(
            f"network: {SOURCE}/configs/networks/resnet20.yaml\ndata: "
            f"{{dataset: noise, image: [32, 32, 3], classes: 10, "
            "train_samples: 256, test_samples: 8}\ntrain: {batch_size: 64}\n"
            "exchange: {codec: {kind: qsgd, bits: 4}}\n"
        )

    def run_folder(self, name="run", seconds=None, lines=None, ranks=2):
        folder = self.root / name
        folder.mkdir()
        record = {"epoch": 1, "samples": 640, "seconds": {**SECONDS, **(seconds or {})}}
        (folder / "metrics.jsonl").write_text(lines if lines is not None else json.dumps(record) + "\n")
        (folder / "environment.json").write_text(json.dumps({"ranks": ranks}))
        (folder / "config.yaml").write_text(self.config.read_text())
        return str(folder)

    def predicted(self, *words):
        status, out, err = predict(str(self.config), *words, "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def test_a_run(self):
        found = self.predicted("--run", self.run_folder(), "--ranks", "2,4", "--link", "1Gbit,50us")
        self.assertEqual(
            [(r["ranks"], r["codec"]) for r in found["rows"]],
            [(2, "none"), (2, "qsgd4"), (4, "none"), (4, "qsgd4")],
        )
        self.assertEqual(found["coding"]["qsgd4"], "measured")
        none, coded = found["rows"][:2]
        self.assertAlmostEqual(
            none["computation_s"], 0.97
        )  # data, forward, backward, update, other: of 10 steps
        self.assertAlmostEqual(coded["coding_s"], 0.2, delta=0.001)  # as measured
        self.assertAlmostEqual(none["bytes_per_rank"], 4 * 272474, delta=1)
        self.assertAlmostEqual(none["samples_per_s"], 64 / none["step_s"])
        self.assertGreater(none["speedup_over_none"], 0.999)

    def test_ranks_that_waited(self):
        run = self.run_folder(
            seconds={"total": 13.0, "encode": 0.1, "decode": 0.1}
        )  # 1.2 s a step, 0.97 of it computing
        found = self.predicted("--run", run, "--ranks", "2", "--link", "1000Gbit,0us", "--codecs", "qsgd4")
        self.assertAlmostEqual(found["rows"][1]["step_s"], 1.2, delta=0.001)
        slow = self.predicted(
            "--run", run, "--run-link", "1Mbit,0us", "--ranks", "2", "--link", "1000Gbit,0us"
        )
        self.assertLess(
            slow["rows"][1]["step_s"], found["rows"][1]["step_s"] - 0.05
        )  # the link took a part of it

    def test_a_slow_link_makes_compression_pay(self):
        run = self.run_folder(
            seconds={"total": 1.81, "forward": 0.03, "backward": 0.06, "encode": 0.001, "decode": 0.001}
        )
        slow = self.predicted("--run", run, "--ranks", "2", "--link", "10Mbit,50us")
        self.assertGreater(slow["rows"][1]["speedup_over_none"], 2)
        self.assertIn("2 ranks: qsgd4 pays", slow["verdicts"][0])

    def test_slow_coding_makes_compression_not_pay(self):
        coded = self.run_folder(seconds={"encode": 20.0, "decode": 20.0})
        plain = self.run_folder("plain", seconds={"encode": 0.1, "decode": 0.1})
        text = pathlib.Path(plain, "config.yaml").read_text()
        pathlib.Path(plain, "config.yaml").write_text(text.replace("{kind: qsgd, bits: 4}", "none"))
        found = self.predicted("--run", coded, "--run", plain, "--ranks", "2", "--link", "1000Gbit,1us")
        self.assertEqual(found["coding"], {"none": "measured", "qsgd4": "measured"})
        self.assertRegex(found["verdicts"][0], r"2 ranks: qsgd4 does not pay: \d+\.\d % slower than none")

    def test_ranks_that_the_batch_does_not_allow_are_left_out(self):
        """The command as the documentation has it, on a batch of 64, on a table of batches up to 4 ranks, and
        with --weak."""
        words = ("--ranks", "2,4,..,256", "--link", "10Gbit,50us")
        run = self.run_folder()
        every = [2, 4, 8, 16, 32, 64, 128, 256]
        found = self.predicted("--run", run, *words)
        self.assertEqual(sorted({row["ranks"] for row in found["rows"]}), every[:6])
        self.assertEqual(
            found["skipped"],
            [
                {"ranks": k, "reason": f"train.batch_size 64 is not a multiple of {k} ranks"}
                for k in (128, 256)
            ],
        )
        _, out, _ = predict(str(self.config), "--run", run, *words)
        self.assertIn(
            "\n  256  left out: train.batch_size 64 is not a multiple of 256 ranks; "
            "--weak keeps the measured local batch\n",
            out,
        )
        found = self.predicted("--run", run, *words, "--weak")
        self.assertEqual((sorted({row["ranks"] for row in found["rows"]}), found["skipped"]), (every, []))
        last = [row for row in found["rows"] if row["ranks"] == 256 and row["codec"] == "none"][0]
        wire = 4 * found["parameters"] * 2 * 255 / 256
        self.assertAlmostEqual(last["bytes_per_rank"], wire, delta=1e-3 * wire)
        self.config.write_text(
            self.config.read_text().replace("batch_size: 64", "batch_size: {1: 32, 2: 64, 4: 64}")
        )
        found = self.predicted("--run", run, *words)
        self.assertEqual(sorted({row["ranks"] for row in found["rows"]}), every[:2])
        self.assertEqual([row["ranks"] for row in found["skipped"]], every[2:])
        self.assertIn("no positive whole number for 32 ranks", found["skipped"][2]["reason"])

    def test_rules_make_a_codec_of_their_own(self):
        """The row of none is float32's, whatever the configuration says; the configured one has its bytes."""
        words = ("--ranks", "2", "--link", "1Gbit,50us", "--run", self.run_folder())
        plain = [r for r in self.predicted(*words)["rows"] if r["codec"] == "none"]
        rule = "exchange.rules=[{kind: dense, codec: {kind: onebit, bucket: 64}}]"
        found = self.predicted(*words, "--set", "exchange.codec=none", "--set", rule)["rows"]
        self.assertEqual([r["codec"] for r in found], ["none", "configured"])
        self.assertEqual(found[0]["bytes_per_rank"], plain[0]["bytes_per_rank"])
        self.assertLess(found[1]["bytes_per_rank"], found[0]["bytes_per_rank"])

    def test_weak_scaling_keeps_the_local_batch(self):
        found = self.predicted(
            "--run", self.run_folder(), "--ranks", "2,16", "--link", "1Gbit,50us", "--weak"
        )
        self.assertEqual({r["local_batch"] for r in found["rows"]}, {32})
        self.assertEqual(len({round(r["computation_s"], 9) for r in found["rows"]}), 1)

    def test_the_table(self):
        status, out, _ = predict(
            str(self.config), "--run", self.run_folder(), "--link", "1Gbit,50us", "--codecs", "none,qsgd2"
        )
        self.assertEqual(status, 0)
        self.assertIn("5 % of forward and backward are taken not to shrink", out)
        self.assertEqual(sum("qsgd2" in line for line in out.splitlines()), 6)  # three rows, three verdicts

    def refused(self, *words):
        status, out, err = predict(*words)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
        return err

    def test_mistakes(self):
        config, run, link = str(self.config), self.run_folder(), ("--link", "1Gbit,50us")
        for words, text in (
            ((config, "--run", run), "--link BANDWIDTH,LATENCY is missing"),
            ((config, "--run", run, "--link", "fast"), "--link: 'fast'"),
            ((config, "--run", run, *link, "--ranks", "2,x"), "--ranks: '2,x'"),
            (
                (config, "--run", run, *link, "--ranks", "3"),
                "batch_size 64 is not a multiple of 3 ranks; --weak keeps",
            ),
            (
                (config, "--step-seconds", "1", *link, "--ranks", "2", "--set", "train.micro_batches=5"),
                "32 samples of each of 2 ranks are not a multiple of 5 micro-batches; --weak keeps",
            ),
            ((config, "--run", run, *link, "--set", "train.micro_batches=2"), "a run with train.micro_batches 1, not 2"),
            ((config, "--run", run, *link, "--codecs", "qsgd3"), "unknown codec 'qsgd3'"),
            ((config, "--run", run, *link, "--codecs", "{kind: foo}"), "'foo' is not known"),
            ((config, "--run", run, *link, "--step-seconds", "1"), "not together with --run"),
            ((config, *link, "--step-seconds", "nan"), "--step-seconds"),
            ((config, "--run", run, *link, "--coding-share", "2"), "--coding-share"),
            ((config, "--run", run, *link, "--run-link", "slow"), "--run-link: 'slow'"),
            ((config, *link, "--step-seconds", "1", "--step-batch", "0"), "--step-batch"),
            ((config, "--run", str(self.root / "no"), *link), "metrics.jsonl: cannot be read"),
            ((str(self.root / "no.yaml"), *link), "no.yaml: cannot be read"),
            ((str(CONFIG), "--run", run, *link), "not of alexnet"),
            ((config, "--run", self.run_folder("empty", lines=""), *link), "holds no finished epoch"),
            ((config, "--run", self.run_folder("bad", lines="{}\n"), *link), "metrics.jsonl:1: not an epoch"),
            (
                (config, "--run", self.run_folder("nan", seconds={"forward": float("nan")}), *link),
                "metrics.jsonl:1: 'nan'",
            ),
            ((config, "--run", self.run_folder("zero", ranks=0), *link), "'ranks' is not"),
            (("--outlook", str(self.root)), "--outlook needs --calibrate"),
        ):
            with self.subTest(text):
                self.assertIn(text, self.refused(*words))


if __name__ == "__main__":
    unittest.main()
