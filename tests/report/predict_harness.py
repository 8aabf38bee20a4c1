"""What the tests of `lpsgd predict` share."""

import os

import harness

harness.require("numpy", "scipy", "yaml")
LPSGD = harness.find_program()
os.environ["LPSGD_PROGRAM"] = LPSGD
import lpsgd_predict  # noqa: E402

GIVEN = str(harness.REPORT / "published" / "samples_per_s.csv")


def predict(*words):
    """Status, output, errors of the command, within this process."""
    return harness.run_main(lpsgd_predict, *words)
