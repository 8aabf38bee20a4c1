"""Launchers: mpirun of the library that lpsgd is linked with, of another one, and Slurm's srun; which library a build picks.

LPSGD_REQUIRE_LAUNCHERS=1: a launcher that is missing is a failure, not a skip.
"""

import json
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from harness import LPSGD, SOURCE, Case, Result, run, save

import numpy as np

FAMILIES = {"MPICH": "mpirun.mpich", "Open MPI": "mpirun.openmpi"}
OWN = next((f for f in FAMILIES if json.loads(run("version", "--json").out)["mpi_version"].startswith(f)), "another MPI")
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


class Launchers(Case):
    def launcher(self, family):
        path = shutil.which(FAMILIES[family])
        if not path and os.environ.get("LPSGD_REQUIRE_LAUNCHERS"):
            self.fail(f"{FAMILIES[family]} is not installed")
        if not path or OWN not in FAMILIES:
            self.skipTest(f"{FAMILIES[family]} is not installed, or lpsgd is linked with {OWN}")
        return path

    def other(self):
        return self.launcher(next(f for f in FAMILIES if f != OWN))

    def launch(self, launcher, ranks, *arguments):
        """lpsgd under this launcher, in a folder for each process, whose status is left in a file status.RANK."""
        # The launcher may kill a process while it writes, once another one has ended with an error.
        note = f'cd "$(mktemp -d -p {self.dir})"; "$@"; s=$?; echo $s > s; mv s {self.path("status")}.{RANK}; exit $s'
        command = [launcher, "-n", ranks, "sh", "-c", note, "sh", os.path.abspath(LPSGD), *arguments]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        return Result(subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, env=environment))

    def statuses(self):
        return {path.name: int(path.read_text()) for path in Path(self.dir).glob("status.*")}

    def refused(self, result, launcher, ranks):
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        self.assertRegex(result.err, rf"lpsgd: error: {launcher} started {ranks} processes, but lpsgd is linked with {OWN}"
                                     rf".*{FAMILIES[OWN]} -n {ranks} lpsgd")
        self.assertFalse(os.path.exists(self.path("out")), "nothing may start")

    def test_its_own_mpirun(self):
        for ranks in (1, 2):
            result = self.launch(self.launcher(OWN), ranks, "train", self.config, "--out", self.path(f"out{ranks}"), "--steps", 1)
            self.assertEqual(result.status, 0, result)
            self.assertIn(f"{ranks} rank{'s' if ranks > 1 else ''} over mpi", result.out)

    def test_mpirun_of_another_library_is_refused(self):
        other = self.other()
        for ranks in (2, 3):
            result = self.launch(other, ranks, "train", self.config, "--out", self.path("out"))
            self.refused(result, next(f for f in FAMILIES if f != OWN) + "'s mpirun", ranks)
            for name, status in self.statuses().items():
                self.assertEqual(status, 2, name)
            self.assertIn("status.0", self.statuses(), "the launcher's rank 0 speaks")
        result = self.launch(other, 2, "bench", "exchange", "--max", "64K", "--repeats", "1")
        self.refused(result, next(f for f in FAMILIES if f != OWN) + "'s mpirun", 2)

    def test_one_process_of_another_mpirun_trains(self):
        result = self.launch(self.other(), 1, "train", self.config, "--out", self.path("out"), "--steps", 1)
        self.assertEqual(result.status, 0, result)
        self.assertIn("1 rank over mpi", result.out)

    def test_commands_without_ranks_run_under_any_launcher(self):
        other = self.other()
        save(self.path("in.safetensors"), {"t": np.ones((1, 2, 3), "f4")})
        for arguments in (["show", self.config], ["version"], ["--help"],
                          ["quantize", self.path("in.safetensors"), "--codec", "none", "--out", "out.safetensors"]):
            result = self.launch(other, 2, *arguments)
            self.assertEqual(result.status, 0, result)

    def srun(self, tasks, *arguments, **more):
        """As srun --mpi=none: processes with Slurm's variables, and without MPI."""
        processes = []
        for task in range(tasks):
            slurm = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_NUM_NODES": "1",
                     "SLURM_PROCID": str(task), "SLURM_NTASKS": str(tasks), **more}
            processes.append(subprocess.Popen([LPSGD, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                              text=True, env=dict(os.environ, OMP_NUM_THREADS="1", **slurm)))
        outputs = [process.communicate(timeout=120) for process in processes]
        return [Result(subprocess.CompletedProcess(p.args, p.returncode, *o)) for p, o in zip(processes, outputs)]

    def test_srun_without_mpi_is_refused(self):
        self.launcher(OWN)
        first, second = self.srun(2, "train", self.config, "--out", self.path("out"))
        self.refused(first, "srun", 2)
        self.assertIn("srun --mpi=", first.err)
        self.assertEqual((second.status, second.out, second.err), (2, "", ""))

    def test_slurm_counts_within_a_step_only(self):
        (task,) = self.srun(1, "train", self.config, "--out", self.path("out"), "--steps", 1)
        self.assertEqual(task.status, 0, task)
        job = {"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_PROCID": "0"}
        result = run("train", self.config, "--out", self.path("job"), "--steps", "1", env=job)
        self.assertEqual(result.status, 0, result)
        # mpirun in a shell that srun has started.
        step = ["env", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_PROCID=0"]
        result = run("train", self.config, "--out", self.path("step"), "--steps", "1", ranks=2, wrap=step)
        self.assertEqual(result.status, 0, result)
        self.assertIn("2 ranks over mpi", result.out)


class Build(Case):
    def test_open_mpi_beside_mpich_does_not_change_what_is_picked(self):
        wrappers = {f: shutil.which(FAMILIES[f].replace("mpirun", "mpicc")) for f in FAMILIES}
        if not all(wrappers.values()) or not shutil.which("cmake"):
            if os.environ.get("LPSGD_REQUIRE_LAUNCHERS"):
                self.fail(f"not installed: {wrappers}")
            self.skipTest("needs CMake, MPICH and Open MPI")
        # As with Debian's alternatives: the plain names are Open MPI's.
        os.mkdir(self.path("bin"))
        for name in ("mpicc", "mpirun", "mpiexec"):
            os.symlink(shutil.which(name + ".openmpi"), self.path("bin", name))
        environment = dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"])
        environment.pop("MPI_HOME", None)

        def picked(*options):
            subprocess.run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", self.path("build"), "-DLPSGD_CUDA=OFF",
                            "-DLPSGD_TESTS=OFF", "-DLPSGD_BENCH=OFF", *options], check=True, capture_output=True, env=environment)
            with open(self.path("build", "CMakeCache.txt")) as file:
                cache = dict(line.rstrip().split("=", 1) for line in file if ":" in line and "=" in line)
            return [cache["MPI_C_COMPILER:FILEPATH"], os.path.basename(cache["MPIEXEC_EXECUTABLE:FILEPATH"])]

        mpich, open_mpi = [wrappers["MPICH"], "mpirun.mpich"], [wrappers["Open MPI"], "mpirun.openmpi"]
        self.assertEqual(picked(), mpich)
        self.assertEqual(picked("-DLPSGD_MPI=OPENMPI"), open_mpi)
        self.assertEqual(picked(), open_mpi, "the choice is kept")
        self.assertEqual(picked("-DLPSGD_MPI=MPICH"), mpich)
        self.assertEqual(picked(f"-DLPSGD_MPI={wrappers['Open MPI']}"), open_mpi)
        self.assertEqual(picked("-DLPSGD_MPI=AUTO"), mpich)


if __name__ == "__main__":
    unittest.main(verbosity=2)
