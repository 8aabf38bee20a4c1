"""What the commands share: files, questions to the program, buckets, options."""

import argparse
import os
import pathlib
import unittest
from unittest import mock

from harness import FolderTest, require

require("yaml")
import buckets  # noqa: E402
import command  # noqa: E402
import configuration  # noqa: E402
import files  # noqa: E402
import program  # noqa: E402
from errors import FileError, UserError  # noqa: E402


class Files(FolderTest):
    def refused(self, read, path, message, **options):
        with self.assertRaises(FileError) as caught:
            read(path, **options)
        self.assertEqual(str(caught.exception), f"{path}:{message}")

    def test_text(self):
        path = self.write("text", "a\r\nb".encode())
        self.assertEqual(files.read_text(path), "a\nb")
        self.assertEqual(files.read_text(path, newline="", most=4), "a\r\nb")
        self.refused(files.read_text, path, " 4 bytes; at most 3 are read", most=3)
        self.refused(files.read_text, self.write("latin", b"\xff"), " not text in UTF-8")
        self.refused(files.read_text, self.root / "none", " cannot be read: No such file or directory")
        self.refused(files.read_text, self.root, " cannot be read: Is a directory")

    def test_yaml(self):
        self.assertEqual(files.read_yaml(self.write("a.yaml", "a: {b: 1}\n")), {"a": {"b": 1}})
        for text, message in (
            ("- 1\n", " not a map"),
            ("a: 1\nb: [\n", "3: not YAML: expected the node content, but found '<stream end>'"),
            ("a: \0\n", " not YAML: special characters are not allowed"),
            ("a: " + "[" * 5000, " nested too deeply"),
        ):
            with self.subTest(message):
                self.refused(files.read_yaml, self.write("b.yaml", text), message)

    def test_json_that_is_not_whole_is_empty(self):
        self.assertEqual(files.read_json(self.write("a.json", '{"a": 1}')), {"a": 1})
        for text in ('{"a": ', "[1]", b"\xff", "[" * 100_000):
            self.assertEqual(files.read_json(self.write("b.json", text)), {})
        self.assertEqual(files.read_json(self.root / "none"), {})

    def test_a_file_is_written_whole_or_not_at_all(self):
        path = self.write("a.csv", "before")
        files.write_text(path, "after")
        self.assertEqual(path.read_text(), "after")
        (self.root / "a.csv.new").symlink_to("/dev/full")
        message = " cannot be written: No space left on device"
        self.refused(lambda p: files.write_text(p, "more"), path, message)
        with self.assertRaises(OSError) as caught:
            files.replace(self.root / "no" / "b", b"")
        self.assertEqual(caught.exception.filename, self.root / "no" / "b")
        self.assertEqual((path.read_text(), os.listdir(self.root)), ("after", ["a.csv"]))


class Program(FolderTest):
    def script(self, text):
        path = self.write("lpsgd", "#!/bin/sh\n" + text)
        path.chmod(0o755)
        return str(path)

    def ask(self, text):
        """The error's class and message."""
        with self.assertRaises(UserError) as caught:
            program.ask("show", "a.yaml", executable=self.script(text))
        return type(caught.exception), str(caught.exception).replace(str(self.root), "")

    def test_answers_and_errors(self):
        self.assertEqual(program.ask("x", executable=self.script("echo '[1]'")), [1])
        refused = "echo 'warning: b' >&2; echo 'lpsgd: error: a' >&2; echo end >&2; exit 2"
        self.assertEqual(self.ask(refused), (program.Refused, "a"))
        self.assertEqual(self.ask("exit 3"), (program.Refused, "'/lpsgd show a.yaml' ended with 3"))
        self.assertEqual(self.ask("echo no"), (UserError, "'/lpsgd show a.yaml' did not print JSON"))
        with mock.patch.object(program, "SECONDS", 0.1):
            late = "'/lpsgd show a.yaml' did not end within 0.1 s"
            self.assertEqual(self.ask("exec sleep 20"), (UserError, late))
        with self.assertRaisesRegex(UserError, "^/none/lpsgd: cannot be run: No such file or directory$"):
            program.ask(executable="/none/lpsgd")

    def test_which_program(self):
        path = self.script("")
        with mock.patch.dict(os.environ, LPSGD_PROGRAM=path):
            self.assertEqual(program.find(), path)
        with mock.patch.dict(os.environ, LPSGD_PROGRAM="/none/lpsgd"):
            with self.assertRaisesRegex(UserError, "^LPSGD_PROGRAM=/none/lpsgd: no program there$"):
                program.find()
        self.enterContext(mock.patch.object(program, "ROOT", str(self.root)))
        with mock.patch.dict(os.environ, PATH=str(self.root)):
            os.environ.pop("LPSGD_PROGRAM", None)
            self.assertEqual(program.find(), path)
            for build in ("cpu-release", "release"):  # each comes before the one above
                (self.root / "build" / build).mkdir(parents=True)
                built = pathlib.Path(path).rename(self.root / "build" / build / "lpsgd")
                self.assertEqual(program.find(), str(built))
                path = self.script("")
            built.unlink()
            os.environ["PATH"] = "/none"
            self.assertEqual(program.find(), str(self.root / "build" / "cpu-release" / "lpsgd"))
            (self.root / "build" / "cpu-release" / "lpsgd").unlink()
            with self.assertRaisesRegex(UserError, "^no program lpsgd; build it with scripts/build"):
                program.find()


class Values(unittest.TestCase):
    def test_buckets(self):
        self.assertEqual(buckets.length(512, "conv", [8, 4, 3, 3], 288), 512)
        self.assertEqual(buckets.length("tensor", "conv", [8, 4, 3, 3], 288), 288)
        self.assertEqual(buckets.length("column", "conv", [8, 4, 3, 5], 480), 5)
        self.assertEqual(buckets.length("column", "dense", [10, 32], 320), 10)
        self.assertEqual(buckets.length("column", "bias", [10], 10), 10)
        self.assertEqual(buckets.length("column", "bias", [0], 0), 1)

    def test_batch_sizes(self):
        for train, size in (
            ({}, 128),
            ({"batch_size": 64}, 64),
            ({"batch_size": {2: 32, "4": 16}}, 32),
            ({"batch_size": {"2": 32}}, 32),
            ({"batch_size": {4: 32}}, None),
            ({"batch_size": True}, None),
            ({"batch_size": 0}, None),
            ("none", 128),
        ):
            self.assertEqual(configuration.batch_size({"train": train}, 2), size, train)

    def test_whole_numbers(self):
        whole = command.whole(2, 10)
        self.assertEqual([whole("2"), whole("10")], [2, 10])
        for text in ("1", "11", "", "-2", "2.0", "\u0662", "9" * 5000):
            with self.assertRaises(argparse.ArgumentTypeError):
                whole(text)


if __name__ == "__main__":
    unittest.main()
