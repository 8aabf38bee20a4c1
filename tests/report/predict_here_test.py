"""lpsgd predict CONFIG without a run: computing is measured here, in about two minutes. 77 is a skip."""

import contextlib
import io
import json
import unittest
from unittest import mock

from harness import SOURCE, FolderTest
from predict_harness import predict

import program
from costmodel import measured_here


class Here(FolderTest):
    def test_without_a_run_computing_is_measured_here(self):
        config = self.root / "small.yaml"
        config.write_text(
            f"network: {SOURCE}/configs/networks/logistic.yaml\ndata: {{dataset: shapes}}\n"
            "train: {batch_size: 64, threads: 1, device: cpu}\n"
        )
        status, out, err = predict(str(config), "--link", "1Gbit,50us", "--ranks", "2,4", "--json")
        self.assertEqual(status, 0, err)
        found = json.loads(out)
        self.assertEqual(found["computing"]["batches"], [16, 32])
        self.assertIn("lpsgd bench layers on 1 thread of this machine", found["computing"]["source"])
        self.assertEqual(err.count("measuring the steps of one rank here"), 2, err)
        rows = program.ask("bench", "layers", str(config), "--json", "--batch", "32", "--repeats", "3")
        seconds = sum(row["seconds"] for row in rows)
        of_two = next(row["computation_s"] for row in found["rows"] if row["ranks"] == 2)
        self.assertTrue(seconds / 5 < of_two < 5 * seconds, (seconds, of_two))

    def test_open_frames_must_be_given(self):
        """A step of one frame would say nothing."""
        config = self.write(
            "net.yaml",
            "network: {name: net, input: [any, 6], classes: 5, layers: [{lstm: l, cell: 8}, {dense: d, units: 5}]}\n"
            "data: {dataset: an4, root: /none}\ntrain: {batch_size: 8, threads: 1, device: cpu}\n",
        )
        words = (str(config), "--link", "1Gbit,50us", "--ranks", "2")
        status, out, err = predict(*words)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn(f"{config}: the network leaves the number of frames open: --frames N says how many", err)
        seen = []

        def step(bench, batch, counts):
            seen.append(bench.words[bench.words.index("--frames") + 1] if "--frames" in bench.words else None)
            return [0.1, 0.2]

        with mock.patch.object(measured_here.Bench, "step", step):
            status, out, err = predict(*words, "--frames", "200")
            self.assertEqual((status, set(seen)), (0, {"200"}), err)
            self.assertIn("; sequences of 200 frames", out)
            seen.clear()
            self.assertEqual(predict(*words, "--set", "data.truncate=30")[0], 0)
            self.assertEqual(set(seen), {None})
        for more, message in (
            (("--set", "data.truncate=30", "--frames", "9"), "--frames 9: the network's input or data.truncate gives"),
            (("--step-seconds", "1", "--frames", "9"), "--frames: not together with --run or --step-seconds"),
        ):
            status, out, err = predict(*words, *more)
            self.assertEqual((status, out), (2, ""))
            self.assertIn(message, err)
        self.assertEqual(predict(*words, "--step-seconds", "1")[0], 0)

    def measured(self, of_a_sample, batches, config=None, **more):
        """What a machine of so many seconds a sample measures: (batches, steps of each), and what it says."""
        asked = []

        def step(bench, batch, counts):
            asked.append((batch, sum(counts)))
            clock[0] += sum(counts) * batch * of_a_sample
            return [batch * of_a_sample / 3, 2 * batch * of_a_sample / 3]

        clock, err = [0.0], io.StringIO()
        bench = mock.patch.multiple(measured_here.Bench, __init__=lambda *_: None, step=step, create=True, **more)
        with bench, mock.patch("time.monotonic", lambda: clock[0]), contextlib.redirect_stderr(err):
            found = measured_here.computing("c", (), config or {}, batches)
        self.assertLessEqual([p[0] for p in found.points], sorted(p[0] for p in found.points))
        for batch, forward, backward, rest in found.points:
            self.assertAlmostEqual(forward + backward, of_a_sample * batch)
            self.assertEqual(rest, 0)
        return asked, clock[0], found, err.getvalue()

    def test_slow_steps_are_measured_less_often_and_with_smaller_batches(self):
        """VGG19 on two cores takes 1.9 s a sample: batch 32 over 2, 4 and 8 ranks, and on one rank."""
        usual = {"is_on_gpu": False, "where": "here"}
        hint = "--run RUN takes a run's steps, and --step-seconds S a number"
        for of_a_sample, batches, expected in (
            (0.001, [16, 8, 4], [(1, 2), (4, 6), (16, 6)]),
            (1.9, [16, 8, 4], [(1, 2), (4, 6), (16, 2)]),
            (1.7, [32], [(1, 2), (32, 2)]),
            (1.9, [32], [(1, 2), (30, 2)]),
            (10, [16, 8, 4], [(1, 2), (4, 2)]),
            (100, [64, 8], [(1, 2)]),
        ):
            with self.subTest(of_a_sample=of_a_sample, batches=batches):
                asked, took, found, err = self.measured(of_a_sample, batches, **usual)
                self.assertEqual(asked, expected)
                self.assertLessEqual(took, max(measured_here.SECONDS, 2 * of_a_sample))
                self.assertEqual(err.count(hint), of_a_sample > 1, err)
                self.assertEqual("were not measured" in found.source, found.points[-1][0] < max(batches))
                self.assertEqual(err.count("measuring the steps"), len(found.points))
                self.assertEqual(err.count(" s, forward and backward"), len(found.points))
        slow = self.measured(4.0, [4], **usual)[-1]
        self.assertIn("that took 96 s; " + hint, slow)
        asked, _, found, err = self.measured(0.001, [16, 8, 4], {"train": {"micro_batches": 4}}, **usual)
        self.assertEqual(asked, [(1, 2), (1, 6), (4, 6)])
        self.assertEqual([p[0] for p in found.points], [4, 16])
        self.assertIn("micro-batch 4: 0.004 s, forward and backward", err)
        self.assertIn("4 micro-batches a step", found.source)
        on_gpu = self.measured(100, [64, 8], is_on_gpu=True, where="this GPU")
        self.assertEqual(on_gpu[0], [(8, 6), (64, 6)])


if __name__ == "__main__":
    unittest.main()
