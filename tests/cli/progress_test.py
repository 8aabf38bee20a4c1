"""Progress: one line rewritten on the user's terminal, plain lines in files, pipes and a launcher's pseudo-terminal."""

import fcntl
import os
import pty
import subprocess
import termios
import unittest

from harness import LPSGD, Case, run

REWRITE = "\r\x1b[K"


class Progress(Case):
    def on_pty(self, *arguments, is_controlling):
        """What a run prints on a pseudo-terminal, which is the process's controlling terminal or not."""
        reader, writer = pty.openpty()

        def prepare():
            os.setsid()
            if is_controlling:
                fcntl.ioctl(writer, termios.TIOCSCTTY, 0)

        process = subprocess.Popen([LPSGD, "train", self.config, "--out", self.path("out"), "--steps", "4", *arguments],
                                   stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, preexec_fn=prepare,
                                   env=dict(os.environ, OMP_NUM_THREADS="1"))
        os.close(writer)
        text = b""
        try:
            while part := os.read(reader, 65536):
                text += part
        except OSError:  # how a pseudo-terminal ends
            pass
        os.close(reader)
        self.assertEqual(process.wait(timeout=60), 0, (text, process.stderr.read()))
        process.stderr.close()
        subprocess.run(["rm", "-rf", self.path("out")], check=True)
        return text.decode().replace("\r\n", "\n")  # the terminal adds the carriage returns

    def test_on_the_users_terminal_one_line_is_rewritten(self):
        self.assertIn(REWRITE + "step 1/4 | ", self.on_pty(is_controlling=True))

    def test_behind_a_launchers_terminal_there_are_lines(self):
        for arguments in ((), ("--progress", "auto")):
            text = self.on_pty(*arguments, is_controlling=False)
            self.assertNotIn("\r", text)
            self.assertIn("\nstep 1/4 | ", text)

    def test_as_asked(self):
        for is_controlling in (True, False):
            self.assertIn(REWRITE + "step 1/4 | ", self.on_pty("--progress", "terminal", is_controlling=is_controlling))
            text = self.on_pty("--progress", "plain", is_controlling=is_controlling)
            self.assertNotIn("\r", text)
            self.assertIn("\nstep 4/4 | ", text)
            text = self.on_pty("--progress", "none", is_controlling=is_controlling)
            self.assertEqual(text.count("\n"), 1, text)
            self.assertTrue(text.startswith("tiny | "), text)

    def test_in_a_pipe(self):
        rewrite = REWRITE[1:]  # Python reads the carriage return as an end of line
        for ranks in (None, 2):
            for mode, expected in (("auto", "\nstep 1/2 | "), ("plain", "\nstep 1/2 | "), ("terminal", rewrite + "step 1/2 | ")):
                result = run("train", self.config, "--out", self.path(f"{mode}{ranks}"), "--steps", "2", "--progress", mode,
                             ranks=ranks)
                self.assertEqual(result.status, 0, result)
                self.assertEqual(rewrite in result.out, mode == "terminal")
                self.assertIn(expected, result.out)

    def test_epochs_are_progress_too(self):
        for mode, epochs in (("plain", 2), ("none", 0)):
            result = run("train", self.config, "--out", self.path(mode), "--progress", mode)
            self.assertEqual(result.status, 0, result)
            self.assertEqual(result.out.count("\nepoch "), epochs, result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
