#!/usr/bin/env python3
"""scripts/gpu-check on the emulated GPU: killed, ended after some rows, and gone on with, it measures every row once."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = os.environ["LPSGD_BUILD"]
# Of four tests b fails and c hangs.
HANGING_CTEST = """
import sys, time
if "--show-only=json-v1" in sys.argv:
    print('{"tests": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]}')
elif "^(a|b|c|d)$" in sys.argv:
    print("1/4 Test #1: a ........................   Passed    0.01 sec")
    print("2/4 Test #2: b ........................***Failed    0.01 sec", flush=True)
    time.sleep(600)
elif "^(c|d)$" in sys.argv:
    time.sleep(600)
else:
    assert "^(d)$" in sys.argv
    with open(sys.argv[sys.argv.index("--output-junit") + 1], "w") as file:
        file.write('<testsuite><testcase name="d" status="run"/></testsuite>')
"""
NETWORKS = ["resnet20 fp32", "resnet20 tf32", "resnet20 bf16"]


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lpsgd-test-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def command(self, *more):
        return [sys.executable, ROOT / "scripts/gpu-check", "--emulated", "--build", BUILD, "--out", self.out, "--only",
                "build,networks,tests", "--tests", "^(DeviceGpu|PhiloxGpu|CudaCheck)[.]", "--steps", "1", *more]

    def run_part(self, *more):
        return subprocess.run(self.command(*more), capture_output=True, text=True, check=False)

    def results(self):
        file = self.out / "results.json"
        return json.loads(file.read_text()) if file.exists() else {"rows": {}, "stages": []}

    def test_goes_on_after_a_kill_and_after_a_part(self):
        part = self.run_part("--rows", "1")  # ctest's first tests, in one call
        self.assertEqual(part.returncode, 3, part)
        self.assertIn("go on with --resume", part.stdout)
        self.assertEqual([s["status"] for s in self.results()["stages"]], ["pass", "pass", "part"], part)
        tests = self.results()["rows"]["tests"]
        self.assertGreater(len(tests), 3)
        self.assertEqual(set(tests.values()), {"run"})

        process = subprocess.Popen(self.command("--resume"), stdout=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 60
        while not self.results()["rows"].get("networks") and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = self.results()["rows"]["networks"]
        self.assertGreater(len(before), 0)
        self.assertEqual(list(before), NETWORKS[: len(before)])  # usually one

        whole = self.run_part("--resume")
        self.assertEqual(whole.returncode, 0, whole)
        results = self.results()
        self.assertEqual([s["status"] for s in results["stages"]], ["pass"] * 3)
        rows = results["rows"]["networks"]
        self.assertEqual(list(rows), NETWORKS)
        self.assertEqual({k: rows[k] for k in before}, before)  # speeds: they were not measured again
        self.assertEqual(results["rows"]["tests"], tests)
        measured = next(s for s in results["stages"] if s["name"] == "networks")["measured"]
        self.assertEqual([m["samples_per_s"] for m in measured], [rows[k]["samples_per_s"] for k in NETWORKS])
        self.assertTrue(all(m["run_of_one_step_s"] > 0 for m in measured), measured)

        again = self.run_part("--resume")
        self.assertEqual((again.returncode, self.results()["rows"]), (0, results["rows"]))

    def test_a_test_that_hangs_is_named_and_the_others_are_kept(self):
        ctest = self.out / "bin/ctest"
        ctest.parent.mkdir()
        ctest.write_text(f"#!{sys.executable}\n{HANGING_CTEST}")
        ctest.chmod(0o755)
        part = subprocess.run(self.command("--only", "tests", "--limit", "2"), capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{ctest.parent}:{os.environ['PATH']}"})
        self.assertEqual(part.returncode, 1, part)
        tests = self.results()["rows"]["tests"]
        self.assertEqual({name: state[:4] for name, state in tests.items()}, {"a": "run", "b": "fail", "c": "fail", "d": "run"})
        self.assertRegex(tests["c"], "not done after 2 s")
        self.assertIn("of 4 tests 2 passed; failed: b, c; not run: none", part.stdout)

    def test_exchange_is_measured_over_nccl_and_mpi(self):
        part = self.run_part("--only", "exchange")
        self.assertEqual(part.returncode, 0, part)
        found = self.results()["stages"][-1]["measured"]
        codecs = {row["codec"].split(",")[0] for row in found["nccl"]["rows"]}
        self.assertEqual(codecs, {"{kind: none}", "{kind: qsgd", "{kind: onebit"})
        for row in found["nccl"]["rows"] + found["nccl allreduce"]["rows"]:
            self.assertTrue(row["times_mean_nothing"], row)
            self.assertEqual((row["wrong"], row["nccl_allreduce"]["wrong"], row["ranks_per_gpu"]), (0, 0, 2), row)
        self.assertGreater(found["resnet20 bf16, 2 ranks over mpi"]["ms_a_step"]["transfer"], 0)

    def test_results_of_another_revision_are_not_gone_on_with(self):
        (self.out / "results.json").write_text(json.dumps({"machine": {"commit": "other"}, "stages": [], "rows": {}}))
        part = self.run_part("--resume")
        self.assertEqual(part.returncode, 1)
        self.assertIn("is of revision other", part.stderr)


if __name__ == "__main__":
    unittest.main()
