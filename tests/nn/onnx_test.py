"""Exports a network with random weights and running statistics as an ONNX model, and compares its scores with
those of the program's own evaluation. The model runs by the definitions of ONNX's operators (onnx_reference.py)
and, where it is installed, by ONNX Runtime. Exits with 77 (skipped) where python3-onnx is missing.

    onnx_test.py LPSGD DUMP_GRADIENTS NETWORKS_FOLDER NAME
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import onnx
    import yaml
    from onnx_reference import evaluate
    from safetensors_file import load, save
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
try:
    import onnxruntime
except ImportError:
    onnxruntime = None

# Samples, and the image's size or the number of frames, if it is not the file's.
CASES = {
    "layers": (3, None),
    "sequence": (3, None),
    "patches": (3, None),
    "attention": (3, None),
    "causal": (3, None),
    "logistic": (4, None),
    "lenet": (4, None),
    "resnet8": (4, None),
    "resnet20": (4, None),
    "resnet110": (2, None),
    "resnet9": (2, None),
    "densenet40_12": (2, 16),
    "wideresnet28_12": (1, 16),
    "alexnet": (2, 99),
    "vgg19": (1, 64),
    "bn_inception": (2, 64),
    "resnet50": (2, 48),
    "resnet152": (2, 48),
    "lstm_an4": (3, 7),
    "lstm_ptb_small": (3, 6),
    "transformer_ptb": (2, 6),
    "vit_cifar": (3, None),
    "lstm_wikitext2": (3, 6),
}

# Every kind of layer, with the options that the networks do not use. Pooling's last windows hang over the border.
LAYERS = """
name: layers
input: [15, 13, 6]
classes: 7
layers:
  - {conv: a, filters: 16, kernel: [3, 2], stride: [2, 1], groups: 2, pad: [1, 2]}
  - {lrn: l, size: 4, alpha: 0.7, beta: 0.6, k: 1.5}
  - sigmoid
  - {max_pool: m, input: l, kernel: 3, stride: 2, pad: 1, ceil_mode: true}
  - {average_pool: p, input: sigmoid, kernel: 3, stride: 2, pad: 1, ceil_mode: true, count_pad: false}
  - {average_pool: q, input: sigmoid, kernel: [3, 2], stride: [2, 2], pad: 1, ceil_mode: true}
  - {average_pool: r, input: sigmoid, kernel: 2, stride: [2, 2], pad: 1}
  - {tanh: t, input: p}
  - {add: s, input: [m, t, p]}
  - {hardswish: hw, input: q}
  - {silu: si, input: r}
  - {gelu: ge, input: t}
  - {hardsigmoid: hs, input: l}
  - {average_pool: g1, input: hs}
  - {multiply: m1, input: [p, g1]}
  - {flatten: g2, input: g1}
  - {dense: gate, units: 16}
  - {multiply: m2, input: [gate, m1]}
  - {multiply: m3, input: [ge, s]}
  - {layer_norm: ln, input: p, eps: 0.01}
  - {group_norm: gn, input: p, groups: 4, eps: 0.01}
  - {concat: c, input: [m, p, s, hw, si, ge, m2, m3, ln, gn]}
  - {batch_norm: b, eps: 0.01}
  - {lrn: l2, size: 5, alpha: 1.0}
  - {dropout: d1, probability: 0.5}
  - flatten
  - {dense: d, units: 9, bias: false}
  - {batch_norm: b2}
  - {scale: wide, factor: 8}
  - relu6
  - {layer_norm: ln2}
  - {group_norm: gn2, groups: 3}
  - {dense: e, units: 7}
  - {scale: f, factor: 0.375}
"""

SEQUENCE = """
name: sequence
input: [any, 5]
classes: 4
layers:
  - {lstm: one, cell: 6}
  - {lstm: two, input: one, cell: 8, projection: 3, bias: false}
  - {lstm: three, input: one, cell: 7, projection: 2}
  - {concat: c, input: [two, three, one]}
  - {dense: d, units: 4}
"""


# An image as a sequence, with all that only such sequences may have.
PATCHES = """
name: patches
input: [6, 5, 4]
classes: 5
layers:
  - {conv: conv, filters: 6, kernel: [2, 1], stride: [2, 1]}
  - {to_sequence: pixels}
  - {class_token: token}
  - {class_token: second}
  - {position: more, frames: 21}
  - {layer_norm: norm}
  - {dense: qkv, units: 18}
  - {attention: whole, heads: 3}
  - {add: sum, input: [more, whole]}
  - {dense: q, units: 8}
  - {dense: k, input: sum, units: 8}
  - {dense: v, input: sum, units: 8}
  - {attention: causal, input: [q, k, v], heads: 1, causal: true}
  - {select_frame: first, input: whole, index: 0}
  - {select_frame: middle, input: causal, index: 9}
  - {layer_norm: features, eps: 0.01}
  - {mean_frames: mean, input: whole}
  - {concat: both, input: [first, features, mean]}
  - {dense: scores, units: 5}
"""

# Of any number of frames.
ATTENTION = """
name: attention
input: [any, 6]
classes: 4
layers:
  - {position: own, frames: 9}
  - {dense: qkv, units: 24}
  - {attention: causal, heads: 2, causal: true}
  - {layer_norm: norm, eps: 0.01}
  - {dense: q, units: 6}
  - {dense: k, input: norm, units: 6}
  - {dense: v, input: norm, units: 6}
  - {attention: whole, input: [q, k, v], heads: 6}
  - {add: sum, input: [own, whole]}
  - {dense: scores, units: 4}
"""

# Token numbers, as a language model has them.
CAUSAL = """
name: causal
input: [any]
classes: 9
layers:
  - {embedding: words, vocabulary: 9, dimension: 8}
  - {position: places, frames: 8, trained: false}
  - {dense: qkv, units: 24}
  - {attention: seen, heads: 4, causal: true}
  - {add: sum, input: [places, seen]}
  - {layer_norm: norm, bias: false}
  - {dense: scores, units: 9, weight_of: words}
"""


def run(*command):
    """What the command prints; its errors are shown."""
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}"
    return done.stdout


def close(ours, theirs, what):
    scale = np.abs(theirs).max()
    error = np.abs(ours - theirs).max() / scale
    print(f"  {what}: {error:.1e} of the largest score, {scale:.3g}")
    assert ours.shape == theirs.shape, f"{what}: shapes {ours.shape}, {theirs.shape}"
    assert scale > 1e-3, f"{what}: the scores are all about 0"
    assert error < 5e-5, f"{what}: differs"


def sines(frames, features):
    """Positions that are not trained (Vaswani and others 2017, section 3.5)."""
    angles = np.arange(frames)[:, None] / 10000.0**(np.arange(0, features, 2) / features)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(frames, features)


def draw(shapes, rng):
    """Weights under which signals keep their size, and running statistics that matter."""
    out = {}
    for name, shape in shapes.items():
        if name.endswith("running_var"):
            out[name] = rng.uniform(0.5, 2, shape)
        elif len(shape) > 1:
            out[name] = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            out[name] = 0.1 * rng.standard_normal(shape) + (0.5 if name.endswith("weight") else 0)
    return out


class Exported:
    """A network as an ONNX model, which is checked; run in every way there is."""

    def __init__(self, lpsgd, folder, weights, *options):
        path = folder / "model.onnx"
        self.summary = json.loads(
            run(lpsgd, "export", folder, "--checkpoint", weights, "--onnx", path, "--json", *options))
        self.model = onnx.load(str(path))
        onnx.checker.check_model(self.model, full_check=True)
        self.session = onnxruntime.InferenceSession(str(path)) if onnxruntime else None

    def run(self, inputs):
        out = {"operators' definitions": evaluate(self.model, inputs)}
        if self.session:
            types = {i.name: np.int64 if "int64" in i.type else np.float32 for i in self.session.get_inputs()}
            names = [o.name for o in self.session.get_outputs()]
            found = self.session.run(names, {k: np.asarray(v, types[k]) for k, v in inputs.items()})
            out["ONNX Runtime " + onnxruntime.__version__] = dict(zip(names, found))
        return out


def in_two_parts(exported, x, at):
    """The scores of a sequence whose second part goes on with the state of the first."""
    names = [i.name for i in exported.model.graph.input if i.name != "input"]
    features = {i.name: i.type.tensor_type.shape.dim[2].dim_value for i in exported.model.graph.input if i.name in names}
    zeros = {name: np.zeros((1, len(x), features[name])) for name in names}
    first = exported.run({"input": x[:, :at], **zeros})
    out = {}
    for how, values in first.items():
        state = {name: values[name + ".after"] for name in names}
        second = exported.run({"input": x[:, at:], **state})[how]
        out[how] = np.concatenate([values["scores"], second["scores"]], axis=1)
    return out


def main():
    lpsgd, dump, networks, name = sys.argv[1:5]
    samples, size = CASES[name]
    own = {
        "layers": LAYERS,
        "sequence": SEQUENCE,
        "patches": PATCHES,
        "attention": ATTENTION,
        "causal": CAUSAL,
    }.get(name)
    tree = yaml.safe_load(own if own else (Path(networks) / f"{name}.yaml").read_text())
    is_image = len(tree["input"]) == 3
    if size and is_image:
        tree["input"][:2] = [size, size]
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "network.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        if not is_image:  # for a certain number of frames, as a run has it
            tree["input"][0] = size or 6
        (folder / "sized.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        data = "{dataset: noise}" if is_image else "{dataset: an4, root: /nowhere}"
        (folder / "config.yaml").write_text(f"network: network.yaml\ndata: {data}\ntrain: {{batch_size: 4}}\n"
                                            "schedule: {lr: 0.1}\n")
        shown = json.loads(run(lpsgd, "show", folder / "network.yaml", "--json"))
        shapes = {t["name"]: t["shape"] for t in shown["tensors"]}
        for layer in shown["layers"]:
            if layer["kind"] == "batch_norm":
                for statistic in ("running_mean", "running_var"):
                    shapes[f"{layer['name']}.{statistic}"] = [layer["shape"][-1]]
        weights = draw(shapes, rng)
        weights.update({t["name"]: sines(*t["shape"]) for t in shown["frozen_tensors"]})
        save(folder / "weights.safetensors", weights)
        x = rng.standard_normal((samples, *tree["input"]))
        if len(tree["input"]) == 1:
            x = rng.integers(0, tree["classes"], (samples, *tree["input"])).astype(float)
        labels = np.zeros((samples, ) if is_image else x.shape[:2])
        trained = {name: weights[name] for name in shapes}
        save(folder / "in.safetensors", {**trained, "input": x, "labels": labels})
        run(dump, folder / "sized.yaml", folder / "in.safetensors", folder / "out.safetensors", "--steps", 0)
        ours = load(folder / "out.safetensors")["evaluation"]

        exported = Exported(lpsgd, folder, folder / "weights.safetensors")
        stored = {t.name: tuple(t.dims) for t in exported.model.graph.initializer}
        for tensor, shape in shapes.items():
            if "lstm" not in tensor and name != "sequence":
                assert stored[tensor] == tuple(shape), f"{tensor}: not in the model as PyTorch has it"
        print(f"{name}: {exported.summary['inputs']} -> {exported.summary['outputs']}")
        inputs = {"input": x.transpose(0, 3, 1, 2) if is_image else x}
        for how, values in exported.run(inputs).items():
            close(values["scores"], ours, how)
        if not is_image and any(layer["kind"] == "lstm" for layer in shown["layers"]):
            parts = in_two_parts(Exported(lpsgd, folder, folder / "weights.safetensors", "--state"), x, 2)
            for how, scores in parts.items():
                close(scores, ours, how + ", in two parts")


main()
