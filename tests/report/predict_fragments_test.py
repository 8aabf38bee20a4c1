"""lpsgd predict CONFIG with sync.fragments and sync.delay: groups of tensors, what a delay hides, the mean step. 77 is a
skip."""

import json
import unittest
from unittest import mock

from harness import SOURCE
from predict_harness import TrainedTest, predict

import program
import synchronisation
from costmodel import fragments, local_steps, pipeline, plan, scaling
from costmodel.errors import CostModelError
from costmodel.fragments import Streaming


class Groups(unittest.TestCase):
    def test_they_are_the_trainers(self):
        """The sizes and ends of tests/trainer/local_fragments_test.cc."""
        sizes = [108, 4, 4, 192, 4]
        for count, ends in ((1, [5]), (2, [3, 5]), (3, [1, 3, 5]), (5, [1, 2, 3, 4, 5])):
            found = fragments.fragments_of(sizes, count)
            self.assertEqual([group.stop for group in found], ends)
            self.assertEqual([n for group in found for n in group], list(range(5)))
        said = "sync.fragments: 6 fragments need as many tensors, and the network has 5"
        with self.assertRaisesRegex(CostModelError, said):
            fragments.fragments_of(sizes, 6)

    def test_their_units_are_those_of_their_tensors(self):
        tensors = [plan.PlannedTensor(f"fc{i}.weight", 4096, 16384, 512, False) for i in range(6)]
        self.assertEqual([unit.tensors for unit in plan.make_plan(tensors, 2)], [(5, 4, 3, 2, 1, 0)])
        found = plan.make_plan(tensors, 2, numbers=range(2, 4))
        self.assertEqual([(unit.tensors, unit.elements, unit.wire_bytes) for unit in found], [((3, 2), 8192, 32768)])


class Seen(unittest.TestCase):
    """Seconds that a rank waits for an exchange of 5 s, where a step takes 1 s."""

    def test_a_delay_hides_its_steps(self):
        for delay, seen in ((0, 5), (1, 4), (4, 1), (5, 0), (9, 0)):
            for interval in (1, 7):
                self.assertEqual(Streaming(1, delay, False).seen(5, 1, interval), seen)

    def test_a_question_between_all_ranks_is_put_off_at_most_ten_times(self):
        for delay, seen in ((0, 20), (1, 19), (9, 11), (10, 11), (19, 11)):
            self.assertEqual(Streaming(1, delay).seen(20, 1, 1), seen)
        self.assertEqual(Streaming(1, 19).seen(20, 1, 2), 2)
        self.assertEqual(Streaming(1, 9).seen(60, 7, 1), 60 - 3 * 7)  # the fifth step would end after half a minute
        self.assertEqual(Streaming(1, 9).seen(60, 31, 1), 60)
        self.assertEqual(Streaming(1, 19).seen(20, 1, 3), 1)

    def test_questions_are_about_a_second_apart(self):
        self.assertEqual([fragments.question_interval(s) for s in (0.01, 0.3, 0.6, 1, 7)], [100, 3, 1, 1, 1])

    def test_of_a_configuration(self):
        for text, expected in (
            ({}, Streaming(1, 0, True)),
            ({"sync": {"fragments": 4, "delay": 3}}, Streaming(4, 3, True)),
            ({"sync": {"delay": 3}, "exchange": {"transport": "nccl"}}, Streaming(1, 3, False)),
        ):
            self.assertEqual(fragments.streaming_of(text), expected)


class MeanStep(unittest.TestCase):
    """Of AlexNet's tensors; coding and the host cost nothing."""

    HOST = pipeline.Host(0.0, 0.0, 0.0, 0.0)
    FOUND = synchronisation.Exchanges(800, 0, 0, 100)  # H = 8

    def setUp(self):
        self.shown = program.show(str(SOURCE / "configs" / "alexnet_noise.yaml"))
        self.tensors = plan.planned(self.shown)

    def step(self, streaming, link, seconds=3.0, host=HOST, waiting=()):
        computing = scaling.Computing(((8, seconds / 3, 2 * seconds / 3, 0.0),), 0.0, "", waiting)
        given = (self.shown, scaling.codec_of(self.shown), 4, 8, computing, link, host, True, plan.PACK_BYTES)
        return local_steps.mean_step(*given, self.FOUND, None, streaming)

    def ends(self, count, link):
        """Seconds of each fragment's exchange."""
        found = []
        for group in fragments.fragments_of([t.elements for t in self.tensors], count):
            units = plan.make_plan(self.tensors, 4, numbers=group)
            found.append(pipeline.simulate(units, [0.0] * len(units), 4, link, self.HOST).end)
        return found

    def test_fragments_send_the_same_bytes_in_turn(self):
        link = pipeline.Link(1e9, 1e-3)
        whole, parts = self.step(Streaming(1), link), self.step(Streaming(4), link)
        self.assertAlmostEqual(parts.exposed, sum(self.ends(4, link)) / 8)
        self.assertAlmostEqual(whole.exposed, sum(self.ends(1, link)) / 8)
        self.assertGreater(parts.exposed, whole.exposed)  # four ends of a pipeline
        for name in ("bytes_per_rank", "computation"):
            self.assertAlmostEqual(getattr(parts, name), getattr(whole, name))
        self.assertAlmostEqual(parts.link_busy, whole.link_busy)
        self.assertEqual((whole.exchanges, parts.exchanges), (1 / 8, 4 / 8))

    def test_a_burst_leaves_at_once_for_each_fragment(self):
        """The link rests between two turns: it is as if its whole burst were there."""
        rate, burst = 1e8, 4e5
        slow, fast = pipeline.Link(rate, 0.0), pipeline.Link(rate, 0.0, burst)
        saved = 8 * burst / rate
        for count in (1, 2):
            plain, bursts = self.step(Streaming(count), slow), self.step(Streaming(count), fast)
            self.assertAlmostEqual(plain.exposed - bursts.exposed, count * saved / 8, delta=0.15 * saved / 8 * count)

    def test_a_delay_hides_what_its_steps_take(self):
        link = pipeline.Link(1e9, 1e-3)
        for count, delay in ((1, 2), (1, 7), (2, 3)):
            ends, streaming = self.ends(count, link), Streaming(count, delay, False)
            for seconds in (0.9 * max(ends) / delay, 0.5 * min(ends) / delay):
                left = sum(max(0.0, end - delay * seconds) for end in ends) / 8
                step = self.step(streaming, link, seconds)
                self.assertAlmostEqual(step.exposed, left)
                self.assertLess(step.exposed, self.step(Streaming(count), link, seconds).exposed)
            self.assertEqual(self.step(streaming, link, 1.1 * max(ends) / delay).exposed, 0)

    def test_a_delay_hides_no_more_steps_than_questions_are_put_off(self):
        slow, quick = pipeline.Link(1e7, 1e-3), pipeline.Link(2e8, 1e-3)
        with mock.patch.object(self, "FOUND", synchronisation.Exchanges(1600, 0, 0, 100)):
            (end,) = self.ends(1, slow)
            self.assertGreater(end, 45)
            self.assertAlmostEqual(self.step(Streaming(1, 15), slow, 3.0).exposed, (end - 9 * 3) / 16)
            self.assertAlmostEqual(self.step(Streaming(1, 15, False), slow, 3.0).exposed, (end - 15 * 3) / 16)
            self.assertGreater(self.ends(1, quick)[0], 9 * 0.4)  # steps of which there are two to a question
            self.assertEqual(self.step(Streaming(1, 15), quick, 0.4).exposed, 0)

    def test_a_delay_hides_waiting_for_a_late_rank(self):
        link, late = pipeline.Link(1e12, 0.0), ((4, 0.5),)
        self.assertAlmostEqual(self.step(Streaming(), link, 1.0, waiting=late).waiting, 0.5 / 8)
        self.assertAlmostEqual(self.step(Streaming(2), link, 1.0, waiting=late).waiting, 2 * 0.5 / 8)
        self.assertEqual(self.step(Streaming(1, 1, False), link, 1.0, waiting=late).waiting, 0)

    def test_coding_behind_a_delay_takes_cores(self):
        link, host = pipeline.Link(1e12, 0.0), pipeline.Host(1e-9, 1e-9, 0.0, 0.0, 0.5)
        step = self.step(Streaming(1, 4, False), link, 1.0, host)
        self.assertEqual(step.exposed, 0)
        self.assertAlmostEqual(step.waiting, 0.5 * step.coding)
        self.assertEqual(self.step(Streaming(), link, 1.0, host).waiting, 0)


class Command(TrainedTest):
    def test_rows_of_fragments_and_a_delay(self):
        words = (str(self.config), "--step-seconds", "0.01", "--ranks", "2", "--link", "1Mbit,1ms", "--codecs", "none")
        ways = ("steps: 8", "steps: 8, fragments: 2", "steps: 8, delay: 7", "steps: 8, fragments: 4, delay: 1")
        words += tuple(word for way in ways for word in ("--sync", f"{{kind: local_sgd, {way}}}"))
        found = json.loads(predict(*words, "--json")[1])
        self.assertEqual(
            [(row["sync"], row["exchanges_per_step"]) for row in found["rows"]],
            [
                ("every_step", 1),
                ("local SGD, H = 8", 1 / 8),
                ("local SGD, H = 8, fragments 2", 2 / 8),
                ("local SGD, H = 8, delay 7", 1 / 8),
                ("local SGD, H = 8, fragments 4, delay 1", 4 / 8),
            ],
        )
        exposed = [row["exposed_s"] for row in found["rows"]]
        self.assertEqual(exposed[3], min(exposed))
        status, out, err = predict(*words, "--sync", "{kind: local_sgd, steps: 20, fragments: 5}")
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn("5 fragments need as many tensors, and the network has 4", err)

    def test_a_run_with_fragments(self):
        sync = "{kind: local_sgd, steps: 4, fragments: 2, delay: 1}"
        run = self.train("streamed", f"sync={sync}", "exchange.link={bandwidth: 10Mbit}")
        found = self.predicted("--run", str(run), "--set", f"sync={sync}")
        self.assertEqual([row["exchanges_per_step"] for row in found["rows"][:2]], [1, 0.5])
        self.assertEqual(found["coding"]["qsgd4"], "measured")


if __name__ == "__main__":
    unittest.main()
