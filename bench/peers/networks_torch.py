#!/usr/bin/env python3
"""Training steps of lpsgd beside PyTorch's, for every network of configs/networks, in one run.

    bench/peers/networks_torch.py [NAME...] [--compute bf16] [--python PROGRAM]... [--build build/release]
                                  [--rounds 3]
                                  [--steps 3] [--threads 1] [--cpu-time] [--device cuda]

For each network every round runs lpsgd, PyTorch in both memory formats, and the floor, each in a process of
its own, so that other load on the machine affects all alike. The best step of each counts. The floor is the
network's convolutions and products as bare oneDNN primitives, with the faster of the direct and Winograd's
algorithm; an LSTM's and attention's are not counted. Prints a table and one JSON array. `ratio` is the better
PyTorch's time over ours (above 1: we are faster), `floor` the bare primitives' time over ours, `direct` that
of direct convolutions over ours. With --cpu-time it is processor time, for machines that are never idle.

Memory is the process's peak over all steps (VmHWM) less what it held before the network was made (VmRSS):
weights, gradients, momentum, activations, workspaces, the batch, and library code that is loaded late.
PyTorch's is the smaller of its two formats'; the last column is ours over it (below 1: we use less).

With --device cuda both train on the first GPU, with the paper's batch for one GPU; PyTorch uses
cudnn.benchmark. A step's time is then the mean over all steps, with one wait for the device at the end. There
is no floor. lpsgd gets images as bytes from page-locked memory, as its trainer feeds them; PyTorch's input is
on the GPU before. Memory is the GPU's: what lpsgd's network and optimizer hold while they train, and PyTorch's
max_memory_allocated of the steps that count.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Samples a step, and the shape of one: an image, a sequence, or words.
NETWORKS = {
    "alexnet": (32, [3, 227, 227]),
    "vgg19": (8, [3, 224, 224]),
    "resnet50": (8, [3, 224, 224]),
    "resnet152": (8, [3, 224, 224]),
    "bn_inception": (16, [3, 224, 224]),
    "resnet20": (128, [3, 32, 32]),
    "resnet110": (128, [3, 32, 32]),
    "densenet40_12": (64, [3, 32, 32]),
    "wideresnet28_12": (16, [3, 32, 32]),
    "logistic": (128, [3, 32, 32]),
    "lstm_an4": (4, [256, 363]),
    "lstm_wikitext2": (16, [30]),
    "transformer_ptb": (16, [64]),
    "vit_cifar": (64, [3, 32, 32]),
    "vit_b_16": (4, [3, 224, 224]),
}
WARM_UP = 4  # steps that do not count; step_bench's, too
FORMATS = ["nchw", "nhwc"]
GPU_BATCH = {
    "alexnet": 256,
    "vgg19": 32,
    "resnet50": 32,
    "resnet152": 16,
    "bn_inception": 64,
    "resnet20": 128,
    "resnet110": 128,
    "vit_b_16": 32,
}  # EDBT 2018, table 3; elsewhere NETWORKS'
CLASSES = {"lstm_an4": 132, "lstm_wikitext2": 33278, "transformer_ptb": 10000}


def memory_bytes(which):
    """VmRSS: resident now; VmHWM: the maximum so far."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(which + ":"))


def peer(name, memory_format, batch, steps, threads, compute, device):
    """Runs in a process of its own; prints what step_bench prints."""
    sys.path.insert(0, str(ROOT / "tests/nn"))
    import torch
    import torch_networks
    from torch_blas import blas, refuse_reference_blas

    if device == "cpu":
        refuse_reference_blas()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    before = memory_bytes("VmRSS")
    shape = NETWORKS[name][1]
    classes = CLASSES.get(name, 10 if shape[-1] == 32 else 1000)
    layout = torch.channels_last if memory_format == "nhwc" else torch.contiguous_format
    model = torch_networks.make(name).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    if len(shape) == 1:
        x = torch.randint(0, classes, (batch, *shape))
    else:
        x = torch.randn(batch, *shape)
    if len(shape) == 3:
        x = x.contiguous(memory_format=layout)
    y = torch.randint(0, classes, (batch,) if len(shape) == 3 else (batch * shape[0],))
    x, y = x.to(device), y.to(device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wall, cpu = [], []
    for step in range(-WARM_UP, steps):
        if step == 0:
            wait()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
        start, cpu_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=compute == "bf16"):
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y)
        loss.backward()
        optimizer.step()
        if step >= 0:
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)
    wait()
    if device == "cuda":
        wall = [(time.perf_counter() - begin) / steps]
    print(
        json.dumps(
            {
                "seconds_min": min(wall),
                "cpu_seconds_min": min(cpu),
                "peak_bytes": memory_bytes("VmHWM") - before,
                "device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
                "version": torch.__version__,
                "blas": blas(),
            }
        )
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="networks; all by default")
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, help="samples a step; by default a size that fits everywhere")
    parser.add_argument("--compute", choices=["fp32", "tf32", "bf16"], default="fp32",
                        help="bf16: PyTorch under its autocast; tf32: on a GPU")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--python",
        action="append",
        metavar="PROGRAM",
        help="an interpreter that has PyTorch, to be given once for each PyTorch to compare with; this one "
        "by default. A newer one than Debian's: python3 -m venv DIR; DIR/bin/pip install torch numpy "
        "--index-url https://download.pytorch.org/whl/cpu (or without the index, larger, from PyPI)",
    )
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peer:
        return peer(a.names[0], a.peer, a.batch, a.steps, a.threads, a.compute, a.device)
    if a.compute == "tf32" and a.device == "cpu":
        parser.error("--compute tf32 is for --device cuda")
    on_gpu = a.device == "cuda"
    clock = "cpu_seconds" if a.cpu_time else "seconds"
    rows = []
    print(
        f"{'network':16} {'batch':>5} {'PyTorch':>12} {'lpsgd':>9} {'PyTorch':>9} {'ratio':>6} "
        f"{'floor':>6} {'direct':>6}   memory: lpsgd,  PyTorch, ratio",
        file=sys.stderr,
    )
    for name in a.names or NETWORKS:
        batch = a.batch or on_gpu and GPU_BATCH.get(name) or NETWORKS[name][0]
        network = str(ROOT / f"configs/networks/{name}.yaml")
        bench = f"{a.build}/bench/"
        low = [f"--{a.compute}"] if a.compute != "fp32" else []
        frames = ["--frames", str(NETWORKS[name][1][0])] if len(NETWORKS[name][1]) < 3 else []
        commands = {
            "lpsgd": [
                bench + "step_bench",
                network,
                "--batch",
                str(batch),
                "--steps",
                str(a.steps),
                "--threads",
                str(a.threads),
            ]
            + low
            + frames
            + (["--device", "cuda"] if on_gpu else [])
            + (["--bytes"] if on_gpu and len(NETWORKS[name][1]) == 3 else [])
        }
        if not on_gpu:
            commands["floor"] = [
                bench + "floor_bench",
                network,
                "--batch",
                str(batch),
                "--repeat",
                str(a.steps),
            ] + low + frames
        peers = {}  # by interpreter: the names of its commands
        for python in a.python or [sys.executable]:
            for f in FORMATS if len(NETWORKS[name][1]) == 3 else FORMATS[:1]:
                system = f"{python} {f}"
                peers.setdefault(python, []).append(system)
                commands[system] = [
                    python,
                    __file__,
                    name,
                    "--peer",
                    f,
                    "--batch",
                    str(batch),
                    "--steps",
                    str(a.steps),
                    "--threads",
                    str(a.threads),
                    "--compute",
                    a.compute,
                    "--device",
                    a.device,
                ]
        best, peak, version, direct = {}, {}, {}, float("inf")
        for _ in range(a.rounds):
            for system, command in commands.items():
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                                     env={**os.environ, "OMP_NUM_THREADS": str(a.threads)}).stdout
                result = json.loads(out)
                seconds = result.get(clock + "_min", result.get(clock))
                best[system] = min(best.get(system, seconds), seconds)
                memory = result.get("device_bytes" if on_gpu else "peak_bytes", 0)
                peak[system] = max(peak.get(system, 0), memory)
                version[system] = result.get("version")
                if system == "floor":
                    direct = min(direct, result["direct_" + clock])
        for systems in peers.values():
            rival, lowest = min(systems, key=best.get), min(peak[s] for s in systems)
            row = {
                "name": "train_step",
                "network": name,
                "batch": batch,
                "threads": a.threads,
                "compute": a.compute,
                "device": a.device,
                "clock": clock,
                "seconds": best["lpsgd"],
                "peer": "pytorch " + rival.split()[-1],
                "peer_version": version[rival],
                "peer_seconds": best[rival],
                "ratio": best[rival] / best["lpsgd"],
                "all_seconds": {s: best[s] for s in ["lpsgd", *systems]},
            }
            rows.append(row)
            row |= {
                "peak_bytes": peak["lpsgd"],
                "peer_peak_bytes": lowest,
                "fastest_peer_peak_bytes": peak[rival],
                "memory_ratio": peak["lpsgd"] / lowest,
            }
            if on_gpu:
                print(
                    f"{name:16} {batch:5} {version[rival]:>12} {1e3 * row['seconds']:7.2f}ms "
                    f"{1e3 * row['peer_seconds']:7.2f}ms {row['ratio']:5.2f}x {'':13}   "
                    f"{row['peak_bytes'] / 2**20:9.0f} MiB {lowest / 2**20:5.0f} MiB {row['memory_ratio']:6.2f}",
                    file=sys.stderr,
                    flush=True,
                )
                continue
            row |= {
                "floor": best["floor"] / best["lpsgd"],
                "direct_floor": direct / best["lpsgd"],
            }
            print(
                f"{name:16} {batch:5} {version[rival]:>12} {1e3 * row['seconds']:7.0f}ms "
                f"{1e3 * row['peer_seconds']:7.0f}ms {row['ratio']:5.2f}x {row['floor']:6.2f} "
                f"{row['direct_floor']:6.2f}   {row['peak_bytes'] / 2**20:9.0f} MiB "
                f"{lowest / 2**20:5.0f} MiB {row['memory_ratio']:6.2f}",
                file=sys.stderr,
                flush=True,
            )
    print(json.dumps(rows))


main()
