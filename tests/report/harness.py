"""What the tests of this folder share: skipping, a temporary folder, running a command in this process."""

import contextlib
import csv
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
SOURCE = pathlib.Path(__file__).resolve().parents[2]
REPORT = SOURCE / "report"
# A network whose steps take milliseconds.
TINY = """network:
  name: tiny
  input: [32, 32, 3]
  classes: 10
  layers:
    - {conv: conv1, filters: 4, kernel: 3, stride: 4}
    - {relu: relu1}
    - flatten
    - {dense: fc, units: 10}
"""
sys.path.insert(0, str(REPORT))
import modules  # noqa: E402
import program  # noqa: E402
from errors import UserError  # noqa: E402


def skip(reason):
    """Ends the test's program, as a skip."""
    print(f"skipped: {reason}")
    sys.exit(77)


def require(*names):
    missing = [name for name in names if not modules.has(name)]
    if missing:
        skip(f"needs {' and '.join(modules.PACKAGES[name] for name in missing)}")


def find_program():
    """The absolute path of the program that is tested."""
    try:
        return os.path.abspath(os.environ.get("LPSGD") or program.find())
    except UserError as error:
        return skip(error)


def run_main(script, *words):
    """Status, output and errors of a command's main()."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with mock.patch.object(sys, "argv", [script.__file__, *words]):
            try:
                status = script.main()
            except SystemExit as end:
                status = end.code
    return status, out.getvalue(), err.getvalue()


def rows_of(path):
    """Of a CSV file, as dictionaries."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path
