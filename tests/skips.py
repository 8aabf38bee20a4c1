"""Python's unittest for ctest: a program of which every test was skipped is a skipped one, and says why."""

import sys
import unittest


def main():
    result = unittest.main(module="__main__", exit=False).result
    for test, why in result.skipped:
        print(f"skipped: {test}: {why}")
    if not result.wasSuccessful():
        sys.exit(1)
    if 0 < result.testsRun == len(result.skipped):
        sys.exit(77)
