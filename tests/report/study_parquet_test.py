"""The Parquet files of a study, read back by an independent reader."""

import io
import unittest

import study_harness  # noqa: F401
from parquet_reader import read_parquet

from study import parquet


class Parquet(unittest.TestCase):
    def test_every_type_and_null(self):
        rows = [
            {"i": i if i % 3 else None, "d": i / 7, "s": f"ä{i}", "b": i % 2 == 0, "mixed": 1 if i else 0.5}
            for i in range(300)
        ]
        columns = ["i", "d", "s", "b", "mixed", "none"]
        read = read_parquet(parquet.table(columns, rows))
        self.assertEqual(list(read), columns)
        for name in columns:
            self.assertEqual(read[name], [row.get(name) for row in rows], name)
        self.assertEqual(read_parquet(parquet.table(["a"], [])), {"a": []})

    def test_with_another_reader(self):
        try:
            import pyarrow.parquet
        except ImportError:
            self.skipTest("pyarrow is not installed (Debian 12 has none)")
        rows = [{"i": i, "s": None if i % 2 else "x"} for i in range(1000)]
        table = pyarrow.parquet.read_table(io.BytesIO(parquet.table(["i", "s"], rows)))
        self.assertEqual(table.to_pylist(), rows)


if __name__ == "__main__":
    unittest.main()
