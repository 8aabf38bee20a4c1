"""Networks with random layers and connections: scores, loss, gradients and running statistics of a training step are those
of the same layers in PyTorch, in float64. What the layers' own tests cannot see shows here: passes that are fused,
memory that is shared, gradients that are summed.

    random_networks_test.py DUMP_GRADIENTS FIRST_SEED COUNT [cuda]
"""

import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from gpu_needed import skip_without_gpu

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "report"), str(ROOT / "report" / "torch_import")]

if sys.argv[4:] == ["cuda"]:
    skip_without_gpu(sys.argv[1])
try:
    import numpy as np
    import torch
    from pytorch_test import draw_weights
    from safetensors_file import load, save
    from torch_import import replica
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

torch.set_num_threads(1)
# Debian's PyTorch uses oneDNN 2.6, whose 1x1 convolutions with a stride and few channels write outside their memory.
torch.backends.mkldnn.enabled = False
BATCH, CLASSES = 4, 5
LIMIT = 1e-3
ACTIVATIONS = ["relu"] * 4 + ["relu6", "tanh", "sigmoid", "silu", "gelu", "hardswish", "hardsigmoid"]


@dataclass
class Layer:
    kind: str
    name: str
    inputs: list
    keys: dict

    def text(self):
        names = ", ".join(one.layer for one in self.inputs)
        keys = "".join(f", {key}: {str(value).lower()}" for key, value in self.keys.items())
        return f"  - {{{self.kind}: {self.name}, input: [{names}]{keys}}}\n"


@dataclass
class Value:
    layer: str
    shape: tuple  # (H, W, C), or (C,)
    readers: int = 0


@dataclass
class Network:
    seed: int
    layers: list = field(default_factory=list)
    values: list = field(default_factory=list)
    ending: object = None

    def __post_init__(self):
        self.random = random.Random(self.seed)
        size = self.random.choice([(6, 6), (7, 9), (8, 8), (12, 5)])
        self.values = [Value("in", (*size, self.random.choice([3, 4])))]
        self.add("conv", [self.values[0]], filters=self.random.choice([4, 8, 12, 16]), kernel=3, pad=1)
        for _ in range(self.random.randrange(4, 16)):
            before = [v for v in self.values[1:] if v.shape[:2] != (1, 1)][-4:]
            self.grow(before[-1] if self.random.random() < 0.7 else self.random.choice(before))  # mostly chains
        self.end()

    def add(self, kind, inputs, shape=None, **keys):
        for one in inputs:
            one.readers += 1
        if kind == "conv":
            h, w, _ = inputs[0].shape
            stride, kernel, pad = keys.get("stride", 1), keys["kernel"], keys.get("pad", 0)
            shape = ((h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1, keys["filters"])
        elif kind in ("max_pool", "average_pool") and "kernel" in keys:
            h, w, c = inputs[0].shape
            kernel, stride, pad = keys["kernel"], keys["stride"], keys.get("pad", 0)
            shape = ((h + 2 * pad - kernel) // stride + 1, (w + 2 * pad - kernel) // stride + 1, c)
        value = Value(f"n{len(self.layers)}", shape or inputs[0].shape)
        self.layers.append(Layer(kind, value.layer, list(inputs), keys))
        self.values.append(value)
        return value

    def groups(self, channels):
        return self.random.choice([g for g in range(1, channels + 1) if channels % g == 0])

    def grow(self, x):
        r = self.random
        h, w, c = x.shape
        alike = [v for v in self.values[1:] if v.shape == x.shape]
        beside = [v for v in self.values[1:] if len(v.shape) == 3 and v.shape[:2] == x.shape[:2]]
        kind = r.choice(["conv"] * 3 + ["norm"] * 4 + ["activation"] * 5 + ["pool", "pool", "add", "add", "concat", "multiply",
                                                                         "gate", "scale", "lrn"])
        if kind == "conv":
            kernel = r.choice([1, 1, 3])
            groups = r.choice([1, 1, 2]) if c % 2 == 0 else 1
            self.add("conv", [x], filters=r.choice([4, 8, 12, 16]), kernel=kernel, pad=kernel // 2, groups=groups,
                     stride=r.choice([1, 1, 2]) if min(h, w) > 2 else 1, bias=r.random() < 0.5)
        elif kind == "norm":
            kind = r.choice(["batch_norm", "batch_norm", "group_norm", "group_norm", "layer_norm"])
            x = self.add(kind, [x], eps=0.01, **({"groups": self.groups(c)} if kind == "group_norm" else {}))
            if r.random() < 0.6:  # as networks have it: a pass of both
                x = self.add("relu", [x])
        elif kind == "activation":
            self.add(r.choice(ACTIVATIONS), [x])
        elif kind == "pool" and min(h, w) > 2:
            pad = r.choice([0, 1])
            self.add(r.choice(["max_pool", "average_pool"]), [x], kernel=r.choice([2, 3]) if pad == 0 else 3,
                     stride=r.choice([1, 2]), pad=pad)
        elif kind == "add":
            self.add("add", [x, *r.choices(alike, k=r.choice([1, 1, 2]))])
        elif kind == "concat" and c < 30:
            others = r.choices(beside, k=r.choice([1, 1, 2]))
            self.add("concat", [x, *others], shape=(h, w, c + sum(v.shape[2] for v in others)))
        elif kind == "multiply":
            self.add("multiply", [x, r.choice(alike)])
        elif kind == "gate":
            gate = self.add("average_pool", [x], shape=(1, 1, c))
            self.add("multiply", [x, self.add("sigmoid", [gate])], shape=x.shape)
        elif kind == "scale":
            self.add("scale", [x], factor=r.choice([0.5, -1.5]))
        elif kind == "lrn":
            self.add("lrn", [x], size=3, alpha=0.5)

    def end(self):
        """All that nobody reads goes to the scores."""
        r = self.random
        features = []
        for x in [v for v in self.values if v.readers == 0]:
            h, w, c = x.shape
            if h * w > 1 and r.random() < 0.4:
                features.append(self.sequence(x))
                continue
            if h * w * c > 200 or r.random() < 0.5:
                x = self.add("average_pool", [x], shape=(1, 1, c))
            features.append(self.add("flatten", [x], shape=(int(np.prod(x.shape)),)))
        x = features[0]
        if len(features) > 1:
            x = self.add("concat", features, shape=(sum(v.shape[0] for v in features),))
        x = self.add("dense", [x], shape=(12,), units=12)
        for kind in r.sample(["batch_norm", "layer_norm", "group_norm", "relu", "tanh"], r.randrange(3)):
            eps = {"eps": 0.01} if kind.endswith("norm") else {}
            x = self.add(kind, [x], **eps, **({"groups": r.choice([1, 3, 4])} if kind == "group_norm" else {}))
        self.add("dense", [x], shape=(CLASSES,), units=CLASSES)

    def sequence(self, image):
        """An image as a sequence, as features in the end."""
        r = self.random
        h, w, c = image.shape
        x = self.add("to_sequence", [image], shape=(h * w, c))
        for _ in range(r.randrange(1, 6)):
            frames, width = x.shape
            kind = r.choice(["dense", "layer_norm", "layer_norm", "attention", "attention", "activation", "token", "position"])
            if kind == "dense":
                units = r.choice([4, 6, 8])
                x = self.add("dense", [x], shape=(frames, units), units=units)
            elif kind == "attention":
                heads = r.choice([1, 2, 3])
                # Scores stay small: of scores s softmax in float32 has an error of s rounded.
                normal = self.add("layer_norm", [x], eps=0.01)
                three = self.add("dense", [normal], shape=(frames, 12 * heads), units=12 * heads)
                mixed = self.add("attention", [three], shape=(frames, 4 * heads), heads=heads, causal=r.random() < 0.5)
                mixed = self.add("dense", [mixed], shape=x.shape, units=width)
                x = self.add("add", [x, mixed]) if r.random() < 0.8 else mixed
            elif kind == "token":
                x = self.add("class_token", [x], shape=(frames + 1, width))
            elif kind == "position":
                x = self.add("position", [x], frames=frames + r.choice([0, 2]))
            else:
                x = self.add(r.choice(ACTIVATIONS) if kind == "activation" else kind, [x])
        if r.random() < 0.5:
            return self.add("mean_frames", [x], shape=(x.shape[1],))
        return self.add("select_frame", [x], shape=(x.shape[1],), index=r.randrange(x.shape[0]))

    def text(self):
        return f"input: {list(self.values[0].shape)}\nclasses: {CLASSES}\nlayers:\n" + "".join(
            layer.text() for layer in self.layers
        )


def in_torch(network, weights, x, labels, dtype):
    """What dump_gradients writes."""
    parameters = {name: torch.tensor(value).to(dtype).requires_grad_() for name, value in weights.items()}
    own = dict(parameters)
    for layer in network.layers:
        if layer.kind == "batch_norm":
            features = parameters[f"{layer.name}.weight"].numel()
            own[f"{layer.name}.running_mean"] = torch.zeros(features, dtype=dtype)
            own[f"{layer.name}.running_var"] = torch.ones(features, dtype=dtype)
    scores = replica.run(network, own, torch.tensor(x).to(dtype).permute(0, 3, 1, 2), training=True)
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(labels))
    loss.backward()
    out = {"loss": [loss.item()], "logits": scores.detach().numpy()}
    out |= {f"gradient.{name}": p.grad.numpy() for name, p in parameters.items()}
    return out | {f"buffer.{name}": value.numpy() for name, value in own.items() if name not in parameters}


def worst(got, truth):
    """The largest distance of a tensor, of its norm or of a hundredth of the whole gradient's, and its name."""
    whole = np.sqrt(sum(float(np.square(v).sum()) for name, v in truth.items() if name.startswith("gradient.")))

    def distance(name):
        a, b = np.asarray(got[name], dtype=np.float64).reshape(-1), np.asarray(truth[name], dtype=np.float64).reshape(-1)
        least = whole / 100 if name.startswith("gradient.") else 1e-3
        return np.linalg.norm(a - b) / max(np.linalg.norm(b), least)

    return max((distance(name), name) for name in truth)


def differs(dump, network, device, folder):
    """The worst tensor of a network that differs with each of three inputs, where a kink's side may be luck with one;
    None if it does not."""
    path = folder / "network.yaml"
    path.write_text(network.text())

    recompute = ["--recompute", "batch_norm"] if network.seed % 2 else []

    def run(*words):
        subprocess.run([dump, path, *words, "--device", device, *recompute], check=True, timeout=120)

    run("-", folder / "weights")
    rng = np.random.default_rng(network.seed)
    weights = draw_weights(load(folder / "weights"), rng)
    found = None
    for _ in range(3):
        x = rng.standard_normal((BATCH, *network.values[0].shape)).astype(np.float32)
        labels = rng.integers(0, CLASSES, BATCH)
        save(folder / "in", {**weights, "input": x, "labels": labels})
        run(folder / "in", folder / "out", "--steps", "1")
        truth, single = (in_torch(network, weights, x, labels, dtype) for dtype in (torch.float64, torch.float32))
        found = worst(load(folder / "out"), truth)
        # Normalisations and softmax may amplify rounding, PyTorch's in float32, too.
        if found[0] <= max(LIMIT, 10 * worst(single, truth)[0]):
            return None
    return found


def differs_on_branches(dump, network, folder):
    """Whether steps on several branches of a CUDA graph give other bits than on one, from the inputs in the folder."""
    def steps(branches, order=None):
        # The third step captures the passes. With an order, the emulated GPU runs tasks after random delays.
        words = ["--compute", ["fp32", "bf16"][network.seed % 2], "--recompute", ["none", "batch_norm"][network.seed // 2 % 2]]
        subprocess.run([dump, folder / "network.yaml", folder / "in", folder / "out", "--steps", "4", "--device", "cuda", *words,
                        "--branches", branches], check=True, timeout=120, env={**os.environ, **({"LPSGD_EMULATED_ORDER": order} if order else {})})
        return load(folder / "out")

    one = steps("never")
    return any(not np.array_equal(one[name], several[name], equal_nan=True)
               for several in (steps("always"), steps("always", str(network.seed + 1))) for name in one)


def main():
    dump, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    device = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            network = Network(seed)
            found = differs(dump, network, device, Path(folder))
            if found:
                failed += 1
                print(f"seed {seed}: {found[1]} is {found[0]:.3g} off (at most {LIMIT})\n{network.text()}", flush=True)
            elif device == "cuda" and differs_on_branches(dump, network, Path(folder)):
                failed += 1
                print(f"seed {seed}: other bits on several branches\n{network.text()}", flush=True)
    print(f"{count - failed} of {count} networks agree with PyTorch")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
