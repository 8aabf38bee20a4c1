"""lpsgd doctor: what a machine can do and what is wrong with it."""

import json
import os
import stat
import sys
import time
import unittest

from harness import Case, run

ALONE = ["program.build", "program.kernels", "mpi.library", "mpi.launcher", "gpu.driver", "machine.cores",
         "machine.memory", "machine.shm", "files.runs", "files.cache", "files.data", "python.modules", "ranks.started",
         "ranks.exchange"]


class Doctor(Case):
    def doctor(self, *arguments, status=0, env=None, ranks=None, cwd=None):
        result = run("doctor", *arguments, env=env, ranks=ranks, cwd=cwd or self.dir, timeout=120)
        self.assertEqual(result.status, status, result)
        return result

    def checks(self, status=0, **options):
        found = json.loads(self.doctor("--json", status=status, **options).out)
        self.assertEqual(found["ok"], status == 0)
        self.assertEqual(found["ok"], all(c["status"] != "error" for c in found["checks"]))
        for check in found["checks"]:
            self.assertIn(check["status"], ("ok", "warning", "error", "absent"))
            self.assertTrue(check["found"], check)
            self.assertEqual("advice" in check, check["status"] in ("warning", "error"), check)
        return {check["name"]: check for check in found["checks"]}

    def program(self, name, text):
        """A program in a folder that comes first in PATH; returns the variables."""
        os.makedirs(self.path("bin"), exist_ok=True)
        path = self.write(os.path.join("bin", name), text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return {"PATH": self.path("bin") + os.pathsep + os.environ["PATH"]}

    def test_this_machine(self):
        before = os.listdir(self.dir)
        checks = self.checks()
        for name in ALONE:
            self.assertIn(name, checks)
        self.assertEqual(checks["ranks.started"]["ranks"], 2)
        exchange = checks["ranks.exchange"]
        self.assertTrue(exchange["bytes_equal"])
        self.assertGreater(exchange["latency_s"], 0)
        self.assertGreater(exchange["bytes_per_s"], 1e6)
        self.assertEqual(checks["files.runs"]["status"], "ok")
        self.assertEqual(os.listdir(self.dir), before)  # nothing stays

    def test_text_says_the_same(self):
        words = {line.split()[1] for line in self.doctor().out.splitlines() if line.startswith("  ") and "->" not in line}
        self.assertEqual(words, {name.split(".")[1] for name in self.checks()})

    def test_under_mpirun_its_ranks_are_checked(self):
        for ranks in (2, 3):
            checks = self.checks(ranks=ranks)  # one report
            self.assertEqual(checks["ranks.started"]["ranks"], ranks)
            self.assertEqual(len(checks["ranks.exchange"]["peers"]), ranks - 1)
            self.assertTrue(checks["ranks.exchange"]["bytes_equal"])
            self.assertTrue(checks["ranks.allreduce"]["sum_equal"])
            threads = sum(m["threads"] for m in checks["ranks.cores"]["machines"])
            if threads > os.cpu_count():
                self.assertEqual(checks["ranks.cores"]["status"], "warning")

    def test_a_launcher_of_another_library(self):
        mine = self.checks()["mpi.library"]["found"]
        others = "HYDRA build details:" if "Open MPI" in mine else "mpirun (Open MPI) 4.1.4"
        check = self.checks(env=self.program("mpirun", f"#!/bin/sh\necho '{others}'\n"))["mpi.launcher"]
        self.assertEqual(check["status"], "warning")
        self.assertIn(self.path("bin", "mpirun"), check["found"])
        self.assertIn("start ranks with", check["advice"])

    def test_a_launcher_that_does_not_answer(self):
        begin = time.monotonic()
        check = self.checks(env=self.program("mpirun", "#!/bin/sh\nsleep 300\n"))["mpi.launcher"]
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(check["status"], "warning")
        self.assertIn("did not end within", check["found"])

    def test_python_that_is_missing(self):
        check = self.checks(env={"LPSGD_PYTHON": self.path("none")})["python.modules"]
        self.assertEqual(check["status"], "warning")
        self.assertIn("none", check["found"])

    def test_a_python_without_modules(self):
        # -S leaves out the folders of installed modules.
        env = {"LPSGD_PYTHON": self.program("bare", f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')["PATH"].split(":")[0] + "/bare"}
        check = self.checks(env=env)["python.modules"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn("pandas", check["found"])

    def test_a_folder_that_cannot_be_written(self):
        checks = self.checks(status=1, cwd="/proc")
        self.assertEqual(checks["files.runs"]["status"], "error")
        self.assertEqual(checks["ranks.exchange"]["status"], "ok")  # the others go on

    def test_a_cache_that_cannot_be_written(self):
        self.write("home", "a file in the way")
        check = self.checks(env={"HOME": self.path("home"), "XDG_CACHE_HOME": ""})["files.cache"]
        self.assertEqual(check["status"], "warning", check)

    def test_data_that_is_not_there(self):
        check = self.checks(env={"LPSGD_DATA": self.path("nowhere")})["files.data"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn("nowhere", check["found"])

    def test_mistakes(self):
        self.doctor("--jsn", status=2)
        self.doctor("more", status=2)


if __name__ == "__main__":
    unittest.main()
