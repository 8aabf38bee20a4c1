"""lpsgd import: what it refuses, and what it says then.

    LPSGD=... import_refused_test.py
"""

import unittest

from import_harness import HEAD, IN_PLACE, ImportTest, run, torch

ONE_LAYER = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3 * 21 * 10, 4)

    def forward(self, x):
        return self.fc(x.flatten(1))
"""

REFUSED = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, dilation=2)
        self.b = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.even = nn.Conv2d(4, 4, 2, padding="same")
        self.norm = nn.BatchNorm2d(4, affine=False)
        self.groups, self.alone = nn.GroupNorm(2, 4, affine=False), nn.InstanceNorm2d(4)
        self.act = nn.Mish()
        self.drop = nn.Dropout2d()
        self.again = nn.Conv2d(4, 4, 1)
        self.tied = nn.Conv2d(4, 4, 1)
        self.tied.weight = self.again.weight
        self.bent = nn.utils.spectral_norm(nn.Conv2d(4, 4, 1))
        self.register_buffer("scale", torch.ones(4, 1, 1))
        self.pool = nn.AdaptiveAvgPool2d(5)
        self.fc = nn.Linear(100, 3)

    def forward(self, x):
        x = self.alone(self.groups(self.norm(self.even(self.b(self.a(x))))))
        x = self.drop(self.act(self.act(x)))
        x = self.bent(self.tied(self.again(self.again(x)))) * self.scale
        return self.fc(torch.softmax(self.pool(x), 1).transpose(2, 3).flatten(1))
"""


class Refused(ImportTest):
    def test_all_that_has_no_layer_is_named(self):
        status, said, err = self.run_import(REFUSED, "--input", "3,16,16", name="Net")
        self.assertEqual((status, said), (2, ""))
        self.assertEqual(err.splitlines(), [
            f"lpsgd: error: import: {self.root / 'model.py'}:Net cannot be imported",
            "  a: dilation=(2, 2); lpsgd's convolutions have none",
            "  b: padding_mode='reflect'; lpsgd pads with zeros",
            "  even: padding='same' of an even kernel, (2, 2): its two sides differ",
            "  norm: affine=False; lpsgd's batch normalisation has a weight and a bias",
            "  groups, alone: without a weight and a bias; lpsgd's group_norm trains both",
            "  act, act: Mish: no layer of lpsgd computes it",
            "  drop: Dropout2d: no layer of lpsgd computes it",
            "  again: is called twice, but a layer of lpsgd is computed once",
            "  tied: has a parameter of again; of lpsgd's layers one dense layer can share an embedding's",
            "  bent: has hooks or parametrizations, which change what it computes",
            "  mul: multiplies by scale, a tensor that belongs to no layer",
            "  pool: pools (12, 12) to (5, 5) with windows of several sizes; lpsgd's have one size",
            "  softmax: a softmax inside the network; lpsgd has one only in attention and in the loss",
            "  fc: reads what transpose, flatten made of the output of a layer; no layer of lpsgd computes it",
        ])
        self.assertFalse((self.root / "net").exists())

    def refused(self, expected, text, *words, name="Net", out="out"):
        status, said, err = self.run_import(text, *words, name=name, out=out)
        self.assertEqual((status, said), (2, ""))
        self.assertIn(expected, err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertFalse((self.root / out).exists())

    def test_products_and_gelu(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU("tanh")
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.act(x)
        rows = x.mean([2, 3], keepdim=True)
        y = F.avg_pool2d(x, (4, 1)) * x
        z = x * x.mean([2, 3], keepdim=True)[:, :1].expand(-1, 8, 4, 4)
        z = z + (rows.expand(-1, -1, 4, 4) + x) * rows
        return self.fc((y + z).mean([2, 3]))
"""
        self.assertEqual(self.refused_lines(text, "--input", "8,4,4", name="Net"), [
            "act: approximate='tanh'; lpsgd's gelu is the exact one",
            "mul: multiplies (8, 1, 4) and (8, 4, 4); lpsgd multiplies equal shapes, or an image by one value for each channel",
            "mul_1: reads what getitem, expand made of the output of a layer; no layer of lpsgd computes it",
            "add: reads what expand made of the output of a layer; no layer of lpsgd computes it",
        ])

    def test_what_follows_a_guess(self):
        """What has no layer may give no samples at all: then what reads it is no problem of its own."""
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2(x * x.sum().view(1, 1) + x.sum(0).view(1, 8))
"""
        self.assertEqual(self.refused_lines(text, "--input", "8", name="Net"),
                         ["sum_1, sum_2: sum(): no layer of lpsgd computes it"])

    def test_scores_of_another_form(self):
        text = HEAD + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(x).view(-1, 5)
"""
        self.assertEqual(self.refused_lines(text, "--input", "7,8", name="Net"), [
            "view: gives what view made of the output of a layer; a sample's scores are (classes) or (frames, classes)"])

    def test_mistakes(self):
        image = ("--input", "3,21,10")
        self.refused("has no 'Nett', did you mean 'Net'?", ONE_LAYER, *image, name="Nett")
        self.refused("Net(clases=5): TypeError: ", ONE_LAYER, *image, "--with", "clases=5")
        self.refused("--with 5: expected NAME=VALUE", ONE_LAYER, *image, "--with", "5")
        self.refused("'3x4' is not C,H,W", ONE_LAYER, "--input", "3x4")
        self.refused("does not take an input of shape (2, 4, 21, 10): RuntimeError: ", ONE_LAYER, "--input", "4,21,10")
        self.refused("model.py cannot be imported: SyntaxError: ", "class", *image)
        self.refused("is no module, and nothing that makes one: int", "Net = 5", *image)
        self.refused("makes no torch.nn.Module: dict", "Net = dict", *image)
        self.refused("--weights /no/such: FileNotFoundError: ", ONE_LAYER, *image, "--weights", "/no/such")
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
        named = HEAD + "def Net():\n    return nn.Sequential(OrderedDict(a=nn.Linear(3, 4), **{'%s': nn.Linear(4, 2)}))\n"
        named = "from collections import OrderedDict\n" + named
        self.refused("'x: y' cannot be a layer's name, which has letters, digits", named % "x: y", "--input", "3")
        keyword = HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        keyword += "        self.d = nn.ModuleDict({'in': nn.Linear(3, 2)})\n\n    def forward(self, x):\n        return self.d['in'](x)\n"
        status, _, err = self.run_import(keyword, "--input", "3", name="Net", out="keyword")
        self.assertEqual(status, 2)
        self.assertIn("is a submodule's name a word of Python's?\n", err)
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
        stays = "norm: stays in evaluation in training; without that it can be imported, and frozen by train.freeze"
        self.assertEqual(self.refused_lines(text, "--input", "3,6,6", "--with", "norm=True", name="Net"), [stays])
        self.imported(text, "--input", "3,6,6", "--with", "norm=False", name="Net")
        self.assertNotIn("dropout", (self.root / "net" / "network.yaml").read_text())
        self.assertIn("relu", (self.root / "net" / "network.yaml").read_text())

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


if __name__ == "__main__":
    unittest.main()
