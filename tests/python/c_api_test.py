"""The C interface of liblpsgd.so (python/c_api.h), called with what another program than the hook could give it."""

import ctypes
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
try:
    import torch
except ImportError:
    print("skipped: needs PyTorch")
    sys.exit(77)
import numpy as np

sys.path.insert(0, str(SOURCE / "python"))
from lpsgd import library  # noqa: E402


class LibraryTest(unittest.TestCase):
    def coder(self, shape=(64,), policy="codec: none", **options):
        return library.Coder(policy, [("a", "dense", shape)], **{"rank": 0, "ranks": 2, "seed": 1, **options})

    def test_what_is_not_there_is_refused(self):
        coder = self.coder()
        values = torch.ones(64)
        bucket = coder.add_bucket([0], [values.data_ptr()])
        for call, message in (
            (lambda: self.coder((-2, -3)), r"tensor a: the shape \(-2, -3\) is not one of a tensor"),
            (lambda: self.coder((2**32, 2**32)), "is not one of a tensor"),
            (lambda: self.coder(cuda=(-5, None, None)), "there is no CUDA device -5"),
            (lambda: coder.message(bucket, library.OUTGOING, 2), "there is no such rank"),
            (lambda: coder.message(bucket, library.MEAN, -1), "there is no such rank"),
            (lambda: coder.message(bucket, 9, 1), "there is no kind 9 of messages"),
            (lambda: coder.add_bucket([0, 0], [values.data_ptr()] * 2), "a bucket holds a tensor twice"),
            (lambda: coder.add_bucket([0], [None]), "a gradient of a bucket is nowhere"),
            (lambda: coder.encode(bucket), r"encode\(\) without begin\(\)"),
        ):
            with self.assertRaisesRegex(library.LibraryError, message):
                call()

    def test_null_pointers_are_refused(self):
        functions = library.load()
        for name, arguments in library._ARGUMENTS.items():
            nothing = [None if issubclass(a, (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p)) else 1 for a in arguments]
            self.assertEqual(getattr(functions, name)(*nothing), -1, name)
            self.assertIn(b"is a null pointer", functions.lpsgd_last_error(), name)

    def test_denormals_are_kept_whatever_the_thread_does_with_them(self):
        values = torch.from_numpy(np.arange(1, 65, dtype=np.uint32).view(np.float32).copy())  # the smallest numbers
        for codec in ("none", "onebit", "{kind: qsgd, bits: 8}", "dynamic8", "{kind: mx, element: e5m2}", "sign"):
            found = []
            for flush in (False, True):
                coder = self.coder(policy=f"codec: {codec}\nmin_elements: 0")
                bucket = coder.add_bucket([0], [values.data_ptr()])
                if torch.set_flush_denormal(flush) is False and flush:
                    self.skipTest("this processor cannot flush denormals")
                try:
                    coder.begin(0)
                    coder.encode(bucket)
                finally:
                    torch.set_flush_denormal(False)
                found.append(b"".join(ctypes.string_at(*coder.message(bucket, library.OUTGOING, rank)) for rank in (0, 1)))
            self.assertEqual(*found, codec)
            self.assertNotEqual(found[0].strip(b"\0"), b"")


if __name__ == "__main__":
    unittest.main()
