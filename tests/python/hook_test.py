"""The communication hook of PyTorch's DistributedDataParallel (python/lpsgd): its means are those of `lpsgd quantize`, bit for
bit. On the CPU over gloo; with DEVICE=cuda in the environment on a GPU, or several, over NCCL."""

import contextlib
import glob
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent import futures
from unittest import mock

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("DEVICE", "cpu")
if DEVICE == "cuda" and not glob.glob("/dev/nvidia[0-9]*") and not os.path.exists("/dev/dxg"):  # PyTorch says so, too, but later
    print("skipped: needs a GPU")
    sys.exit(77)
try:
    import torch
except ImportError:
    print("skipped: needs PyTorch")
    sys.exit(77)
import numpy as np

if DEVICE == "cuda" and not torch.cuda.is_available():
    print("skipped: needs a GPU and a PyTorch for it")
    sys.exit(77)
sys.path.insert(0, str(SOURCE / "tests"))
sys.path.insert(0, str(SOURCE / "tests" / "nn"))
sys.path.insert(0, str(SOURCE / "python"))
import hook_ranks  # noqa: E402
import safetensors_file  # noqa: E402
import skips  # noqa: E402
import torch_forks  # noqa: E402
from lpsgd import library, pipeline, transport  # noqa: E402

SHAPES = [(40, 130), (7,), (3, 5, 3, 3), (2000,), (1,), (129, 64)]
CODECS = [
    "none",
    "onebit",
    "{kind: onebit, bucket: tensor}",
    "{kind: qsgd, bits: 2, bucket: 128}",
    "{kind: qsgd, bits: 4, levels: optimal, error_feedback: true}",
    "{kind: topk, density: 0.02}",
    "sign",
    "dynamic8",
    "mx",
    "fp16",
]


def run_rank(case, folder, environment):
    os.environ.update(environment)
    hook_ranks.run(case, folder)


def bits(array):
    return np.ascontiguousarray(array, "<f4").view("<u4")


class HookTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.runs = 0

    def run_ranks(self, ranks, case, given, *, dead=(), **environment):
        """What the case returned on each rank; of ranks in `dead` nothing."""
        self.runs += 1
        folder = self.root / f"run{self.runs}"
        folder.mkdir()
        torch.save({**given, "folder": str(folder)}, folder / "given.pt")
        said = [folder / f"said-{rank}" for rank in range(ranks)]
        processes = []
        for rank, file in enumerate(said):
            whole = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "DEVICE": DEVICE, **environment}
            processes.append(torch_forks.start(run_rank, case, folder, whole, stdout=file, stderr=file))
        # Ranks that hang would keep the GPU, or the cores, from the other tests.
        for rank, status in enumerate(torch_forks.wait(processes, 120)):
            wanted = -signal.SIGKILL if rank in dead else 0
            self.assertEqual(status, wanted, f"rank {rank}:\n{said[rank].read_text()}")
        return [None if r in dead else torch.load(folder / f"out-{r}.pt") for r in range(ranks)]

    def gradients(self, ranks, steps, shapes=SHAPES):
        """One tensor (steps, ranks, ...) for each shape."""
        torch.manual_seed(5)
        return [torch.randn(steps, ranks, *shape) * torch.rand(()) for shape in shapes]

    def expected(self, gradients, codec, seed=1):
        """By `lpsgd quantize`: (steps, n) of each tensor."""
        path = self.root / "in.safetensors"
        safetensors_file.save(path, {f"{i:02}": g.flatten(2).numpy() for i, g in enumerate(gradients)})
        out = self.root / "out.safetensors"
        subprocess.run(
            [os.environ["LPSGD"], "quantize", path, "--codec", codec, "--seed", str(seed), "--out", out],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return [values for _, values in sorted(safetensors_file.load(out).items())]

    def assert_means(self, result, expected, first=0):
        for step, means in enumerate(result["means"], first):
            for tensor, mean in enumerate(means):
                np.testing.assert_array_equal(
                    bits(mean.flatten().numpy()),
                    bits(expected[tensor][step]),
                    f"step {step}, tensor {tensor}",
                )

    def test_means_are_those_of_quantize(self):
        # On a GPU each start takes seconds, and the codecs have tests of their own there.
        for ranks, codecs in ((2, CODECS[:5]),) if DEVICE == "cuda" else ((1, CODECS[1:4]), (2, CODECS), (3, CODECS[:5])):
            gradients = self.gradients(ranks, 4)
            each = [{"gradients": gradients, "codec": codec, "seed": 9} for codec in codecs]
            for codec, results in zip(codecs, zip(*self.run_ranks(ranks, "each", {"each": each}))):
                with self.subTest(ranks=ranks, codec=codec):
                    expected = self.expected(gradients, codec, 9)
                    for result in results:
                        self.assert_means(result, expected)
                        self.assertEqual(result["step"], 4)
                        self.assertEqual(set(result["codecs"]), {f"tensors.{i}" for i in range(len(SHAPES))})
                        self.assertGreater(result["seconds"]["encode"], 0)

    def test_bytes(self):
        gradients = self.gradients(3, 2)
        results = self.run_ranks(3, "steps", {"gradients": gradients, "codec": "{kind: qsgd, bits: 4}"})
        # 2 (K - 1) copies of each tensor a step: a float32 and half a byte a value for each bucket of 512.
        values = [g[0, 0].numel() for g in gradients]
        copy = sum(4 * -(-n // 512) + -(-n // 2) for n in values)
        self.assertAlmostEqual(sum(r["sent"] for r in results) / (2 * 4 * copy), 1, delta=0.01)
        for result in results:
            self.assertAlmostEqual(result["float32"] / (2 * 8 * sum(values) * 2 / 3), 1, delta=0.01)

    def test_warmup(self):
        """The means as they are, and then those of an exchange that begins."""
        for ranks in (1, 2, 3):
            gradients = self.gradients(ranks, 5)
            results = self.run_ranks(ranks, "steps", {"gradients": gradients, "codec": "onebit", "warmup_steps": 2})
            expected = self.expected([g[2:] for g in gradients], "onebit")
            for result in results:
                for step in range(2):
                    for g, mean in zip(gradients, result["means"][step]):
                        torch.testing.assert_close(mean, g[step].mean(0))
                self.assert_means({"means": result["means"][2:]}, expected)
                self.assertEqual(result["step"], 5)
                self.assertGreaterEqual(result["sent"], 2 / 5 * result["float32"])
                self.assertLessEqual(result["sent"], (2 / 5 + 3 / 5 / 8) * result["float32"])

    def test_half_gradients(self):
        """They are coded as float32, and the means rounded."""
        gradients = [g.to(torch.float16).float() for g in self.gradients(2, 3)]
        given = {"gradients": gradients, "codec": "onebit", "dtype": torch.float16}
        expected = [torch.tensor(e).to(torch.float16).float().numpy() for e in self.expected(gradients, "onebit")]
        for result in self.run_ranks(2, "steps", given):
            result["means"] = [[mean.float() for mean in means] for means in result["means"]]
            self.assert_means(result, expected)

    def test_one_bucket(self):
        gradients = self.gradients(2, 3)
        given = {"gradients": gradients, "codec": "onebit", "bucket_mb": 25}
        expected = self.expected(gradients, "onebit")
        for result in self.run_ranks(2, "steps", given):
            self.assert_means(result, expected)

    def test_state_goes_on(self):
        gradients = self.gradients(2, 4)
        codecs = {f"tensors.{i}": "{kind: none}" for i in range(len(SHAPES))}
        given = {
            "gradients": gradients,
            "codec": "onebit",
            "changes": [{"ranks": 3}, {"rank": 5}, {"seed": 2}, {"codecs": codecs}, {"residuals": {}}],
        }
        expected = self.expected(gradients, "onebit")
        for rank, result in enumerate(self.run_ranks(2, "goes_on", given)):
            self.assert_means(result, expected, first=2)
            self.assertEqual(result["step"], 4)
            onebit = "{kind: onebit, bucket: 64, error_feedback: true}"
            self.assertEqual(
                result["errors"],
                [
                    "the exchange's state has ranks 3, here it is 2",
                    f"the exchange's state has rank 5, here it is {rank}",
                    "the exchange's state has seed 2, here it is 1",
                    f"the exchange's state has codec {{kind: none}} for tensors.0, here it is {onebit}",
                    "the exchange's state has 0 values of tensors.0 in round 1, here it has 5200",
                ],
            )

    def test_states_of_another_number_of_ranks(self):
        """Round 1 has the mean of the old residuals; round 2 lies in the stripes of docs/exchange.md."""
        bucket = 64  # onebit's
        for old, new in ((2, 3), (3, 1), (3, 2)):
            given = {"gradients": self.gradients(old, 2), "codec": "onebit"}
            states = self.run_ranks(old, "saves", given)
            wrong = [
                [],
                states[1:],
                [{**state, "seed": 7} for state in states],
                [*states[:-1], {**states[-1], "step": 5}],
                [*states[:-1], {**states[-1], "residuals": {}}],
            ]
            given = {"gradients": self.gradients(new, 1), "codec": "onebit", "states": states, "wrong": wrong}
            results = self.run_ranks(new, "other_ranks", given)
            for number, name in enumerate(sorted(results[0]["state"]["residuals"], key=lambda n: int(n.split(".")[1]))):
                size = len(states[0]["residuals"][name][0])

                def whole(parts, ranks):
                    out, buckets = np.full(size, np.nan, "f4"), -(-size // bucket)
                    for r in range(ranks):
                        first, last = (min(size, buckets * i // ranks * bucket) for i in (r, r + 1))
                        out[first:last] = parts[(r + number) % ranks]
                    return out

                before = whole([state["residuals"][name][1].numpy() for state in states], old)
                after = whole([r["state"]["residuals"][name][1].numpy() for r in results], new)
                np.testing.assert_array_equal(bits(before), bits(after))
                mean = np.mean([state["residuals"][name][0].double().numpy() for state in states], axis=0)
                for result in results:
                    np.testing.assert_array_equal(result["state"]["residuals"][name][0].numpy(), mean.astype("f4"))
            for result in results:
                self.assertEqual(result["state"]["step"], 2)
                self.assertEqual([torch.equal(a, b) for a, b in zip(result["mean"], results[0]["mean"])], [True] * len(SHAPES))
                errors = result["errors"]
                self.assertEqual(errors[0], "the list of the exchange's states is empty")
                self.assertIn("the exchange's state has seed 7, here it is 1", errors[2])
                self.assertEqual(len(errors), len(wrong))

    def test_accumulation_and_unused_parameters(self):
        gradients = self.gradients(2, 4)
        half = len(SHAPES) // 2
        exchanged = [torch.stack([g[0] + g[1] + g[2], g[3]]) for g in gradients]
        expected = self.expected(exchanged, "{kind: qsgd, bits: 4}")
        given = {"gradients": gradients, "codec": "{kind: qsgd, bits: 4}"}
        for result in self.run_ranks(2, "accumulates", given):
            self.assert_means(result, expected)
            self.assertEqual(result["unused"], (len(SHAPES) - half) * [None])
            self.assertEqual(result["step"], 2)

    def test_a_network_in_both_memory_formats(self):
        rules = [{"kind": "conv", "codec": {"kind": "qsgd", "bits": 8}}, {"name": "4.w*", "codec": "onebit"}]
        for memory_format in ("contiguous_format", "channels_last"):
            given = {"format": memory_format, "options": {"rules": rules, "min_elements": 100}}
            results = self.run_ranks(2, "network", given)
            kinds = [codec.split(",")[0].strip("{}") for codec in results[0]["codecs"].values()]
            self.assertEqual(kinds, ["kind: qsgd"] + 3 * ["kind: none"] + ["kind: onebit", "kind: none"])
            for a, b in zip(results[0]["weights"], results[1]["weights"]):
                self.assertTrue(torch.equal(a, b))
            # The convolution's gradient is coded in the order of its memory.
            both = torch.stack([r["alone"][0] for r in results])
            order = (0, 1, 3, 4, 2) if memory_format == "channels_last" else (0, 1, 2, 3, 4)
            in_memory = both.permute(order).reshape(1, 2, -1)
            (mean,) = self.expected([in_memory], "{kind: qsgd, bits: 8}")
            first = results[0]["first"][0]
            ours = (first.permute(0, 2, 3, 1) if memory_format == "channels_last" else first).flatten()
            np.testing.assert_array_equal(bits(ours.numpy()), bits(mean[0]))

    def test_join(self):
        """Ranks that have no more data take part with zeros, and their residuals."""
        gradients = self.gradients(2, 3)
        exchanged = [g.clone() for g in gradients]
        for g in exchanged:
            g[2, 0] = 0
        given = {"gradients": gradients, "codec": "onebit"}
        results = self.run_ranks(2, "joins", given)
        expected = self.expected(exchanged, "onebit")
        self.assert_means(results[0], expected, first=1)
        self.assertEqual([r["step"] for r in results], [3, 3])
        self.assert_means(results[1], expected, first=2)

    def test_two_models_of_some_ranks(self):
        gradients = self.gradients(2, 3)
        results = self.run_ranks(3, "two_models_of_some_ranks", {"gradients": gradients})
        for number, codec in enumerate(("none", "onebit")):
            expected = self.expected(gradients, codec)
            for result in results[1:]:
                self.assert_means({"means": [means[number] for means in result["means"]]}, expected)

    def test_a_nan(self):
        gradients = self.gradients(2, 4)
        for rank, result in enumerate(self.run_ranks(2, "a_nan", {"gradients": gradients, "codec": "onebit"})):
            finite = [all(torch.isfinite(mean).all() for mean in means) for means in result["means"]]
            self.assertEqual(finite, [True, False, True, True], rank)
            for resumed, means in zip(result["resumed"], result["means"][2:]):
                for a, b in zip(resumed, means):
                    self.assertTrue(torch.equal(a, b))

    def test_memory_that_pytorch_keeps(self):
        """It is given back where CUDA has none left for a bucket."""
        on_gpu, full = mock.Mock(cuda=(0, 0, 0)), library.LibraryError("CUDA: out of memory (cudaErrorMemoryAllocation) at x:1")
        for device, errors, raised in ((on_gpu, [full], None), (on_gpu, [full, full], full), (mock.Mock(cuda=None), [full], full),
                                       (on_gpu, [other := library.LibraryError("a bucket holds a tensor twice")], other)):
            with mock.patch("torch.cuda.empty_cache") as empty:
                make = mock.Mock(side_effect=[*errors, 7])
                with self.assertRaises(library.LibraryError) if raised else contextlib.nullcontext():
                    self.assertEqual(transport.Transport.with_room(device, make), 7)
            self.assertEqual(empty.call_count, int(device is on_gpu and errors[0] is full))
        if DEVICE == "cpu":
            return
        gradients = self.gradients(1, 1, [(16 << 20,), (16 << 20,)])
        (result,) = self.run_ranks(1, "kept_memory", {"gradients": gradients, "codec": "none", "bucket_mb": 1000})
        self.assertGreater(result["left"], result["room"] // 2)
        self.assert_means(result, self.expected(gradients, "none"))

    def test_ddp_options(self):
        gradients = self.gradients(2, 3)
        expected = self.expected(gradients, "onebit")
        for result in self.run_ranks(2, "ddp_options", {"gradients": gradients, "codec": "onebit"}):
            for means in result["all"]:
                self.assert_means({"means": means}, expected)

    def test_misuse(self):
        (result,) = self.run_ranks(1, "misused", {"gradients": self.gradients(1, 1), "codec": "onebit"})
        self.assertIn("copy or save model.module", result["errors"]["copy"])
        errors = result["errors"]
        self.assertIn("copy or save model.module", errors["copy of the model"])
        self.assertEqual(errors["twice"], "ValueError: the gradients of this model are compressed already")
        for name, message in (
            ("type", "is a int; expected what state_dict() returned"),
            ("keys", "has no residuals"),
            ("step", "has step -1; expected a whole number below 2^32"),
            ("no dictionary", "has residuals of type list; expected a dictionary"),
            ("no tensors", "has no residual of both rounds for tensors.0; expected two tensors"),
            ("list", "is a int; expected what state_dict() returned"),
            ("rounds", "has no residual of both rounds for tensors.0; expected two tensors"),
        ):
            self.assertEqual(errors[f"state {name}"], f"ValueError: the exchange's state {message}")
        self.assertEqual([errors[name] for name in ("close", "close again", "state afterwards")], [None, None, 1])
        self.assertIn("RuntimeError: lpsgd: the exchange of this model's gradients is closed", errors["backward afterwards"])
        self.assertEqual(set(sum(result["types"].values(), [])), {torch.float32})

    def test_odd_parameters(self):
        gradients = self.gradients(2, 3, [(48, 32), (48, 32)])
        with_warning = self.run_ranks(2, "odd_parameters", {"gradients": gradients})
        for result in with_warning:
            self.assertEqual(result["step"], 3)
            self.assertEqual(set(result["codecs"]), {"none", "none64", "turned", "l.weight"})
            # As it lies in memory it has 32 rows of 48 values; a column of these has two values.
            rows = result["turned"].t()
            self.assertEqual({len(set(column.tolist())) for column in rows.t()}, {2})
        self.assertTrue(torch.equal(*(r["turned"] for r in with_warning)))

    def test_what_is_refused(self):
        def refused(*options, kind="", **environment):
            given = {"kind": kind, "options": list(options)}
            return [r["message"] for r in self.run_ranks(len(options), "refused", given, **environment)]

        good = {"codec": "onebit"}
        for options, message in (
            ({"codec": "{kind: qsgd, bits: 9}"}, "codec.bits: '9' is not known; allowed: 2, 4, 8, 16"),
            ({"codec": {"kind": "qsdg"}}, "did you mean 'qsgd'?"),
            ({"codec": "onebit", "min_elements": "all"}, "min_elements"),
            ({"codec": "onebit", "rules": [{"kind": "layer", "codec": "none"}]}, "rules"),
            ({"codec": "onebit", "rules": {"kind": "conv"}}, "rules: 'kind' is not a dictionary"),
            ({"codec": "onebit", "warmup_steps": 0.5}, "warmup_steps is 0.5; allowed: whole numbers from 0"),
            ({"codec": "onebit", "seed": -1}, "seed is -1; allowed: whole numbers from 0 to 4294967295"),
        ):
            with self.subTest(message):
                self.assertIn(message, refused(options)[0])
        self.assertEqual(refused(good, kind="plain"), ["model is a Sequential; expected a DistributedDataParallel"])
        self.assertEqual(
            refused(good, kind="sparse"), ["2.weight: sparse gradients cannot be exchanged; expected sparse=False"]
        )
        self.assertEqual(
            refused(good, {"codec": "sign", "seed": 4, "warmup_steps": 1}),
            2 * ["rank 1 has other seed and warmup_steps and codecs than rank 0"],
        )
        # A rank that cannot take part tells the others.
        first, second = refused(good, {"codec": "qsdg"})
        self.assertEqual(first, f"rank 1: {second}")
        (message,) = refused(good, LPSGD_LIBRARY="/nowhere/liblpsgd.so")
        self.assertIn("/nowhere/liblpsgd.so: no such file; scripts/build makes it", message)
        (message,) = refused(good, LPSGD_LIBRARY=__file__)
        self.assertIn(f"{__file__} cannot be loaded", message)

    @unittest.skipIf(DEVICE == "cuda", "NCCL has its own watchdog")
    def test_a_rank_that_dies_ends_the_others(self):
        given = {"gradients": self.gradients(3, 3), "codec": "onebit"}
        for result in self.run_ranks(3, "dies", given, dead=[2])[:2]:
            first, second = result["errors"]
            self.assertIn("lpsgd: the exchange of gradients failed in step 2: ", first)
            self.assertIn("lpsgd: the backward pass before this one has not exchanged all its gradients", second)


class FailingTransport:
    """Its messages fail from a number on."""

    cuda = None

    def __init__(self, number):
        self.left = number

    def on_device(self):
        return contextlib.nullcontext()

    def with_room(self, make):
        return make()

    def view(self, address, size, owner):
        return torch.zeros(size, dtype=torch.uint8)

    def post(self, sends, receives, tag):
        return []

    def wait(self, works):
        if self.left == 0:
            raise RuntimeError("cut off")
        self.left -= 1


class PipelineTest(unittest.TestCase):
    def test_every_bucket_of_a_failed_step_ends(self):
        """A future that never comes would make the backward pass wait for ever."""
        for number in range(6):
            values = [torch.ones(100) for _ in range(4)]
            tensors = [(str(i), "dense", (100,)) for i in range(4)]
            coder = library.Coder("codec: onebit", tensors, rank=0, ranks=2, seed=1)
            exchange = pipeline.Pipeline(coder, FailingTransport(number))
            exchange.begin(7)
            futures = [exchange.start(i, v, [i], [v], last=i == 3) for i, v in enumerate(values)]
            for future in futures:
                with self.assertRaisesRegex(RuntimeError, "failed in step 7: cut off"):
                    future.wait()
            with self.assertRaisesRegex(RuntimeError, "cut off"):
                exchange.require_idle()


class Recorder:
    """Coder, transport and streams of a GPU that is not there. Everything that is queued is recorded with its stream."""

    rank, ranks, cuda, device = 0, 2, (0, 1, 2), None

    def __init__(self):
        self.calls, self.stream, self.buckets = [], "default", 0
        self.gradient_stream, self.message_stream = mock.Mock(), mock.Mock()
        self.gradient_stream.wait_stream = lambda stream: self.add(f"gradients wait for {stream}")

    def add(self, text):
        self.calls.append(f"{self.stream}: {text}")

    def add_bucket(self, tensors, addresses):
        self.buckets += 1
        return self.buckets - 1

    def message(self, bucket, which, peer):
        return 0, 0

    def on_device(self):
        return contextlib.nullcontext()

    def with_room(self, make):
        return make()

    def view(self, address, size, owner):
        return torch.zeros(4, dtype=torch.uint8)

    def post(self, sends, receives, tag):
        self.add(f"messages {tag}")
        return [tag]

    def wait(self, works):
        self.add(f"waits for {works[0]}")

    @contextlib.contextmanager
    def on(self, stream):
        before, self.stream = self.stream, "gradients" if stream is self.gradient_stream else "messages"
        yield
        self.stream = before

    def __getattr__(self, name):
        if name not in ("begin", "encode", "reduce", "decode", "end", "drop_bucket"):
            raise AttributeError(name)
        return lambda *arguments: self.add(" ".join([name, *map(str, arguments)]))


class OnGpuTest(unittest.TestCase):
    def test_order_of_what_is_queued(self):
        gpu = Recorder()
        with mock.patch("torch.cuda.stream", gpu.on), mock.patch(
            "torch.cuda.current_stream", lambda device: "backward"
        ), mock.patch("torch.futures.Future", lambda devices: futures.Future()):
            exchange = pipeline.Pipeline(gpu, gpu)
            for step, kind in enumerate((torch.float32, torch.float16)):
                values = [torch.ones(8, dtype=kind) for _ in range(3)]
                gpu.calls.clear()
                exchange.begin(step)
                means = [exchange.start(i, v, [i], [v], last=i == 2) for i, v in enumerate(values)]
                self.assertTrue(all(mean.result(timeout=0) is v for mean, v in zip(means, values)))
                ready = "default: gradients wait for backward"
                first = 3 * step  # buckets of another type are new ones
                self.assertEqual(
                    gpu.calls,
                    [
                        f"default: begin {step}",
                        ready,
                        f"messages: encode {first}",
                        "messages: messages 0",
                        ready,
                        f"messages: encode {first + 1}",
                        "messages: messages 2",
                        "messages: waits for 0",
                        f"messages: reduce {first}",
                        "messages: messages 1",
                        ready,
                        f"messages: encode {first + 2}",
                        "messages: messages 4",
                        "messages: waits for 2",
                        f"messages: reduce {first + 1}",
                        "messages: messages 3",
                        "messages: waits for 1",
                        f"messages: decode {first}",
                        "messages: waits for 4",
                        f"messages: reduce {first + 2}",
                        "messages: messages 5",
                        "messages: waits for 3",
                        f"messages: decode {first + 1}",
                        "messages: waits for 5",
                        f"messages: decode {first + 2}",
                        "messages: end",
                        *(f"messages: drop_bucket {number}" for number in range(first)),
                    ],
                )
                exchange.require_idle()


if __name__ == "__main__":
    skips.main()
