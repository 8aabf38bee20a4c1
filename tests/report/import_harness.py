"""What the tests of `lpsgd import` share. Exits with 77 (skipped) where PyTorch is missing."""

import os
import pathlib
import runpy
import subprocess
import sys
import warnings

from harness import REPORT, SOURCE, FolderTest, find_program, skip

try:
    import torch
    from torch.nn import functional
except ImportError as error:
    skip(error)
sys.path.insert(0, str(SOURCE / "tests" / "nn"))
import numpy as np  # noqa: E402
import torch_forks  # noqa: E402
from safetensors_file import load, save  # noqa: E402

torch.set_num_threads(1)
LPSGD = find_program()
DUMP = os.environ.get("DUMP_GRADIENTS", str(pathlib.Path(LPSGD).parent / "tests" / "nn" / "dump_gradients"))

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


def run_script(words):
    """The process of an import: what the program makes of itself."""
    os.environ["LPSGD_PROGRAM"] = LPSGD
    warnings.simplefilter("ignore")
    script = str(REPORT / "lpsgd_import.py")
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


def run(*words, **environment):
    done = subprocess.run([LPSGD, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "LPSGD_PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
                               "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", **environment})
    return done.returncode, done.stdout, done.stderr


class ImportTest(FolderTest):
    maxDiff = None

    def run_import(self, text, *words, name="make", out="net"):
        self.write("model.py", text)
        return self.run_words(f"{self.root / 'model.py'}:{name}", *words, "--out", self.root / out)

    def run_words(self, *words):
        """`lpsgd import WORDS`. The program itself is asked in test_the_program."""
        stdout, stderr = self.root / "stdout", self.root / "stderr"
        process = torch_forks.start(run_script, [*map(str, words)], stdout=stdout, stderr=stderr)
        (status,) = torch_forks.wait([process], 300)
        return status, stdout.read_text(), stderr.read_text()

    def imported(self, text, *words, name="make", out="net"):
        """What it prints. It must succeed."""
        status, said, err = self.run_import(text, *words, name=name, out=out)
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(sorted(p.name for p in (self.root / out).iterdir()), ["network.yaml", "weights.safetensors"])
        return said

    def lines(self, out="net"):
        """Of the layers in the network file."""
        lines = (self.root / out / "network.yaml").read_text().splitlines()
        return [line.removeprefix("  - ") for line in lines[lines.index("layers:") + 1 :]]

    def kinds(self, out="net"):
        return {line.removeprefix("{").partition(":")[0] for line in self.lines(out)}

    def refused_lines(self, text, *words, name="make"):
        status, said, err = self.run_import(text, *words, name=name, out="refused")
        self.assertEqual((status, said), (2, ""), err)
        self.assertFalse((self.root / "refused").exists())
        return [line.strip() for line in err.splitlines()[1:]]


class ComparedTest(ImportTest):
    """Compares what the program computes from the written network with the module, in float64."""

    def text(self, out):
        return (self.root / out / "network.yaml").read_text()

    def module(self, text, name="make", masks=()):
        """The same module, with the weights that were written."""
        found = {}
        exec(text, found)  # noqa: S102
        module = found[name]()
        written = load(self.root / "net" / "weights.safetensors")
        state = module.state_dict()
        used = [n for n in state if not n.endswith("num_batches_tracked") and not n.startswith("unused")]
        self.names = {}  # the module's, and those here, by docs/from-pytorch.md
        for name, value in written.items():
            layer, _, kind = name.rpartition(".")
            (theirs,) = {name, layer, f"{layer}_{kind}"} & set(used)
            state[theirs].copy_(torch.tensor(value).view_as(state[theirs]))
            self.names[theirs] = name
        self.assertEqual(sorted(self.names), sorted(set(used) - set(masks)))
        return module

    def dumped(self, x, labels):
        """What the program computes from the written network for a batch, in lpsgd's order of dimensions."""
        weights = load(self.root / "net" / "weights.safetensors")
        save(self.root / "in", {**weights, "input": x, "labels": labels})
        subprocess.run([DUMP, self.root / "net" / "network.yaml", self.root / "in", self.root / "out", "--steps", "1"],
                       check=True, timeout=300)
        return load(self.root / "out")

    def compare_images(self, text, shape, *masks, name="make"):
        module = self.module(text, name, masks)
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(4, *shape, generator=generator)
        labels = torch.randint(0, 5, (4,), generator=generator)
        self.compare_training(module, self.dumped(x.permute(0, 2, 3, 1).numpy(), labels.numpy()), x, labels)

    def compare_sequences(self, text, *masks, name="make"):
        module = self.module(text, name, masks)
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(3, 7, 8, generator=generator)
        labels = torch.randint(0, 5, (3, 7), generator=generator)
        self.compare_training(module, self.dumped(x.numpy(), labels.numpy()), x, labels)

    def compare_training(self, module, found, x, labels):
        """Loss, gradients and running statistics of one step, to float32's rounding."""
        module = module.double().train()
        x = x if x.dtype == torch.int64 else x.double()
        scores = module(x)
        loss = functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        self.assertAlmostEqual(float(found["loss"][0]), loss.item(), delta=1e-5 * loss.item())
        gradients = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
        self.assertEqual(len(gradients), sum(n.startswith("gradient.") for n in found))
        largest = max(np.abs(g).max() for g in gradients.values())
        for name, theirs in gradients.items():  # some are 0, such as those of a bias in front of a normalisation
            self.close(found["gradient." + self.names[name]].reshape(theirs.shape), theirs, name, largest / 10)
        for name, value in module.named_buffers():
            if name in self.names and "running" in name:
                self.close(found["buffer." + name], value.numpy(), name)

    def close(self, ours, theirs, name, least=0):
        self.assertLess(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), least), 1e-4, name)
