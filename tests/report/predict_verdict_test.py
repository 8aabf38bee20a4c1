"""lpsgd predict CONFIG: verdicts and their band, and the codecs that are compared. 77 is a skip."""

import json
import math
import unittest

import harness
from predict_harness import TrainedTest, predict

import program
from costmodel import codec_choice, verdicts
from costmodel.errors import CostModelError
from costmodel.networks import CODECS


class Band(unittest.TestCase):
    def measured_ratios(self):
        """(predicted, measured) of none's step over a codec's, where neither cell calibrates."""
        cells = {}
        page = harness.SOURCE / "docs" / "results" / "predicted-links" / "README.md"
        for line in page.read_text().splitlines():
            words = [word.strip() for word in line.strip("|").split("|")]
            if len(words) == 8 and words[1].isdigit() and "calibrates" not in words[7]:
                cells[tuple(words[:4])] = float(words[6]), float(words[4])
        pairs = [(cells.get((*key[:3], "none")), cell) for key, cell in cells.items() if key[3] != "none"]
        return [(none[0] / cell[0], none[1] / cell[1]) for none, cell in pairs if none]

    def test_nine_tenths_of_the_measured_ratios_are_within_it(self):
        errors = sorted(abs(math.log(predicted / measured)) for predicted, measured in self.measured_ratios())
        self.assertEqual(len(errors), 31)
        within = errors[math.ceil(0.9 * len(errors)) - 1]
        self.assertEqual(verdicts.PAYS, round(math.exp(within), 2))

    def test_no_measured_ratio_contradicts_a_verdict(self):
        for predicted, measured in self.measured_ratios():
            self.assertFalse(verdicts.verdict(predicted) == verdicts.YES and measured < 1, predicted)
            self.assertFalse(verdicts.verdict(predicted) == verdicts.NO and measured > 1, predicted)

    def test_its_edges(self):
        edge = verdicts.PAYS
        for gain, said in (
            (1.01 * edge, "pays"),
            (0.99 * edge, "too close to tell"),
            (1.0, "too close to tell"),
            (1.01 / edge, "too close to tell"),
            (0.99 / edge, "does not pay"),
        ):
            self.assertEqual(verdicts.verdict(gain), said, gain)


class Command(TrainedTest):
    """A small network, whose bytes decide over a slow link and whose messages do over a fast one."""

    def rows(self, link, *words):
        given = (str(self.config), "--step-seconds", "0.01", "--ranks", "2,4", "--link", link, *words)
        status, out, err = predict(*given, "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out), predict(*given)[1]

    def test_each_row_that_is_compared_has_a_verdict_and_a_line(self):
        for link, said in (("100kbit,50us", "pays"), ("100Gbit,1us", "too close to tell")):
            found, text = self.rows(link, "--codecs", "qsgd4,fp16", "--message", "0")
            self.assertEqual({row["verdict"] for row in found["rows"] if row["codec"] == "none"}, {None})
            compared = [row for row in found["rows"] if row["codec"] != "none"]
            self.assertEqual({row["verdict"] for row in compared}, {said})
            self.assertEqual(found["too_close"], {"from": 1 / verdicts.PAYS, "to": verdicts.PAYS})
            self.assertEqual(len(found["verdicts"]), len(compared))
            self.assertTrue(text.endswith("\n".join(found["verdicts"]) + "\n"), text)
            for row, line in zip(compared, found["verdicts"]):
                self.assertRegex(line, f"^{row['ranks']} ranks: {row['codec']} (is )?{said}: ")
                self.assertIn(f"{row['speedup_over_none']:.2f} times none's samples per second", line)

    def test_what_is_slower(self):
        found, _ = self.rows("100Gbit,1us", "--sync", "{kind: local_sgd, steps: 2}", "--message", "0.01")
        slow = [row for row in found["rows"] if row["verdict"] == "does not pay"]
        self.assertEqual(slow, [row for row in found["rows"] if row["speedup_over_none"] < 1 / verdicts.PAYS])
        found["rows"][1].update(speedup_over_none=0.8, verdict="does not pay")
        self.assertEqual(
            verdicts.lines(found["rows"][1:2]),
            ["2 ranks: none, local SGD, H = 2 does not pay: 25.0 % slower than none"],
        )


class Codecs(TrainedTest):
    def test_every_kind_is_a_name(self):
        kinds = codec_choice.kinds()
        self.assertLessEqual({"none", "fp16", "bf16", "onebit", "qsgd", "sign", "topk", "dynamic8", "mx"}, set(kinds))
        words = (str(self.config), "--step-seconds", "0.01", "--ranks", "2", "--link", "1Gbit,50us", "--json")
        status, out, err = predict(*words, "--codecs", ",".join([*kinds, "onebit64"]))
        self.assertEqual((status, err), (0, ""))
        rows = {row["codec"]: row for row in json.loads(out)["rows"]}
        self.assertEqual(list(rows), [*kinds, "onebit64"])
        for kind in kinds:
            shown = program.show(str(self.config), (f"exchange.codec={kind}", "exchange.rules=[]"))
            self.assertAlmostEqual(rows[kind]["bytes_per_rank"], shown["wire_bytes"], delta=1)  # 2 (K - 1)/K
        self.assertAlmostEqual(2 * rows["fp16"]["bytes_per_rank"], rows["none"]["bytes_per_rank"], delta=100)

    def test_a_configured_kind_has_its_name(self):
        words = (str(self.config), "--step-seconds", "0.01", "--ranks", "2", "--link", "1Gbit,50us", "--json")
        for codec, name in (("fp16", "fp16"), ("{kind: qsgd, bits: 8}", "qsgd8"), ("topk", "topk")):
            found = json.loads(predict(*words, "--set", f"exchange.codec={codec}")[1])
            self.assertEqual([row["codec"] for row in found["rows"]], ["none", name])

    def test_what_is_no_codec(self):
        for text, word in (("fp16,float16", "float16"), ("kind: sign", "kind: sign"), ("TOPK", "TOPK")):
            with self.assertRaises(CostModelError) as caught:
                codec_choice.codecs_of(text)
            self.assertIn(f"--codecs: unknown codec '{word}'; expected ", str(caught.exception))
            for name in (*CODECS, *codec_choice.kinds(), "'{kind: topk, density: 0.01}'"):
                self.assertIn(name, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
