"""The version is the same in CMake, the changelog and the citation."""

import datetime
import re
import unittest
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


class Version(unittest.TestCase):
    def test_is_the_same_everywhere(self):
        declared = re.search(r"^project\(lpsgd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        released = re.search(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
        self.assertEqual(released[1], declared)
        self.assertEqual(citation["version"], declared)
        self.assertEqual(citation["date-released"], datetime.date.fromisoformat(released[2]))


if __name__ == "__main__":
    unittest.main()
