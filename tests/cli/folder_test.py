"""A run's folder: one job uses it at a time, a refused run leaves nothing behind, resuming names the checkpoint."""

import datetime
import os
import re
import signal
import socket
import subprocess
import time
import unittest

from harness import CONFIG, LPSGD, MPIRUN, Case, checkpoints, model, run

THREADS = ("--set", "exchange.transport=threads", "--set", "exchange.ranks=2")


def start(*arguments, ranks=None, env=None):
    command = [MPIRUN, "-n", str(ranks)] if ranks else []
    return subprocess.Popen([*command, LPSGD, "train", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, OMP_NUM_THREADS="1", **(env or {})))


class Claims(Case):
    IN_USE = r"lpsgd: error: --out {out}: is in use by process (\d+) on {host}, started (\S+ \S+) UTC; wait for it to end, or give another folder\n"

    def refused_as_in_use(self, out, text):
        match = re.fullmatch(self.IN_USE.format(out=re.escape(out), host=re.escape(socket.gethostname())), text)
        self.assertTrue(match, text)
        started = datetime.datetime.fromisoformat(match[2] + "+00:00").timestamp()
        self.assertTrue(-2 <= time.time() - started < 300, text)
        return int(match[1])

    def preloaded(self, name, function):
        """The environment of a run in which this C function stands in for the system's."""
        library, source = self.path(name + ".so"), self.write(name + ".c", function)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        return {"LD_PRELOAD": library}

    def live_run(self, out, *arguments, ranks=None, env=None):
        process = start(self.config, "--out", out, "--set", "train.epochs=100000", *arguments, ranks=ranks, env=env)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        deadline = time.time() + 60
        while not (os.path.exists(os.path.join(out, "checkpoints")) and checkpoints(out)):
            self.assertLess(time.time(), deadline)
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        return process

    def test_of_jobs_that_start_at_once_one_runs(self):
        for round_, ranks in enumerate((None, None, None, 2)):
            out = self.path(f"out{round_}")
            transport = THREADS if ranks is None else ()
            jobs = [start(self.config, "--out", out, *transport, ranks=ranks) for _ in range(4)]
            outputs = [job.communicate(timeout=120) for job in jobs]
            self.assertEqual(sorted(job.returncode for job in jobs), [0, 2, 2, 2], outputs)
            for job, (_, err) in zip(jobs, outputs):
                if job.returncode == 2:  # a late job may find the finished run
                    self.assertRegex(err, r"\Alpsgd: error: --out \S+: (is in use by process \d+ on|holds a run already)")
                    self.assertEqual(err.count("\n"), 1, err)
            self.assertEqual([m["epoch"] for m in self.metrics(out)], [1, 2])
            self.assertEqual(sorted(os.listdir(out)),
                             ["checkpoints", "config.yaml", "environment.json", "metrics.jsonl", "summary.json"])

    def test_a_live_run_keeps_its_folder(self):
        out = self.path("out")
        job = self.live_run(out, *THREADS)
        for arguments in (["--resume"], ["--resume-required"], []):
            result = run("train", self.config, "--out", out, *arguments, *THREADS)
            self.assertEqual((result.status, result.out), (2, ""), result)
            self.assertEqual(self.refused_as_in_use(out, result.err), job.pid)
        self.assertIsNone(job.poll(), "the run goes on")
        # Whichever way the job ends, the folder is free afterwards.
        job.send_signal(signal.SIGKILL)
        job.wait()
        result = run("train", self.config, "--out", out, "--resume", "--set", "train.epochs=100000", "--steps", "1", *THREADS)
        self.assertEqual(result.status, 0, result)
        self.assertNotIn(".lock", os.listdir(out))

    def test_the_holder_is_named_also_by_a_job_that_comes_before_its_name(self):
        out = self.path("out")
        env = self.preloaded("slow", "#include <unistd.h>\nint ftruncate(int f, off_t size) { sleep(1); return 0; }\n")
        job = start(self.config, "--out", out, *THREADS, "--steps", "1", env=env)
        self.addCleanup(lambda: (job.kill(), job.communicate()))
        while not os.path.exists(os.path.join(out, ".lock")):
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        result = run("train", self.config, "--out", out, *THREADS)
        self.assertEqual((result.status, self.refused_as_in_use(out, result.err)), (2, job.pid), result)
        self.assertEqual(job.wait(timeout=60), 0)

    def test_a_lock_of_another_host_that_was_not_released_is_told(self):
        """Locks may hold on one host only."""
        out = self.train("out", *THREADS, "--steps", "1", ranks=None)
        holder = "process 42 on elsewhere, started 2026-01-01 00:00:00 UTC"
        with open(os.path.join(out, ".lock"), "w") as file:
            file.write(holder + "\n")
        result = run("train", self.config, "--out", out, "--resume", *THREADS)
        self.assertEqual(result.status, 0, result)
        self.assertIn(f"warning: {out}: {holder} has not released it. ", result.err)
        self.assertNotIn(".lock", os.listdir(out))
        result = run("train", self.config, "--out", out, "--resume", *THREADS)
        self.assertNotIn("has not released", result.err)

    @unittest.skipIf(os.geteuid() != 0, "mounts need root")
    def test_hosts_that_see_other_folders(self):
        """Each rank resumes from the folder that it sees; they must be the same."""
        folder, other = self.train("out", "--steps", "2"), self.train("other", "--steps", "2", "--set", "schedule.lr=0.01")
        train = [LPSGD, "train", self.config, "--out", folder, "--resume"]
        elsewhere = ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh", other, folder]
        if subprocess.run([*elsewhere, "true"], capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        result = subprocess.run([MPIRUN, "-n", "1", *train, ":", "-n", "1", *elsewhere, *train], capture_output=True, text=True,
                                timeout=60)
        self.assertEqual(result.returncode, 2, result)
        self.assertIn(f"lpsgd: error: the ranks disagree on the manifest of {folder}/checkpoints/step-000002: ", result.stderr)
        self.assertEqual(result.stderr.count("lpsgd: error"), 1, result)

    def test_ranks_are_refused_with_one_message(self):
        out = self.path("out")
        self.live_run(out, ranks=2)
        result = run("train", self.config, "--out", out, "--resume", ranks=3)
        self.assertEqual(result.status, 2, result)
        self.refused_as_in_use(out, result.err)

    def test_without_flock_the_file_is_the_lock(self):
        env = self.preloaded("noflock", "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n")
        out = self.train("out", *THREADS, "--steps", "1", ranks=None, env=env)
        self.assertNotIn(".lock", os.listdir(out))
        self.write(os.path.join("out", ".lock"), "process 7 on elsewhere\n")
        result = run("train", self.config, "--out", out, "--resume", *THREADS, env=env)
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err, f"lpsgd: error: --out {out}: is in use by process 7 on elsewhere; this file system has no "
                                     f"locks, so if that run is over, remove {out}/.lock\n")
        os.remove(os.path.join(out, ".lock"))
        self.train("out", *THREADS, "--resume", ranks=None, env=env)
        # Of a process of this machine that has ended, also if its number is another one's now.
        host = socket.gethostname()
        ended = subprocess.Popen(["true"])
        ended.wait()
        for process in (ended.pid, os.getpid()):
            self.write(os.path.join("out", ".lock"), f"process {process} on {host}, started 2001-02-03 04:05:06 UTC\n")
            result = run("train", self.config, "--out", out, "--resume", *THREADS, env=env)
            self.assertEqual(result.status, 0, result)
            self.assertIn(f"{out}: took over the lock of process {process} on {host}", result.err)
            self.assertEqual([name for name in os.listdir(out) if "lock" in name], [])

    def test_without_flock_a_live_run_keeps_its_folder(self):
        env = self.preloaded("noflock", "#include <errno.h>\nint flock(int f, int o) { errno = ENOLCK; return -1; }\n")
        out = self.path("out")
        self.live_run(out, *THREADS, env=env)
        result = run("train", self.config, "--out", out, "--resume", *THREADS, env=env)
        self.assertEqual(result.status, 2, result)
        self.assertIn("this file system has no locks", result.err)


class NothingStays(Case):
    def refused(self, *arguments, config=None, status=2, ranks=2, env=None):
        """A run into a folder whose parents are missing, too; its message."""
        result = run("train", config or self.config, "--out", self.path("runs", "deep", "out"), *arguments, ranks=ranks,
                     env=env)
        self.assertEqual((result.status, result.out.count("epoch")), (status, 0), result)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        self.assertFalse(os.path.exists(self.path("runs")), result)
        return result.err

    def test_a_device_that_is_not_there(self):
        for ranks in (None, 2):
            text = self.refused("--set", "train.device=cuda", ranks=ranks, env={"CUDA_VISIBLE_DEVICES": ""})
            self.assertRegex(text, r"\Alpsgd: error: --set train.device=cuda: train.device: cuda cannot be used: [^\n]+; "
                                   r"allowed here: cpu, auto\n\Z")

    def test_other_mistakes(self):
        self.refused("--set", "exchange.transport=nccl", "--set", "train.device=cpu")
        self.refused("--set", "train.compute=tf32")
        self.refused("--set", "train.batch_size=25")
        self.refused("--set", "train.batch_size=1000")
        self.refused("--set", "network.classes=7")
        self.refused("--set", "data.mean=[0.5]")
        self.refused("--set", "data.dataset=cifar10")
        self.refused("--set", "exchange.transport=threads")

    def test_data_that_are_missing(self):
        config = self.write("c.yaml", CONFIG.replace("dataset: shapes", f"dataset: cifar10, root: {self.dir}")
                            .replace(", train_samples: 96, test_samples: 50", ""))
        self.assertIn("data_batch_1.bin", self.refused(config=config, status=1))

    def test_a_trace_that_cannot_be_written(self):
        # Late: after the ranks have made their networks.
        for transport, ranks in ((THREADS, None), ((), 2)):
            self.assertIn("--trace /dev/null/trace: cannot be made",
                          self.refused("--trace", "/dev/null/trace", *transport, ranks=ranks, status=1))

    def test_the_default_folder(self):
        for arguments, status in ((["--set", "train.batch_size=25"], 2), (["--trace", "/dev/null/trace"], 1)):
            result = run("train", self.config, *arguments, ranks=2, cwd=self.dir)
            self.assertEqual(result.status, status, result)
            self.assertFalse(os.path.exists(self.path("runs")), result)

    def test_on_nfs(self):
        # There a file that is removed while it is open keeps another name in its folder until it is closed.
        source = self.write("nfs.c", """#include <limits.h>
            #include <stdio.h>
            #include <string.h>
            #include <sys/stat.h>
            #include <sys/syscall.h>
            #include <unistd.h>
            static char kept[PATH_MAX];
            int unlink(const char* path) {
              const char* name = strrchr(path, '/');
              if (name == NULL || strcmp(name, "/.lock") != 0) return syscall(SYS_unlink, path);
              snprintf(kept, sizeof kept, "%.*s/.nfs1", (int)(name - path), path);
              return rename(path, kept);
            }
            int close(int file) {
              struct stat open, named;
              int last = *kept && fstat(file, &open) == 0 && stat(kept, &named) == 0 && open.st_ino == named.st_ino;
              int result = syscall(SYS_close, file);
              if (last) syscall(SYS_unlink, kept);
              return result;
            }
            """)
        library = self.path("nfs.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, source], check=True)
        self.refused("--trace", "/dev/null/trace", *THREADS, ranks=None, status=1, env={"LD_PRELOAD": library})

    def test_what_was_there_stays(self):
        os.makedirs(self.path("mine", "out"))
        for out in (("mine", "out"), ("mine", "other")):
            result = run("train", self.config, "--out", self.path(*out), "--trace", "/dev/null/trace", ranks=2)
            self.assertEqual(result.status, 1, result)
        self.assertEqual((os.listdir(self.path("mine")), os.listdir(self.path("mine", "out"))), (["out"], []))

    def test_a_folder_that_cannot_be_made(self):
        result = run("train", self.config, "--out", os.path.join(self.config, "out"), ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertIn(f"{self.config}/out: cannot be made: {self.config} is not a folder", result.err)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)


class Resuming(Case):
    def test_without_a_checkpoint_the_first_line_says_so(self):
        for name, ranks in (("a", None), ("b", 2)):
            result = run("train", self.config, "--out", self.path(name), "--resume", "--steps", "1", ranks=ranks)
            self.assertEqual(result.status, 0, result)
            self.assertEqual(result.out.splitlines()[0], f"{self.path(name)}: holds no checkpoint: starting from random weights")
            result = run("train", self.config, "--out", self.path(name), "--resume", "--steps", "2", ranks=ranks)
            self.assertNotIn("random weights", result.out)

    def test_where_a_checkpoint_is_required(self):
        out = self.path("out")
        for ranks in (None, 2):
            result = run("train", self.config, "--out", out, "--resume-required", ranks=ranks)
            self.assertEqual((result.status, result.out), (2, ""), result)
            self.assertEqual(result.err, f"lpsgd: error: --resume-required: {out} holds no checkpoint\n")
            self.assertFalse(os.path.exists(out))
        self.train("out", "--steps", "2")
        self.train("out", "--steps", "3", "--resume-required")
        self.assertIn("step-000003", checkpoints(out))

    def test_the_batch_size_of_the_ranks_is_written(self):
        text = CONFIG.replace("batch_size: 24", "batch_size: {1: 16, 2: 24}").replace("network: ", "network: {file: ").replace(
            "network.yaml", "network.yaml, parameters: {norm: false}}")
        config = self.write("table.yaml", text)

        def written():
            with open(self.path("out", "config.yaml")) as file:
                return file.read()

        self.train("out", "--set", "train.epochs=1", config=config, ranks=2)
        self.assertIn("batch_size: 24", written())
        self.assertNotIn("bn1.weight", model(self.path("out"), "epoch-0001"))
        self.train("out", "--resume", config=config, ranks=1)
        self.assertIn("batch_size: 16", written())
        self.assertEqual([r["samples"] for r in self.metrics(self.path("out"))], [96, 96])
        self.assertEqual([r["step"] for r in self.metrics(self.path("out"))], [4, 10])
        result = run("eval", config, "--checkpoint", self.path("out"), "--json")
        self.assertEqual(result.status, 0, result)

    def test_ranks_are_written_for_threads_alone(self):
        def ranks_of(folder):
            with open(os.path.join(folder, "config.yaml")) as file:
                return re.findall(r"\branks: (\d+)", file.read())

        self.assertEqual(ranks_of(self.train("mpi", "--steps", "0")), [])
        self.assertEqual(ranks_of(self.train("threads", "--steps", "0", *THREADS, ranks=None)), ["2"])

    def test_a_folder_that_says_one_rank_for_two_resumes(self):
        whole, parts = self.train("whole"), self.train("parts", "--steps", "3")
        path = os.path.join(parts, "config.yaml")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace("  overlap: true\n", "  overlap: true\n  ranks: 1\n"))
        with open(path) as file:
            self.assertIn("ranks: 1", file.read())
        self.train("parts", "--resume", config=path)
        a, b = model(whole, "epoch-0002"), model(parts, "epoch-0002")
        self.assertTrue(all((a[k] == b[k]).all() for k in a))


if __name__ == "__main__":
    unittest.main(verbosity=2)
