"""lpsgd import: modules of PyTorch as network files. Scores, gradients and running statistics that the program computes
from the written network are compared with those of the module, in float64.

    LPSGD=... DUMP_GRADIENTS=... import_test.py
"""

import re
import unittest

from import_harness import HEAD, IN_PLACE, ComparedTest, load, run, torch

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

# What the mobile networks after 2018 consist of: activations that read their input, and gates of all forms.
GATES = HEAD + """
class Excite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(channels, 4), nn.Hardswish(inplace=True), nn.Linear(4, channels), nn.Sigmoid())

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.fc(self.pool(x).view(b, c)).view(b, c, 1, 1)
        return x * y.expand_as(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.excite = Excite(8)
        self.squeeze = nn.Conv2d(8, 3, 1)
        self.expand = nn.Conv2d(3, 8, 1)
        self.gate = nn.Hardsigmoid()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.act, self.last = nn.SiLU(), nn.GELU()
        self.fc = nn.Linear(8 * 6 * 5, 5)
        self.extra = nn.Linear(8, 5)

    def forward(self, x):
        x = self.act(self.conv1(x))
        x = self.excite(x) + x
        rows = torch.tanh(x.mean([2, 3]))
        x = x * rows[:, :, None, None] + x * rows.unsqueeze(-1).unsqueeze(-1)
        pooled = F.adaptive_avg_pool2d(x, 1)
        x = x + x * torch.sigmoid(pooled).expand(-1, -1, 6, 5)
        scale = self.gate(self.expand(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        x = scale * x
        y = self.depthwise(x)
        x = F.hardswish(y) * torch.sigmoid(y)
        x = x * F.hardsigmoid(x.mean([2, 3], keepdim=True))
        x = F.gelu(x) * x
        same = F.adaptive_avg_pool2d(x, 1).expand(-1, 8, 1, 1)
        return self.fc(torch.flatten(self.last(x), 1)) + self.extra(same.flatten(1))


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


class Import(ComparedTest):
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
        self.assertEqual(self.kinds(), set("conv batch_norm dense relu relu6 sigmoid tanh lrn scale add concat max_pool "
                                           "average_pool flatten".split()))

    def test_gates(self):
        self.imported(GATES, "--input", "3,6,5")
        self.compare_images(GATES, (3, 6, 5))

    def test_mobile_networks_of_torchvision(self):
        try:
            import torchvision  # noqa: F401
        except ImportError:
            self.skipTest("torchvision is not installed")
        for name in ("mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf"):
            more = ["--with", "stochastic_depth_prob=0"] if name.startswith("efficientnet") else []
            status, out, err = self.run_words(f"torchvision.models:{name}", "--input", "3,48,48", "--with", "num_classes=10",
                                              *more, "--out", self.root / name)
            self.assertEqual((status, err), (0, ""), name)
            self.assertIn("lpsgd's scores of 4 images are PyTorch's", out)

    def test_the_program(self):
        """It says and writes what the other tests' imports do, which do not start it."""
        said = self.imported(IN_PLACE, "--input", "1,9,8")
        words = ["import", f"{self.root / 'model.py'}:make", "--input", "1,9,8", "--out"]
        self.assertEqual(run(*words, self.root / "own"), (0, said.replace("/net/", "/own/"), ""))
        for name in ("network.yaml", "weights.safetensors"):
            self.assertEqual((self.root / "own" / name).read_bytes(), (self.root / "net" / name).read_bytes())
        refused = self.run_words(*words[1:], self.root / "net")
        self.assertEqual(run(*words, self.root / "net"), refused)
        self.assertEqual(refused[0], 2)

    def test_what_works_in_place(self):
        self.imported(IN_PLACE, "--input", "1,9,8")
        self.compare_images(IN_PLACE, (1, 9, 8))

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
        self.assertEqual(self.lines(), ["{dense: fc1, units: 6}", "{dropout: drop, probability: 0.3}", "{dropout: dropout}",
                                        "{dense: fc2, units: 4}"])

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

    def test_weights_of_a_child_with_a_wrappers_name(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))

    def forward(self, x):
        return self.module(x)


def make():
    return Net()
"""
        found = {}
        exec(text, found)  # noqa: S102
        torch.manual_seed(9)
        state = found["make"]().state_dict()
        for prefix in ("", "module."):
            torch.save({prefix + name: value for name, value in state.items()}, self.root / "c.pt")
            self.imported(text, "--input", "1,9,8", "--weights", self.root / "c.pt", out="net" + prefix)
            loaded = load(self.root / ("net" + prefix) / "weights.safetensors")
            self.assertTrue((loaded["module.1.weight"] == state["module.1.weight"].numpy()).all())

    def test_buffers_that_decide(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("bent", torch.tensor(1))
        self.register_buffer("size", torch.tensor(2.0))

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2((torch.relu(x) if self.bent else x) / self.size)
"""
        said = self.imported(text, "--input", "4", name="Net")
        self.assertIn("left out, because the scores do not depend on it: bent\n", said)
        self.assertIn("{scale: scale, factor: 0.5}", (self.root / "net" / "network.yaml").read_text())

    def test_names_that_yaml_takes_for_something_else(self):
        text = HEAD + "class Null(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        text += "        self.null, self.true = nn.Linear(4, 3), nn.Linear(3, 2)\n\n"
        text += "    def forward(self, x):\n        return self.true(self.null(x))\n"
        self.imported(text, "--input", "4", name="Null")
        self.assertIn('{dense: "null", units: 3}', (self.root / "net" / "network.yaml").read_text())

    def test_groups_of_channels(self):
        """As modules and as a function, of images and of features."""
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12, eps=1e-3)
        self.conv2, self.norm2 = nn.Conv2d(12, 12, 3), nn.InstanceNorm2d(12, affine=True)
        self.conv3, self.norm3 = nn.Conv2d(12, 64, 3), nn.GroupNorm(32, 64)
        self.fc1, self.norm4, self.fc2 = nn.Linear(64, 10), nn.GroupNorm(2, 10), nn.Linear(10, 5)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = torch.tanh(self.norm2(self.conv2(x)))
        x = F.group_norm(self.conv3(x), 32, self.norm3.weight, self.norm3.bias).mean([2, 3])
        return self.fc2(self.norm4(self.fc1(x)))


def make():
    return settle(Net())
"""
        self.imported(text, "--input", "3,11,12")
        self.compare_images(text, (3, 11, 12))
        network = (self.root / "net" / "network.yaml").read_text()
        for line in ("{group_norm: norm1, groups: 4, eps: 0.001}", "{group_norm: norm2, groups: 12}", "{group_norm: norm3}",
                     "{group_norm: norm4, groups: 2}"):
            self.assertIn(line, network)

    def test_where_nothing_needs_a_gradient(self):
        """lpsgd trains one layer at least, so the last one is not to be frozen."""
        text = HEAD + "def make():\n    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)\n"
        said = self.imported(text, "--input", "4")
        self.assertIn("no parameter needs a gradient in PyTorch; lpsgd trains one layer at least", said)
        setting = re.search(r"--set '(train.freeze=\[0\])' freezes all but the last", said)[1]
        self.assertEqual(run("show", self.root / "net" / "network.yaml", "--set", setting)[0], 0)

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
