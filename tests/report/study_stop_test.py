"""`lpsgd study`: signals that end it or are ignored, and the lock on its folder."""

import contextlib
import errno
import fcntl
import io
import os
import signal
import subprocess
import time
import unittest
from unittest import mock

from harness import rows_of
from study_harness import HEAD, StudyTest

from errors import UserError
from study import runner


LONG = "set: {train.epochs: 1000000}\n"


class Stop(StudyTest):
    def start(self, text, *words, ignored=()):
        """A study that runs, with its standard output."""
        command, environment = self.command(text, "--out", str(self.root / "out"), *words)
        study = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored],
        )
        self.addCleanup(lambda: [file.close() for file in (study.stdout, study.stderr)])
        self.addCleanup(study.kill)
        return study

    def wait_until(self, found):
        deadline = time.monotonic() + 60
        while not found() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertTrue(found())

    def test_what_it_was_started_to_ignore_remains_ignored(self):
        """SIGHUP under nohup, SIGINT in the background of a script."""
        ignored = (signal.SIGHUP, signal.SIGINT)
        study = self.start(HEAD + "set: {train.epochs: 60, data.train_samples: 4096}\n", ignored=ignored)
        self.assertIn("started", study.stdout.readline())
        for number in ignored:
            study.send_signal(number)
        out, err = study.communicate(timeout=100)
        self.assertEqual((study.returncode, err), (0, ""), out)
        self.assertIn("1 of 1 runs done", out)

    def test_timed_steps_end_with_the_study(self):
        text = HEAD + LONG
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with self.subTest(number=number):
                study = self.start(text, "--dry-run", "--time-steps", "900000", "--jobs", "2")
                self.wait_until(lambda: list(self.root.glob("out/time-steps-*/config.yaml")))
                study.send_signal(number)
                out, err = study.communicate(timeout=80)
                self.assertEqual((study.returncode, out, err), (128 + number, "", ""))
                self.assertEqual(self.processes_left(), [])
                self.assertFalse((self.root / "out").exists())

    def test_timed_steps_end_when_the_study_is_killed(self):
        study = self.start(HEAD + LONG, "--dry-run", "--time-steps", "900000")
        self.wait_until(lambda: list(self.root.glob("out/time-steps-*/config.yaml")))
        study.kill()
        study.wait()
        self.assertEqual(self.processes_left(), [])


class ClosedStreams(StudyTest):
    def test_a_study_whose_output_is_closed(self):
        command, environment = self.command(HEAD + "axes: {ranks: [1, 2]}\n", "--out", str(self.root / "out"))
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
        done = subprocess.run(closed, env=environment, capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual([row["status"] for row in rows_of(self.root / "out" / "runs.csv")], ["done", "done"])
        for log in self.root.glob("out/runs/*/log.txt"):
            self.assertNotIn("Traceback", log.read_text())


class Locks(StudyTest):
    def lock(self, flock=fcntl.flock):
        """The lock of the folder, and what is printed."""
        err = io.StringIO()
        with mock.patch("fcntl.flock", flock), contextlib.redirect_stderr(err):
            lock = runner.Lock(str(self.root / "out"))
        self.addCleanup(lock.file.close)
        return lock, err.getvalue()

    def test_a_file_system_without_locks(self):
        def no_locks(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        mine = f"process {os.getpid()} on {os.uname().nodename}"
        warning = f"lpsgd study: --out {self.root}/out: this file system has no locks (No locks available)"
        advice = ". Only one study may write there at a time\n"
        first, said = self.lock(no_locks)
        self.assertEqual(said, warning + advice)
        second, said = self.lock(no_locks)
        self.assertEqual(said, f"{warning}; {mine} has not released it{advice}")
        for lock in (first, second):
            lock.release()
        self.assertEqual(self.lock(no_locks)[1], warning + advice)

    def test_a_folder_in_use_is_refused(self):
        first, said = self.lock()
        self.assertEqual(said, "")
        with self.assertRaisesRegex(UserError, f"is in use by process {os.getpid()} on "):
            self.lock()
        first.release()
        self.assertEqual(self.lock()[1], "")


if __name__ == "__main__":
    unittest.main()
