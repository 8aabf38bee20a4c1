"""What the tests of `lpsgd import` share. Exits with 77 (skipped) where PyTorch is missing."""

import os
import subprocess
import sys

from harness import FolderTest, find_program, skip

try:
    import torch
except ImportError as error:
    skip(error)

torch.set_num_threads(1)
LPSGD = find_program()

HEAD = """import operator
import torch
from torch import nn
from torch.nn import functional as F


def settle(module):
    \"\"\"Weights and running statistics that hide nothing.\"\"\"
    for name, value in module.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2)
        elif value.dtype.is_floating_point and (value.dim() == 1 or name.endswith("running_mean")):
            value.normal_(0.5 if name.endswith("weight") else 0, 0.3)
    return module

"""

# What changes its input is seen by all who read that input later.
IN_PLACE = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        x = self.a(x)
        y = self.b(self.relu(x))
        F.relu_(y)
        z = (x + y) * 1.0
        z.mul_(0.5)
        y = torch.add(input=x, other=F.relu(z, True)) + z
        z = y.clone()
        z.mul_(0.25)
        return self.fc(F.adaptive_max_pool2d(y + z, 1).flatten(1))


def make():
    return settle(Net())
"""


def run(*words, **environment):
    done = subprocess.run([LPSGD, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "LPSGD_PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
                               "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", **environment})
    return done.returncode, done.stdout, done.stderr


class ImportTest(FolderTest):
    maxDiff = None

    def run_import(self, text, *words, name="make", out="net"):
        self.write("model.py", text)
        return run("import", f"{self.root / 'model.py'}:{name}", *words, "--out", self.root / out)

    def imported(self, text, *words, name="make", out="net"):
        """What it prints. It must succeed."""
        status, said, err = self.run_import(text, *words, name=name, out=out)
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(sorted(p.name for p in (self.root / out).iterdir()), ["network.yaml", "weights.safetensors"])
        return said
