"""Standard streams that are closed, a terminal that goes away, and the level of what is logged."""

import fcntl
import os
import pty
import shutil
import subprocess
import termios
import unittest

from harness import LPSGD, Case, checkpoints, run

THREADS = ("--set=exchange.transport=threads", "--set=exchange.ranks=2")


class Streams(Case):
    def test_what_is_printed_goes_into_no_file(self):
        """Files that are opened get the lowest free numbers, which may be those of closed streams."""
        for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"):
            with self.subTest(closed=closed):
                out = self.path("out")
                result = run("train", self.config, "--out", out, *THREADS, wrap=["sh", "-c", f'exec "$0" "$@" {closed}'])
                self.assertEqual(result.status, 0, result)
                self.assertEqual(run("checkpoint", "verify", out).status, 0)
                for folder, _, files in os.walk(out):
                    for name in files:
                        with open(os.path.join(folder, name), "rb") as file:
                            self.assertNotIn(b"samples/s |", file.read(), name)
                shutil.rmtree(out)

    def test_a_full_standard_output(self):
        for words in (["--version"], ["--help"], ["show", self.config], ["help", "train"]):
            with self.subTest(words=words):
                result = run(*words, wrap=["sh", "-c", 'exec "$0" "$@" > /dev/full'])
                self.assertEqual((result.status, result.err), (1, "lpsgd: error: standard output cannot be written\n"))

    def test_a_closed_terminal_is_a_signal(self):
        for ranks in ("1", "2"):
            reader, writer = pty.openpty()

            def prepare(terminal=writer):
                os.setsid()
                fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

            out = self.path("out" + ranks)
            process = subprocess.Popen(
                [LPSGD, "train", self.config, "--out", out, "--set=exchange.transport=threads", f"--set=exchange.ranks={ranks}",
                 "--set=train.epochs=100000"],
                stdin=writer, stdout=writer, stderr=writer, preexec_fn=prepare, env=dict(os.environ, OMP_NUM_THREADS="1"))
            os.close(writer)
            text = b""
            while b"epoch 2/" not in text:
                text += os.read(reader, 4096)
            os.close(reader)
            self.assertEqual(process.wait(timeout=60), 129)
            self.assertTrue(checkpoints(out))

    def test_levels_of_the_log(self):
        """A warning is printed unless it is turned off by a word that is a level."""
        for level, shown, complains in (("warn", True, False), ("WARN", True, False), ("off", False, False),
                                        ("err", False, False), ("loud", True, True), ("", True, True)):
            with self.subTest(level=level):
                result = run("train", self.config, "--out", self.path("run" + level), "--steps=0", "--set=exchange.collective=hierarchical",
                             *THREADS, env={"LPSGD_LOG": level})
                self.assertEqual(result.status, 0, result)
                self.assertEqual("are one block" in result.err, shown, result)
                self.assertEqual("LPSGD_LOG" in result.err, complains, result)


if __name__ == "__main__":
    unittest.main()
