"""Checkpoints of ours in PyTorch: they load strictly into torchvision's ResNet-50, ResNet-152 and VGG19, and
ResNet-50 gives the same class scores there. ViT-B/16's tensors have torchvision's names, but for those that
docs/from-pytorch.md names.

torchvision need not be installed: its models' names and shapes are written down here, and the modules of
torch_networks are held to them. Exits with 77 (skipped) where PyTorch is missing.

    torchvision_test.py LPSGD DUMP_GRADIENTS CONFIGS_FOLDER
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import torch
    import torch_networks
    from safetensors_file import load, save
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

torch.set_num_threads(1)


def norm(name, channels):
    return {f"{name}.{part}": (channels,) for part in ["weight", "bias", "running_mean", "running_var"]} | {
        f"{name}.num_batches_tracked": ()}


def torchvision_resnet(counts):
    """The names and shapes of torchvision.models.resnet50 (3, 4, 6, 3) and resnet152 (3, 8, 36, 3)."""
    out = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 * 2**stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            for i, (o, c, k) in enumerate([(width, inputs, 1), (width, width, 3), (4 * width, width, 1)], 1):
                out |= {f"{name}.conv{i}.weight": (o, c, k, k)} | norm(f"{name}.bn{i}", o)
            if block == 0:
                out |= {f"{name}.downsample.0.weight": (4 * width, inputs, 1, 1)} | norm(
                    f"{name}.downsample.1", 4 * width
                )
            inputs = 4 * width
    return out | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def torchvision_vgg19():
    out, inputs = {}, 3
    indices = [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34]
    for index, width in zip(indices, [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8):
        out |= {f"features.{index}.weight": (width, inputs, 3, 3), f"features.{index}.bias": (width,)}
        inputs = width
    for index, (o, i) in {0: (4096, 25088), 3: (4096, 4096), 6: (1000, 4096)}.items():
        out |= {f"classifier.{index}.weight": (o, i), f"classifier.{index}.bias": (o,)}
    return out


def torchvision_vit(depth=12, width=768, side=224, patch=16):
    out = {"class_token": (1, 1, width), "conv_proj.weight": (width, 3, patch, patch), "conv_proj.bias": (width,),
           "encoder.pos_embedding": (1, (side // patch) ** 2 + 1, width)}
    for i in range(depth):
        layer = f"encoder.layers.encoder_layer_{i}"
        out |= {f"{layer}.{norm}.{part}": (width,) for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
        out |= {f"{layer}.self_attention.in_proj_weight": (3 * width, width),
                f"{layer}.self_attention.in_proj_bias": (3 * width,)}
        for name, units, inputs in (("self_attention.out_proj", width, width), ("mlp.0", 4 * width, width),
                                    ("mlp.3", width, 4 * width)):
            out |= {f"{layer}.{name}.weight": (units, inputs), f"{layer}.{name}.bias": (units,)}
    return out | {"encoder.ln.weight": (width,), "encoder.ln.bias": (width,), "heads.head.weight": (1000, width),
                  "heads.head.bias": (1000,)}


def check_vit(shown):
    """Each tensor of ours is one of torchvision's, by the rule of docs/from-pytorch.md, and none is missing."""
    theirs, found = torchvision_vit(), set()
    for tensor in shown["tensors"]:
        layer, _, kind = tensor["name"].rpartition(".")
        (name,) = {tensor["name"], layer, f"{layer}_{kind}"} & set(theirs)
        shape = tuple(tensor["shape"])
        assert theirs[name] in (shape, (1, *shape), (1, 1, *shape)), (name, shape)
        found.add(name)
    assert found == set(theirs), set(theirs) - found


def loaded(name, shapes, tensors):
    """torchvision's `name` with a checkpoint's tensors in it, all of them in their indices."""
    model = torch_networks.make(name)
    assert {
        k: tuple(v.shape) for k, v in model.state_dict().items()
    } == shapes, f"{name} is not torchvision's"
    state = {k: torch.tensor(v) for k, v in tensors.items()}
    state |= {k: torch.tensor(0) for k in shapes if k.endswith("num_batches_tracked")}  # we do not count
    model.load_state_dict(state, strict=True)
    return model.eval()


def main():
    lpsgd, dump_gradients, configs = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:

        def trained(name, steps, *more):
            out = f"{folder}/{name}"
            subprocess.run(
                [
                    lpsgd,
                    "train",
                    f"{configs}/{name}_noise.yaml",
                    "--steps",
                    str(steps),
                    "--out",
                    out,
                    "--set",
                    "train.batch_size=4",
                    "--set",
                    "data.train_samples=16",
                    "--set",
                    "data.test_samples=4",
                    "--set",
                    "train.threads=1",
                    *more,
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            return load(next(Path(out).glob("checkpoints/*/model.safetensors")))

        network = f"{configs}/networks/vit_b_16.yaml"
        check_vit(json.loads(subprocess.run([lpsgd, "show", "--json", network], check=True, capture_output=True).stdout))
        print("ok   vit_b_16 has torchvision's tensors", flush=True)
        loaded("resnet152", torchvision_resnet([3, 8, 36, 3]), trained("resnet152", 0))
        loaded("vgg19", torchvision_vgg19(), trained("vgg19", 0))
        print("ok   resnet152 and vgg19 load", flush=True)

        tensors = trained("resnet50", 2, "--set", "network.parameters.stride_in=3")
        model = loaded("resnet50", torchvision_resnet([3, 4, 6, 3]), tensors)
        assert np.abs(tensors["bn1.running_mean"]).max() > 0, "two steps have moved the running statistics"
        x = np.random.default_rng(1).standard_normal((3, 224, 224, 3)).astype(np.float32)
        save(f"{folder}/in", {**tensors, "input": x, "labels": np.zeros(3)})
        subprocess.run(
            [
                dump_gradients,
                f"{configs}/networks/resnet50.yaml",
                f"{folder}/in",
                f"{folder}/out",
                "--steps",
                "0",
            ],
            check=True,
        )
        ours = load(f"{folder}/out")["evaluation"]
        with torch.no_grad():
            images = torch.tensor(x).permute(0, 3, 1, 2)
            single = model(images).double().numpy()
            truth = model.double()(images.double()).numpy()
        size = np.linalg.norm(truth)
        distance, own = np.linalg.norm(ours - truth) / size, np.linalg.norm(single - truth) / size
        print(f"resnet50's scores differ from float64's by {distance:.3g}, PyTorch float32's by {own:.3g}")
        sys.exit(0 if distance <= max(3 * own, 1e-6) else 1)


main()
