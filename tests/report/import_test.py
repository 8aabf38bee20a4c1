"""lpsgd import: modules of PyTorch as network files. Scores, gradients and running statistics of the written network
are compared with those of the module. Exits with 77 (skipped) where PyTorch is missing.

    LPSGD=... DUMP_GRADIENTS=... import_test.py
"""

import os
import pathlib
import subprocess
import sys
import unittest

from harness import SOURCE, FolderTest, find_program, skip

sys.path.insert(0, str(SOURCE / "tests" / "nn"))
try:
    import numpy as np
    import torch
    from safetensors_file import load, save
    from torch.nn import functional
except ImportError as error:
    skip(error)

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

# Every kind of layer but dropout, as modules, functions and methods, and names that stand several times.
LAYERS = HEAD + """
class Part(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, (3, 5), padding="same", groups=2)
        self.norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3)
        self.act = nn.Tanh()

    def forward(self, x):
        y = self.act(self.norm(self.conv(x)))
        y = y + x
        return self.act(torch.add(y, x))


class Net(nn.Module):
    def __init__(self, classes=7):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=(2, 1), padding=(1, 2), bias=False), nn.Sigmoid(),
                                  nn.LocalResponseNorm(4, alpha=0.7, beta=0.6, k=1.5))
        self.parts = nn.ModuleList([Part(8), Part(8)])
        self.pool = nn.MaxPool2d(3, 2, padding=1, ceil_mode=True)
        self.mean = nn.AvgPool2d((3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        self.valid = nn.Conv2d(16, 12, 1, padding="valid")
        self.coarse = nn.AdaptiveAvgPool2d((3, None))
        self.same = nn.Identity()
        self.fc1 = nn.Linear(12 * 3 * 7, 9, bias=False)
        self.norm = nn.BatchNorm1d(9)
        self.fc2 = nn.Linear(9 + 12, classes)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        n = x.size(0)
        x = self.stem(x)
        for part in self.parts:
            x = part(x)
        x = torch.cat([self.pool(x), self.mean(x).contiguous()], dim=1)
        x = self.same(self.valid(torch.cat([x], 1)))
        wide = F.relu6(F.relu(x) * 8.0).mean([2, 3])
        x = self.coarse(x) * 0.75
        x = F.avg_pool2d(x, 1) / 2.0
        x = x.view(x.shape[0], -1)
        x = torch.sigmoid(self.norm(self.fc1(x)))
        return F.log_softmax(self.fc2(torch.cat((x, wide.view(n, -1)), dim=-1)), dim=1)


def make(classes=7):
    return settle(Net(classes))
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
        x += y
        z = y * 1.0
        z.mul_(0.5)
        y = torch.add(x, F.relu(z, True))
        return self.fc(F.adaptive_max_pool2d(y + z, 1).flatten(1))


def make():
    return settle(Net())
"""

SEQUENCE = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.first = nn.LSTM(6, 5, batch_first=True, proj_size=4)
        self.second = nn.LSTM(4, 7, batch_first=True, bias=False)
        self.out = nn.Linear(7, 11)

    def forward(self, x):
        return self.out(self.second(self.first(self.table(x))[0])[0])
"""

REFUSED = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, dilation=2)
        self.b = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.even = nn.Conv2d(4, 4, 2, padding="same")
        self.norm = nn.BatchNorm2d(4, affine=False)
        self.act = nn.GELU()
        self.drop = nn.Dropout2d()
        self.again = nn.Conv2d(4, 4, 1)
        self.tied = nn.Conv2d(4, 4, 1)
        self.tied.weight = self.again.weight
        self.bent = nn.utils.spectral_norm(nn.Conv2d(4, 4, 1))
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.pool = nn.AdaptiveAvgPool2d(5)
        self.fc = nn.Linear(100, 3)

    def forward(self, x):
        x = self.norm(self.even(self.b(self.a(x))))
        x = self.drop(self.act(self.act(x))).transpose(2, 3)
        x = self.bent(self.tied(self.again(self.again(x)))) * self.scale
        return self.fc(torch.softmax(self.pool(x), 1).flatten(1))
"""


def run(*words, **environment):
    done = subprocess.run([LPSGD, *map(str, words)], capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "LPSGD_PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
                               "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", **environment})
    return done.returncode, done.stdout, done.stderr


class Import(FolderTest):
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

    def module(self, text, name="make"):
        """The same module, with the weights that were written."""
        found = {}
        exec(text, found)  # noqa: S102
        module = found[name]()
        written = load(self.root / "net" / "weights.safetensors")
        state = module.state_dict()
        used = [n for n in state if not n.endswith("num_batches_tracked") and not n.startswith("unused")]
        self.assertEqual(list(written), [n for n in written if n in used])
        self.assertEqual(sorted(written), sorted(used))
        module.load_state_dict({**state, **{n: torch.tensor(v) for n, v in written.items()}})
        return module

    def dumped(self, x, labels):
        """What the program computes from the written network for a batch, in lpsgd's order of dimensions."""
        weights = load(self.root / "net" / "weights.safetensors")
        save(self.root / "in", {**weights, "input": x, "labels": labels})
        subprocess.run([DUMP, self.root / "net" / "network.yaml", self.root / "in", self.root / "out", "--steps", "1"],
                       check=True, timeout=300)
        return load(self.root / "out")

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
            self.close(found["gradient." + name], theirs, name, largest / 10)
        for name, value in module.named_buffers():
            if not name.endswith("num_batches_tracked"):
                self.close(found["buffer." + name], value.numpy(), name)

    def close(self, ours, theirs, name, least=0):
        self.assertLess(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), least), 1e-4, name)

    def test_every_layer(self):
        said = self.imported(LAYERS, "--input", "3,21,10", "--with", "classes=5")
        self.assertIn("the softmax at the end is left out", said)
        self.assertIn("left out, because the scores do not depend on it: unused.weight, unused.bias\n", said)
        self.assertRegex(said, r"scores of 4 random images are PyTorch's to \d\.\de-0[4-7] of a score's deviation between images\n")
        module = self.module(LAYERS.replace("classes=7", "classes=5"))
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(6, 3, 21, 10, generator=generator)
        labels = torch.randint(0, 5, (6,), generator=generator)
        found = self.dumped(x.permute(0, 2, 3, 1).numpy(), labels.numpy())
        self.compare_training(module, found, x, labels)
        kinds = {line.split("{")[1].split(":")[0] for line in (self.root / "net/network.yaml").read_text().splitlines()
                 if line.startswith("  - ")}
        self.assertEqual(kinds, set("conv batch_norm dense relu relu6 sigmoid tanh lrn scale add concat max_pool average_pool "
                                    "flatten".split()))

    def test_what_works_in_place(self):
        self.imported(IN_PLACE, "--input", "1,9,8")
        module = self.module(IN_PLACE)
        x = torch.randn(4, 1, 9, 8, generator=torch.Generator().manual_seed(5))
        labels = torch.tensor([0, 4, 2, 1])
        found = self.dumped(x.permute(0, 2, 3, 1).numpy(), labels.numpy())
        with torch.no_grad():  # autograd refuses some of what runs in place here
            scores = module.double().train()(x.double())
            loss = functional.cross_entropy(scores, labels).item()
        self.assertAlmostEqual(float(found["loss"][0]), loss, delta=1e-5 * loss)

    def test_sequences(self):
        said = self.imported(SEQUENCE, "--input", "6", "--tokens", name="Net")
        self.assertIn("scores were not compared: the input is not an image of 1 or 3 channels", said)
        module = self.module(SEQUENCE, "Net")
        generator = torch.Generator().manual_seed(5)
        x, labels = torch.randint(0, 11, (2, 3, 6), generator=generator)
        found = self.dumped(x.numpy(), labels.numpy())
        self.compare_training(module, found, x, labels)

    def test_dropout(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.drop = nn.Dropout(0.3)
        self.none = nn.Dropout(0)
        self.fc2 = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc2(F.dropout(self.none(self.drop(self.fc1(x))), training=self.training))
"""
        self.imported(text, "--input", "8", name="Net")
        lines = (self.root / "net" / "network.yaml").read_text().splitlines()
        self.assertEqual(lines[lines.index("layers:") + 1:], [
            "  - {dense: fc1, units: 6}", "  - {dropout: drop, probability: 0.3}", "  - {dropout: dropout}",
            "  - {dense: fc2, units: 4}"])

    def test_all_that_has_no_layer_is_named(self):
        status, said, err = self.run_import(REFUSED, "--input", "3,16,16", name="Net")
        self.assertEqual((status, said), (2, ""))
        self.assertEqual(err.splitlines(), [
            f"lpsgd: error: import: {self.root / 'model.py'}:Net cannot be imported",
            "  a: dilation=(2, 2); lpsgd's convolutions have none",
            "  b: padding_mode='reflect'; lpsgd pads with zeros",
            "  even: padding='same' of an even kernel, (2, 2): its two sides differ",
            "  norm: affine=False; lpsgd's batch normalisation has a weight and a bias",
            "  act, act: GELU: no layer of lpsgd computes it",
            "  drop: Dropout2d: no layer of lpsgd computes it",
            "  transpose: transpose(): no layer of lpsgd computes it",
            "  again: is called twice, but a layer of lpsgd is computed once, and shares no parameters",
            "  tied: has a parameter of again, but layers of lpsgd share none",
            "  bent: has hooks or parametrizations, which change what it computes",
            "  scale: a tensor that belongs to no layer",
            "  mul: multiplies outputs of layers; lpsgd multiplies by a constant",
            "  pool: pools (12, 12) to (5, 5) with windows of several sizes; lpsgd's have one size",
            "  softmax: a softmax inside the network; lpsgd has one only in the loss",
        ])
        self.assertFalse((self.root / "net").exists())

    def refused(self, expected, text, *words, name="Net"):
        status, said, err = self.run_import(text, *words, name=name)
        self.assertEqual((status, said), (2, ""))
        self.assertIn(expected, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse((self.root / "net" / "network.yaml").exists())

    def test_mistakes(self):
        image = ("--input", "3,21,10")
        self.refused("has no 'Nett', did you mean 'Net'?", LAYERS, *image, name="Nett")
        self.refused("Net(clases=5): TypeError: ", LAYERS, *image, "--with", "clases=5")
        self.refused("--with 5: expected NAME=VALUE", LAYERS, *image, "--with", "5")
        self.refused("'3x4' is not C,H,W", LAYERS, "--input", "3x4")
        self.refused("does not take an input of shape (2, 4, 21, 10): RuntimeError: ", LAYERS, "--input", "4,21,10")
        self.refused("model.py cannot be imported: SyntaxError: ", "class", *image)
        self.refused("is no module, and nothing that makes one: int", "Net = 5", *image)
        self.refused("makes no torch.nn.Module: dict", "Net = dict", *image)
        self.refused("--weights /no/such: FileNotFoundError: ", LAYERS, *image, "--weights", "/no/such")
        many = HEAD + "class Net(nn.Module):\n    def forward(self, x):\n        return x, x\n"
        self.refused("output is a tuple; it must be one tensor, the class scores", many, *image)
        branch = HEAD + "class Net(nn.Module):\n    def forward(self, x):\n        return x if x.sum() > 0 else -x\n"
        self.refused("torch.fx cannot trace the module: ", branch, *image)
        self.refused("model.py:18)", branch, *image)
        other = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 3), nn.Linear(12, 3)

    def forward(self, x):
        return (self.a if self.training else self.b)(x.flatten(1))
"""
        self.refused("does forward in training compute something else than in evaluation?", other, "--input", "3,2,2")
        status, _, err = run("import", "model.py:Net", "--input", "3,2,2", "--out", "x", LPSGD_PYTHON="/no/python")
        self.assertEqual(status, 2)
        self.assertIn("LPSGD_PYTHON", err)

    def test_scores_that_do_not_depend_on_the_image(self):
        text = IN_PLACE.replace("return settle(Net())", "module = Net()\n    nn.init.zeros_(module.a.weight)\n    return module")
        said = self.imported(text, "--input", "1,9,8")
        self.assertIn("of the scores' deviation, but with these weights they hardly depend on the image\n", said)

    def test_nothing_is_overwritten(self):
        self.imported(IN_PLACE, "--input", "1,9,8")
        before = (self.root / "net" / "weights.safetensors").read_bytes()
        status, said, err = self.run_import(IN_PLACE, "--input", "1,9,8", "--seed", "2")
        self.assertEqual((status, said), (2, ""))
        self.assertIn("net/network.yaml is there already; --out names another folder", err)
        self.assertEqual((self.root / "net" / "weights.safetensors").read_bytes(), before)

    def test_weights(self):
        """Of a checkpoint with DistributedDataParallel's names; another seed gives others."""
        found = {}
        exec(IN_PLACE, found)  # noqa: S102
        torch.manual_seed(9)
        state = found["make"]().state_dict()
        torch.save({"epoch": 3, "model": {"module." + n: v for n, v in state.items()}}, self.root / "c.pt")
        self.imported(IN_PLACE, "--input", "1,9,8", "--weights", self.root / "c.pt")
        self.imported(IN_PLACE, "--input", "1,9,8", out="first")
        self.imported(IN_PLACE, "--input", "1,9,8", "--seed", "9", out="ninth")
        first, ninth, loaded = (load(self.root / out / "weights.safetensors") for out in ("first", "ninth", "net"))
        for name, value in loaded.items():
            self.assertTrue((value == state[name].numpy()).all())
            self.assertTrue((ninth[name] == value).all())
            self.assertTrue((first[name] != value).any())
        del state["fc.bias"]
        torch.save(state, self.root / "d.pt")
        status, _, err = self.run_import(IN_PLACE, "--input", "1,9,8", "--weights", self.root / "d.pt", out="other")
        self.assertEqual(status, 2)
        self.assertIn('d.pt: Missing key(s) in state_dict: "fc.bias".', err)

    def test_it_trains(self):
        """With its frozen layers, from its weights; PyTorch loads what comes out."""
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=4)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.LazyLinear(10)
        for p in [*self.conv.parameters(), *self.norm.parameters()]:
            p.requires_grad_(False)

    def forward(self, x):
        return self.fc(torch.flatten(self.norm(self.conv(x)), start_dim=1))
"""
        said = self.imported(text, "--input", "3,32,32", name="Net")
        self.assertIn("need no gradient in PyTorch: --set 'train.freeze=[conv, norm]' freezes them\n", said)
        self.write("config.yaml", "data: {dataset: shapes, train_samples: 64, test_samples: 32}\n"
                                  "train: {batch_size: 16, device: cpu, threads: 1}\nschedule: {lr: 0.1}\n")
        (words,) = [line for line in said.splitlines() if line.startswith("train it: ")]
        self.assertTrue(words.startswith("train it: lpsgd train CONFIG --set network="))
        words = words.removeprefix("train it: lpsgd train CONFIG ").split()
        status, out, err = run("train", self.root / "config.yaml", *words, "--set", "train.freeze=[conv, norm]",
                               "--steps", "2", "--out", self.root / "run")
        self.assertEqual((status, err), (0, ""), out)
        before = load(self.root / "net" / "weights.safetensors")
        (path,) = (self.root / "run" / "checkpoints").glob("*/model.safetensors")
        after = load(path)
        self.assertEqual(sorted(before), sorted(after))
        for name, value in after.items():
            self.assertEqual((before[name] == value).all(), not name.startswith("fc."), name)


if __name__ == "__main__":
    unittest.main()
