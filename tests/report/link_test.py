"""bench/link/link.py: which results of an earlier start still count."""

import unittest

from harness import SOURCE, FolderTest, sys

sys.path.insert(0, str(SOURCE / "bench" / "link"))
import link  # noqa: E402


class Results(FolderTest):
    def results(self):
        return link.Results(str(self.root / "out"), str(self.root / "lpsgd"), str(self.root / "liblpsgd.so"))

    def test_rows_of_another_build_are_ignored(self):
        """Those of lpsgd's hook depend on the library, and PyTorch's own on neither."""
        files = [self.write(name, "first") for name in ("lpsgd", "liblpsgd.so")]
        rows = [link.Row("net", 8, 4, codec="none", hook=hook) for hook in ("", "lpsgd", "full")]
        for row in rows:
            self.results().keep(row, 0, {"samples_per_s": 1.0})
        for changed, expected in ((None, [True] * 3), (files[1], [True, False, True]), (files[0], [False, False, True])):
            if changed:
                changed.write_text("second")
            self.assertEqual([self.results().done(row, 0) for row in rows], expected)


if __name__ == "__main__":
    unittest.main()
