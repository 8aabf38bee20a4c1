"""lpsgd doctor: a healthy machine, each thing that can be wrong, and the ranks of a job."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
import unittest

from harness import LPSGD, MPIRUN, SOURCE, Case, Result, run

sys.path.insert(0, os.path.join(SOURCE, "bench", "link"))
from hosts import Hosts  # noqa: E402

FAMILY = "MPICH" if json.loads(run("version", "--json").out)["mpi_version"].startswith("MPICH") else "Open MPI"
VERSIONS = {"MPICH": "HYDRA build details:", "Open MPI": "mpirun (Open MPI) 4.1.4"}
EVERYWHERE = ["program.build", "program.kernels", "mpi.library", "mpi.launcher", "gpu.driver", "machine.cores", "machine.memory",
              "machine.shm", "machine.open_files", "machine.memlock", "files.runs", "files.cache", "files.data", "python.modules",
              "ranks.started"]
# Found anew each time, so that two reports differ.
CHANGES = {"machine.memory", "machine.shm", "files.runs", "ranks.exchange", "ranks.allreduce"}


class DoctorCase(Case):
    def setUp(self):
        super().setUp()
        for name in ("bin", "home", "here"):
            os.mkdir(self.path(name))
        os.symlink(MPIRUN, self.path("bin", "mpirun"))

    def doctor(self, *arguments, ranks=None, cwd=None, **env):
        """With its own mpirun first in PATH, in an empty folder and an empty home."""
        command = [*([MPIRUN, "-n", str(ranks)] if ranks else []), os.path.abspath(LPSGD), "doctor", *arguments]
        environment = {"PATH": self.path("bin") + ":" + os.environ["PATH"], "HOME": self.path("home"), **env}
        environment = {**os.environ, **environment}
        for name in ("XDG_CACHE_HOME", "LPSGD_DATA"):
            if name not in env:
                environment.pop(name, None)
        return Result(subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment,
                                     cwd=cwd or self.path("here")))

    def report(self, *arguments, status=0, **options):
        """By name. The status must be that of the report."""
        result = self.doctor("--json", *arguments, **options)
        self.assertEqual((result.status, result.err if status == 0 else ""), (status, ""), result)
        report = json.loads(result.out)
        self.assertEqual(report["ok"], status == 0, result)
        self.assertEqual(report["ok"], all(c["status"] != "error" for c in report["checks"]), result)
        for check in report["checks"]:
            self.assertIn(check["status"], ("ok", "warning", "error", "absent"), check)
            self.assertTrue(check["found"] and "\n" not in check["found"], check)
            self.assertEqual("advice" in check, check["status"] in ("warning", "error"), check)
        return {check["name"]: check for check in report["checks"]}

    def fake(self, name, script):
        path = self.path("bin", name)
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + script + "\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


class Alone(DoctorCase):
    def test_a_machine_that_is_well(self):
        begin = time.monotonic()
        checks = self.report()
        self.assertLess(time.monotonic() - begin, 60)
        for name in EVERYWHERE:
            self.assertIn(name, checks)
        for name in ("mpi.library", "mpi.launcher", "files.cache", "python.modules", "ranks.started", "ranks.exchange"):
            self.assertEqual(checks[name]["status"], "ok", checks[name])
        self.assertEqual(checks["ranks.started"]["ranks"], 2)
        self.assertTrue(checks["ranks.exchange"]["bytes_equal"])
        self.assertTrue(checks["ranks.allreduce"]["sum_equal"])
        self.assertTrue(0 < checks["ranks.exchange"]["latency_s"] < 10, checks["ranks.exchange"])
        self.assertGreater(checks["ranks.exchange"]["bytes_per_s"], 1e3)
        self.assertIsInstance(checks["python.modules"]["modules"]["numpy"], str)
        self.assertEqual(checks["machine.cores"]["usable"], len(os.sched_getaffinity(0)))
        self.assertEqual([os.listdir(self.path(name)) for name in ("here", "home")], [[], []], "nothing stays")

    def test_the_text_says_the_same(self):
        checks, text = self.report(), self.doctor()
        self.assertEqual((text.status, text.err), (0, ""), text)
        lines = text.out.splitlines()
        for name, check in checks.items():
            start = f"  {check['status']:<8} {name.split('.', 1)[1]:<14} "
            (line,) = [line for line in lines if line.startswith(start)]
            if name not in CHANGES and not name.startswith("gpu."):
                self.assertEqual(line[len(start):], check["found"])
            if "advice" in check:
                self.assertEqual(lines[lines.index(line) + 1].strip(), "-> " + check["advice"])
        warnings = sum(c["status"] == "warning" for c in checks.values())
        self.assertEqual(lines[-1], f"no errors, {warnings or 'no'} warning{'' if warnings == 1 else 's'}")

    def test_wrong_usage(self):
        result = self.doctor("--jsn")
        self.assertEqual((result.status, result.out), (2, ""), result)
        self.assertIn("doctor: no option '--jsn', did you mean '--json'?", result.err)

    def test_the_mpirun_of_another_library(self):
        other = next(f for f in VERSIONS if f != FAMILY)
        path = self.fake("mpirun", f"echo '{VERSIONS[other]}'")
        check = self.report()["mpi.launcher"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn(f"{path} is that of {other}", check["found"])
        self.assertIn(f"{MPIRUN} -n K lpsgd", check["advice"])

    def test_an_mpirun_that_nobody_knows_or_none(self):
        self.fake("mpirun", "echo 'run 1.0'")
        self.assertIn("does not know", self.report()["mpi.launcher"]["found"])
        os.mkdir(self.path("empty"))
        checks = json.loads(self.doctor("--json", PATH=self.path("empty")).out)["checks"]  # Open MPI lacks its ssh
        (check,) = [check for check in checks if check["name"] == "mpi.launcher"]
        self.assertEqual((check["status"], check["found"]), ("warning", "no mpirun in PATH"))

    def test_an_mpirun_that_hangs(self):
        self.fake("mpirun", f"sleep 1000 & echo $! > {self.path('pid')}; wait")
        begin = time.monotonic()
        check = self.report()["mpi.launcher"]
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(check["status"], "warning", check)
        self.assertIn("did not end within 5 s", check["found"])
        self.assert_ended("pid")

    def assert_ended(self, name):
        with open(self.path(name)) as file:
            pid = file.read().strip()
        until = time.monotonic() + 5
        while self.runs(pid) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertFalse(self.runs(pid), "what the launcher has started is ended")

    def runs(self, pid):
        """A process may have ended without having been waited for."""
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except FileNotFoundError:
            return False

    @unittest.skipUnless(FAMILY == "MPICH", "the variables are MPICH's")
    def test_ranks_that_do_not_start(self):
        check = self.report(status=1, HYDRA_HOST_FILE="/no/such/file")["ranks.started"]
        self.assertEqual(check["status"], "error", check)
        self.assertRegex(check["found"], r"two ranks ended with status \d+: .*")
        self.assertIn(f"{MPIRUN} -n 2 ", check["advice"])

    @unittest.skipUnless(FAMILY == "MPICH", "the variables are MPICH's")
    def test_ranks_that_do_not_answer(self):
        hangs = self.fake("hangs", f"echo $$ > {self.path('pid')}; exec sleep 1000")
        hosts = self.write("hosts", "192.0.2.1\n")  # an address for documents
        begin = time.monotonic()
        check = self.report(status=1, HYDRA_HOST_FILE=hosts, HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=hangs)["ranks.started"]
        self.assertTrue(25 < time.monotonic() - begin < 90)
        self.assertEqual(check["found"], "two ranks were not done within 30 s")
        self.assert_ended("pid")

    @unittest.skipUnless(FAMILY == "Open MPI" and os.geteuid() == 0, "Open MPI refuses root")
    def test_root_under_open_mpi(self):
        self.assertNotIn("mpi.root", self.report(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
        checks = self.report(OMPI_ALLOW_RUN_AS_ROOT="", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="")
        self.assertEqual(checks["mpi.root"]["status"], "warning", checks["mpi.root"])
        self.assertEqual(checks["ranks.started"]["status"], "ok", "the exchange is measured all the same")

    def test_a_python_that_is_not_there(self):
        check = self.report(LPSGD_PYTHON="/no/such/python3")["python.modules"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn("/no/such/python3 cannot be started", check["found"])
        self.assertIn("LPSGD_PYTHON", check["advice"])

    def test_a_python_without_modules(self):
        bare = self.fake("bare", 'exec /usr/bin/python3 -S "$@"')
        check = self.report(LPSGD_PYTHON=bare)["python.modules"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn(f"{bare} (Python 3", check["found"])
        self.assertIn("lacks numpy, ", check["found"])
        self.assertIn("python3-numpy", check["advice"])

    def test_reports_that_are_not_there(self):
        check = self.report(LPSGD_REPORT=self.path("here"))["python.modules"]
        self.assertEqual(check["status"], "warning", check)
        self.assertIn("LPSGD_REPORT", check["advice"])

    def test_a_cache_that_cannot_be_written(self):
        for options in ({"HOME": self.write("file", "")}, {"XDG_CACHE_HOME": "/proc"}, {"HOME": "relative"}):
            check = self.report(**options)["files.cache"]
            self.assertEqual(check["status"], "warning", check)
            self.assertIn("XDG_CACHE_HOME", check["advice"])

    def test_a_folder_that_cannot_be_written(self):
        check = self.report(status=1, cwd="/proc")["files.runs"]
        self.assertEqual(check["status"], "error", check)
        self.assertTrue(check["found"].startswith("/proc cannot be written: "), check)
        self.write(os.path.join("here", "runs"), "")
        self.assertIn("runs cannot be written: is a file", self.report(status=1)["files.runs"]["found"])
        self.assertEqual(self.doctor().out.splitlines()[-1].split(",")[0], "1 error")

    def test_data_sets(self):
        os.makedirs(self.path("data", "mnist"))
        check = self.report(LPSGD_DATA=self.path("data"))["files.data"]
        self.assertEqual((check["status"], check["data_sets"]), ("ok", ["mnist"]))
        check = self.report(LPSGD_DATA=self.path("none"))["files.data"]
        self.assertEqual(check["status"], "warning", check)

    def test_few_open_files(self):
        command = ["sh", "-c", 'ulimit -n 256; exec "$0" "$@"', os.path.abspath(LPSGD), "doctor", "--json"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        (check,) = [c for c in json.loads(process.stdout)["checks"] if c["name"] == "machine.open_files"]
        self.assertEqual((check["status"], check["limit"]), ("warning", 256))


class Ranks(DoctorCase):
    def test_the_ranks_of_a_job(self):
        for ranks in (2, 3):
            checks = self.report(ranks=ranks)  # of one report: two would be no JSON
            for name in [*EVERYWHERE, "ranks.devices", "ranks.cores", "ranks.exchange", "ranks.allreduce", "ranks.nccl"]:
                self.assertIn(name, checks)
            self.assertEqual(checks["ranks.started"]["ranks"], ranks)
            self.assertEqual(len(checks["ranks.started"]["machines"]), 1)
            exchange = checks["ranks.exchange"]
            self.assertEqual([peer["rank"] for peer in exchange["peers"]], list(range(1, ranks)))
            self.assertTrue(exchange["bytes_equal"])
            self.assertTrue(checks["ranks.allreduce"]["sum_equal"])
            (machine,) = checks["ranks.cores"]["machines"]
            is_crowded = machine["threads"] > machine["cores"]
            self.assertEqual(checks["ranks.cores"]["status"], "warning" if is_crowded else "ok")
            self.assertEqual(is_crowded, ranks > len(os.sched_getaffinity(0)), "a rank has one thread or its share")

    def test_one_text(self):
        result = self.doctor(ranks=3)
        self.assertEqual((result.status, result.out.count("program\n")), (0, 1), result)
        self.assertRegex(result.out, r"(?m)^  ok       exchange       rank 0 with 2 others: 4 bytes in .* \(rank \d\) to .*")
        self.assertRegex(result.out, r"\n\nno errors, (no|\d+) warnings?\n\Z")

    def test_one_rank(self):
        for ranks in (1, None):  # under mpirun, and without
            checks = self.report("--ranks-only", ranks=ranks)
            self.assertEqual(checks["ranks.started"]["ranks"], 1)
            self.assertEqual(checks["ranks.exchange"]["status"], "absent")

    def test_an_error_is_the_status_of_the_job(self):
        self.assertEqual(self.report(status=1, ranks=2, cwd="/proc")["files.runs"]["status"], "error")

    @unittest.skipUnless(FAMILY == "MPICH", "the launcher's options are MPICH's")
    def test_two_machines(self):
        """Hosts are network namespaces. The second one, which the launcher enters, has another name and few open files."""
        enter = self.fake("enter", 'while case "$1" in -*) true ;; *) false ;; esac; do shift; done\n'
                          "host=$(printf '%s' \"$1\" | sed 's/.*\\./lpsgd/')\nshift\n"
                          'exec ip netns exec "$host" unshare -u sh -c "hostname $host; ulimit -n 512; $*"')
        try:
            hosts = Hosts(2, "unshaped").__enter__()
        except (OSError, SystemExit, subprocess.CalledProcessError) as e:
            self.skipTest(f"no network namespaces: {str(getattr(e, 'stderr', e)).strip()}")
        self.addCleanup(hosts.__exit__)
        command = hosts.mpirun()
        command[command.index("-launcher-exec") + 1] = enter
        process = subprocess.run([*command, os.path.abspath(LPSGD), "doctor", "--json"], capture_output=True, text=True,
                                 timeout=200, check=False)
        result = Result(process)
        self.assertEqual(result.status, 0, result)
        checks = json.loads(result.out)["checks"]
        (started,) = [c for c in checks if c["name"] == "ranks.started"]
        self.assertEqual(started["machines"], [{"host": socket.gethostname(), "ranks": 1}, {"host": "lpsgd2", "ranks": 1}])
        (exchange,) = [c for c in checks if c["name"] == "ranks.exchange"]
        self.assertEqual((exchange["peers"][0]["host"], exchange["bytes_equal"]), ("lpsgd2", True))
        of_second = [c for c in checks if c.get("host") == "lpsgd2"]
        self.assertIn(("machine.open_files", "warning", 512), [(c["name"], c["status"], c.get("limit")) for c in of_second])
        self.assertFalse(re.search('"status": "(ok|absent)"', json.dumps(of_second)), "of others only what is wrong")
        (own,) = [c for c in checks if c["name"] == "machine.open_files" and "host" not in c]
        self.assertEqual(own["status"], "ok")


if __name__ == "__main__":
    unittest.main(verbosity=2)
