"""Before PyTorch is loaded, which takes seconds: is there the GPU that a test needs?"""

import subprocess
import sys
import tempfile
from pathlib import Path

NETWORK = Path(__file__).resolve().parents[2] / "configs" / "networks" / "logistic.yaml"


def skip_without_gpu(dump_gradients):
    """Ends the test as a skip where the program says that it cannot use one."""
    with tempfile.TemporaryDirectory() as folder:
        words = [dump_gradients, NETWORK, "-", f"{folder}/weights", "--device", "cuda"]
        done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    if "cannot be used" in done.stderr:
        print(f"skipped: {done.stderr.strip()}")
        sys.exit(77)
    sys.stderr.write(done.stderr)
    done.check_returncode()
