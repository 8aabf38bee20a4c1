"""lpsgd predict --outlook: its files, its page, and the rule of its prices. 77 is a skip."""

import json
import os
import pathlib
import tempfile
import unittest

from harness import require, run_main
from predict_harness import GIVEN, predict

require("matplotlib", "pandas")
import lpsgd_report  # noqa: E402
import numpy  # noqa: E402
import runs  # noqa: E402


class Outlook(unittest.TestCase):
    def test_on_the_page_of_a_report(self):
        """Fig. 16's right half, for whoever reports runs."""
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder, "run")
            run.mkdir()
            fields = {name: 1 for name in (*runs.FIELDS, "train_loss")}
            (run / "metrics.jsonl").write_text(json.dumps(fields) + "\n")
            (run / "config.yaml").write_text("network: {name: net}\nexchange: {codec: none}\n")
            out = pathlib.Path(folder, "out")
            words = (str(run), "--out", str(out), "--outlook", GIVEN)
            self.assertEqual(run_main(lpsgd_report, *words)[::2], (0, ""))
            page = (out / "index.html").read_text()
            for name in ("speedup", "price", "dettmers"):
                self.assertIn(f'<section id="{name}">', page)
                for kind in ("png", "svg", "pdf", "csv", "tex"):
                    self.assertTrue((out / "figures" / f"{name}.{kind}").is_file())
            status, _, err = run_main(lpsgd_report, str(run), "--table", "--outlook", GIVEN)
            self.assertEqual((status, err.count("\n")), (2, 1))
            self.assertIn("--outlook belongs to --out DIR", err)

    def test_without_a_network_that_has_a_price(self):
        with tempfile.TemporaryDirectory() as folder:
            given = pathlib.Path(folder, "given.csv")
            head = "machine,network,transport,codec,ranks,batch,samples_per_s"
            rows = [f"m,resnet20,mpi,none,{k},128,{300 * k ** 0.9:.1f}" for k in (1, 2, 4)]
            given.write_text("\n".join([head, *rows, ""]))
            out = pathlib.Path(folder, "out")
            status, _, err = predict("--outlook", str(out), "--calibrate", str(given))
            self.assertEqual((status, err.count("\n")), (2, 1), err)
            self.assertIn("an outlook needs cells of one of ", err)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, err = predict("--outlook", folder, "--calibrate", GIVEN)
            self.assertEqual((status, err), (0, ""))
            names = [
                f"{name}.{kind}"
                for name in ("speedup", "price", "dettmers")
                for kind in ("csv", "png", "svg", "pdf", "tex")
            ]
            self.assertEqual(sorted(os.listdir(folder)), sorted(["index.html", *names]))
            page = pathlib.Path(folder, "index.html").read_text()
            self.assertEqual((page.count("<svg"), "Settings and commands" in page), (3, False))
            rows = [
                line.split(",") for line in pathlib.Path(folder, "speedup.csv").read_text().splitlines()[1:]
            ]
            curve = [(float(x), float(y)) for series, _, x, y in rows if series == "alexnet"]
            self.assertEqual(curve, sorted(curve))  # more MB per GFLOP, more speed-up
            self.assertTrue(all(0.5 < y < 4 for _, y in curve))
            claimed = [
                line.split(",") for line in pathlib.Path(folder, "dettmers.csv").read_text().splitlines()[1:]
            ]
            plain = [float(row[4]) for row in claimed if row[2] == "none" and row[3] == "96"]
            numpy.testing.assert_allclose(plain, 23, rtol=1e-3)
            self.assertIn("he claims 50x", out)
            self.assertRegex(out, r"its limit, bytes and coding alone, is 4\.\d")
            price = [
                line.split(",") for line in pathlib.Path(folder, "price.csv").read_text().splitlines()[1:]
            ]
            self.assertEqual({row[2] for row in price if row[4] == "1"}, {"none"})
            for network in {row[0] for row in price}:  # each codec, none too, has the same choice
                several = [row[2] for row in price if row[0] == network and int(row[4]) > 1]
                self.assertIn("none", several)
                self.assertEqual(len(several), len(set(several)))


if __name__ == "__main__":
    unittest.main()
