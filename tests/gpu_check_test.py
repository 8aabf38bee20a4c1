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
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_check_tests  # noqa: E402

BUILD = os.environ["LPSGD_BUILD"]
# Of these b fails, c hangs, e is skipped on a real GPU, and f fails after it has said that a part is skipped. d has a name with
# spaces.
TESTS = """#!{python}
import json, sys
commands = {{"a": "exit 0", "b": "exit 3", "c": "echo begun; sleep 600", "d (1-byte <00>, 1)  # GetParam() = x": "exit 0",
            "e": "echo '[  SKIPPED ] needs the emulated GPU'", "f": "echo '[  SKIPPED ] a part'; exit 1"}}
skips = {{"name": "SKIP_REGULAR_EXPRESSION", "value": [".  SKIPPED "]}}
limit = {{"name": "TIMEOUT", "value": 900.0}}
print(json.dumps({{"tests": [{{"name": n, "command": ["/bin/sh", "-c", c], "properties": [skips, limit]}} for n, c in commands.items()]}}))
"""
NETWORKS = ["resnet20 fp32", "resnet20 tf32", "resnet20 bf16"]


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lpsgd-test-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def command(self, *more):
        return [sys.executable, ROOT / "scripts/gpu-check", "--emulated", "--build", BUILD, "--out", self.out, "--only",
                "build,networks,tests", "--jobs", "1", "--tests", "^(DeviceGpu|PhiloxGpu|CudaCheck)[.]", "--steps", "1", *more]

    def run_part(self, *more):
        return subprocess.run(self.command(*more), capture_output=True, text=True, check=False)

    def results(self):
        file = self.out / "results.json"
        return json.loads(file.read_text()) if file.exists() else {"rows": {}, "stages": []}

    def stages(self):
        return {stage["name"]: stage["status"] for stage in self.results()["stages"]}

    def test_goes_on_after_a_kill_and_after_a_part(self):
        part = self.run_part("--rows", "1")
        self.assertEqual(part.returncode, 3, part)
        self.assertIn("go on with --resume", part.stdout)
        self.assertEqual(self.stages(), {"build": "pass", "networks": "part", "tests": "part"}, part)
        self.assertEqual(list(self.results()["rows"]["networks"]), NETWORKS[:1])

        process = subprocess.Popen(self.command("--resume"), stdout=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 60
        while len(self.results()["rows"]["networks"]) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before = self.results()["rows"]["networks"]
        self.assertEqual(list(before), NETWORKS[: len(before)])  # usually two
        self.assertGreater(len(before), 1)

        part = self.run_part("--resume", "--rows", str(len(NETWORKS) - len(before) + 2))
        self.assertEqual(part.returncode, 3, part)
        self.assertEqual(self.stages(), {"build": "pass", "networks": "pass", "tests": "part"}, part)
        tests = self.results()["rows"]["tests"]
        self.assertEqual(list(tests.values()), ["run"] * 2)

        whole = self.run_part("--resume")
        self.assertEqual(whole.returncode, 0, whole)
        results = self.results()
        self.assertEqual(set(self.stages().values()), {"pass"})
        rows = results["rows"]["networks"]
        self.assertEqual(list(rows), NETWORKS)
        self.assertEqual({k: rows[k] for k in before}, before)  # speeds: they were not measured again
        self.assertEqual({k: results["rows"]["tests"][k] for k in tests}, tests)
        self.assertGreater(len(results["rows"]["tests"]), 3)
        self.assertEqual(set(results["rows"]["tests"].values()), {"run"})
        measured = next(s for s in results["stages"] if s["name"] == "networks")["measured"]
        self.assertEqual([m["samples_per_s"] for m in measured], [rows[k]["samples_per_s"] for k in NETWORKS])
        self.assertTrue(all(m["run_of_one_step_s"] > 0 for m in measured), measured)

        again = self.run_part("--resume")
        self.assertEqual((again.returncode, self.results()["rows"]), (0, results["rows"]))

    def test_a_test_that_hangs_is_named_and_the_others_are_kept(self):
        ctest = self.out / "bin/ctest"
        ctest.parent.mkdir()
        ctest.write_text(TESTS.format(python=sys.executable))
        ctest.chmod(0o755)
        environment = {**os.environ, "PATH": f"{ctest.parent}:{os.environ['PATH']}"}

        def part(*more):
            return subprocess.run(self.command("--only", "tests", *more), capture_output=True, text=True, check=False, env=environment)

        # The time of a part that others have used too does not count against a test.
        first = part("--minutes", "0.02", "--test-limit", "60")
        self.assertEqual(first.returncode, 3, first)
        self.assertEqual(set(self.results()["rows"]["tests"]) - {"a", "b"}, set(), first)
        whole = part("--resume", "--test-limit", "2")
        self.assertEqual(whole.returncode, 1, whole)
        tests = self.results()["rows"]["tests"]
        self.assertEqual({name: state.split(":")[0] for name, state in tests.items()},
                         {"a": "run", "b": "fail", "c": "fail", "d (1-byte <00>, 1)": "run", "e": "emulated", "f": "fail"})
        self.assertRegex(tests["c"], "not done after 2 s")
        self.assertIn("of 5 tests 2 passed; failed: b, c, f; not run: none", whole.stdout)
        self.assertIn("begun", (self.out / "tests/c.log").read_text())

    def test_a_test_that_has_a_part_for_itself_has_failed(self):
        ctest = self.out / "bin/ctest"
        ctest.parent.mkdir()
        ctest.write_text(TESTS.format(python=sys.executable).replace("echo begun; ", "").replace("exit 0", "sleep 600"))
        ctest.chmod(0o755)
        part = subprocess.run(self.command("--only", "tests", "--minutes", "0.1"), capture_output=True, text=True, check=False,
                              env={**os.environ, "PATH": f"{ctest.parent}:{os.environ['PATH']}"})
        self.assertEqual(part.returncode, 3, part)
        tests = self.results()["rows"]["tests"]
        self.assertRegex(tests["a"], "fail: not done in a part of 6 s")
        self.assertNotIn("d (1-byte <00>, 1)", tests)

    def test_a_serial_test_has_nothing_beside_it(self):
        def listed(name, **properties):
            command = ["/bin/sh", "-c", f"echo +{name} >> {self.out}/order; sleep 0.3; echo -{name} >> {self.out}/order"]
            return gpu_check_tests.Test(name, command, properties)

        tests = [listed("a", RUN_SERIAL=True), listed("b"), listed("c"), listed("d", RUN_SERIAL=True), listed("e", RUN_SERIAL=False)]
        states = {}
        killed = gpu_check_tests.run(tests, 3, 60, self.out / "logs", {}, None, lambda: True, lambda: False,
                                     lambda test, state, log: states.update({test.name: state}))
        self.assertEqual((killed, states), ([], dict.fromkeys("abcde", "run")))
        order = (self.out / "order").read_text().split()
        self.assertEqual(set(order[:3]), {"+b", "+c", "+e"})
        self.assertEqual(order[6:], ["+a", "-a", "+d", "-d"])

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
