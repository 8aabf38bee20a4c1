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
        z = (x + y) * 1.0
        z.mul_(0.5)
        y = torch.add(input=x, other=F.relu(z, True)) + z
        z = y.clone()
        z.mul_(0.25)
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
        x, _ = self.first(self.table(x))
        return self.out(self.second(x)[0])
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
        self.assertRegex(said, r"with other weights: lpsgd's scores of 4 images are PyTorch's to \d\.\de-0[4-7] of their deviation\n")
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
        self.compare_training(module, self.dumped(x.permute(0, 2, 3, 1).numpy(), labels.numpy()), x, labels)

    def test_sequences(self):
        said = self.imported(SEQUENCE, "--input", "6", "--tokens", name="Net")
        self.assertNotIn("lpsgd's scores", said)
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

    def refused(self, expected, text, *words, name="Net", out="out"):
        status, said, err = self.run_import(text, *words, name=name, out=out)
        self.assertEqual((status, said), (2, ""))
        self.assertIn(expected, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse((self.root / out).exists())

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
        self.refused("computes nothing that is a layer", HEAD + "Net = nn.Sequential\n", "--input", "3")
        self.refused("cannot be imported: SystemExit", "import sys\nsys.exit(0)\n", *image)
        self.refused("the module is a single layer; put it into", HEAD + "def Net():\n    return nn.Linear(3, 4)\n", "--input", "3")
        one = HEAD + "def Net():\n    return nn.Sequential(nn.Linear(3, 1))\n"
        self.refused("the module gives one score; lpsgd's loss", one, "--input", "3")
        odd = HEAD + "def Net():\n    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, eps=0))\n"
        self.refused("lpsgd refuses the network file: network.yaml:7:", odd, "--input", "3")
        status, _, err = run("import", "model.py:Net", "--input", "3,2,2", "--out", "x", LPSGD_PYTHON="/no/python")
        self.assertEqual(status, 2)
        self.assertIn("LPSGD_PYTHON", err)

    def test_what_the_network_file_cannot_say_is_found(self):
        """By the comparison in training, with other weights than the module's, in batches of another size."""
        differs = "the layers of lpsgd would not compute what the module does: "
        for body, expected in (
            ("x = self.conv(x)\n        return self.fc(self.norm(x).flatten(1) / x.size(0))", differs + "in evaluation the scores"),
            ("x = self.norm(self.conv(x))\n        return self.fc((x if self.training else 7 * x).flatten(1))",
             differs + "in evaluation the scores"),
            ("with torch.no_grad():\n            x = self.conv(x)\n        return self.fc(self.norm(x).flatten(1))",
             differs + "conv.weight gets no gradient in the module, without requires_grad=False"),
            ("x = self.norm(self.conv(x))\n        return self.fc(x.flatten(1) if random.random() < 0.5 else 0.5 * x.flatten(1))",
             differs + "in "),
            ("x = self.conv(x)\n        self.norm(x)\n        return self.fc(F.dropout(x.flatten(1)))",
             differs + "in evaluation the scores"),
            ("x = keep = self.norm(self.conv(x))\n        x += self.conv2(x)\n        return self.fc((x + keep).flatten(1))",
             None if torch.__version__ >= "2" else differs + "in evaluation the scores"),
            ("y = self.norm(self.conv(x))\n        f = y.flatten(1)\n        F.relu_(f)\n        return self.fc(F.max_pool2d(y, 1).flatten(1))",
             differs + "in evaluation the scores"),
            ("return torch.softmax(self.fc(self.norm(self.conv(x)).flatten(1)), 0)", "softmax: dim=0; lpsgd's loss is over the last"),
        ):
            if expected is None:
                continue
            with self.subTest(body):
                text = HEAD.replace("import operator", "import operator, random") + f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4 * 36, 3)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        {body}
"""
                status, said, err = self.run_import(text, "--input", "3,6,6", name="Net")
                self.assertEqual((status, said), (2, ""), err)
                self.assertIn(expected, err)
                self.assertNotIn("Traceback", err)
                self.assertFalse((self.root / "net").exists())

    def test_modules_that_stay_in_evaluation(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.fc = nn.Linear(4 * 16, 3)
        self.still = self.norm if norm else self.drop

    def train(self, mode=True):
        super().train(mode)
        self.still.eval()
        return self

    def forward(self, x, state=None, flag=False):
        x = self.norm(self.conv(x))
        if state is None and not flag:
            x = torch.relu(x)
        return self.fc(self.drop(x).view(x.shape[0], -1))
"""
        self.refused_lines(["norm: stays in evaluation in training; without that it can be imported, and frozen by train.freeze"],
                           text, "--input", "3,6,6", "--with", "norm=True")
        self.imported(text, "--input", "3,6,6", "--with", "norm=False", name="Net")
        self.assertNotIn("dropout", (self.root / "net" / "network.yaml").read_text())
        self.assertIn("relu", (self.root / "net" / "network.yaml").read_text())

    def refused_lines(self, expected, text, *words):
        status, said, err = self.run_import(text, *words, name="Net")
        self.assertEqual((status, said), (2, ""))
        self.assertEqual([line.strip() for line in err.splitlines()[1:]], expected)

    def test_names_and_files_of_the_user(self):
        """That are those of lpsgd's own Python files, or clash with each other; a weight file of two wrappers."""
        self.write("errors.py", "SIZE = 6\n")
        text = HEAD + """
from errors import SIZE


class Sub(nn.Linear):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.fc = Sub(SIZE, SIZE), Sub(SIZE, 3)

    def forward(self, x):
        return self.fc(self.scale(x * 0.5) * 2.0)
"""
        torch.save({"_orig_mod.module." + n: v for n, v in
                    {"scale.weight": torch.ones(6, 6), "scale.bias": torch.ones(6), "fc.weight": torch.ones(3, 6),
                     "fc.bias": torch.ones(3)}.items()}, self.root / "w.pt")
        self.imported(text, "--input", "6", "--weights", self.root / "w.pt", name="Net")
        self.assertEqual([line.split(": ")[1].split(",")[0] for line in
                          (self.root / "net" / "network.yaml").read_text().splitlines() if line.startswith("  - ")],
                         ["scale_2", "scale", "scale_3", "fc"])
        torch.save({0: torch.ones(1)}, self.root / "k.pt")
        self.refused("k.pt: holds no state dict", IN_PLACE, "--input", "1,9,8", "--weights", self.root / "k.pt", name="make", out="o")

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
