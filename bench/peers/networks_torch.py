"""Training steps of lpsgd beside PyTorch's, for every network of configs/networks, in one run.

    bench/peers/networks_torch.py [NAME...] [--build build/release] [--rounds 3] [--steps 3] [--threads 1] [--cpu-time]

For each network: lpsgd, PyTorch in both memory formats, and the floor (the network's convolutions and products alone, as
bare oneDNN primitives) take turns, round after round, each in a process of its own, so that a busy machine slows all
alike; each one's best step counts. Prints a table and one JSON array. `ratio` is the better PyTorch's time over
ours; `floor` the bare primitives' time over ours; memory is what a process needed at its peak above what it had
before the network was built. With --cpu-time it is processor time, for machines that are never quiet.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCHES = {"alexnet": 32, "vgg19": 8, "resnet50": 8, "resnet152": 8, "bn_inception": 16, "resnet20": 128,
           "resnet110": 128, "densenet40_12": 64, "wideresnet28_12": 16, "logistic": 128}
FORMATS = ["nchw", "nhwc"]


def peer(name, memory_format, batch, steps, threads):
    """Runs in a process of its own; prints what step_bench prints."""
    sys.path.insert(0, str(ROOT / "tests/nn"))
    import torch
    import torch_networks

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    layout = torch.channels_last if memory_format == "nhwc" else torch.contiguous_format
    model = torch_networks.make(name).to(memory_format=layout)
    size = {"alexnet": 227, "vgg19": 224, "resnet50": 224, "resnet152": 224, "bn_inception": 224}.get(name, 32)
    classes = 10 if size == 32 else 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x = torch.randn(batch, 3, size, size).contiguous(memory_format=layout)
    y = torch.randint(0, classes, (batch,))
    wall, cpu = [], []
    for step in range(-2, steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step >= 0:
            wall.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds_min": min(wall), "cpu_seconds_min": min(cpu), "peak_bytes": 1024 * (peak - before),
                      "version": torch.__version__}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="networks; all by default")
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, help="samples a step; by default a size that fits everywhere")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peer:
        return peer(a.names[0], a.peer, a.batch, a.steps, a.threads)
    clock = "cpu_seconds" if a.cpu_time else "seconds"
    rows = []
    print(f"{'network':16} {'batch':>5} {'lpsgd':>9} {'PyTorch':>9} {'ratio':>6} {'floor':>6}   memory: lpsgd, PyTorch",
          file=sys.stderr)
    for name in a.names or BATCHES:
        batch = a.batch or BATCHES[name]
        network = str(ROOT / f"configs/networks/{name}.yaml")
        bench = f"{a.build}/bench/"
        commands = {
            "lpsgd": [bench + "step_bench", network, "--batch", str(batch), "--steps", str(a.steps), "--threads",
                      str(a.threads)],
            "floor": [bench + "floor_bench", network, "--batch", str(batch), "--repeat", str(a.steps)]}
        for f in FORMATS:
            commands["pytorch " + f] = [sys.executable, __file__, name, "--peer", f, "--batch", str(batch), "--steps",
                                        str(a.steps), "--threads", str(a.threads)]
        best, peak, version = {}, {}, ""
        for _ in range(a.rounds):
            for system, command in commands.items():
                out = subprocess.run(command, check=True, capture_output=True, text=True,
                                     env={**os.environ, "OMP_NUM_THREADS": str(a.threads)}).stdout
                result = json.loads(out)
                seconds = result.get(clock + "_min", result.get(clock))
                best[system] = min(best.get(system, seconds), seconds)
                peak[system] = max(peak.get(system, 0), result.get("peak_bytes", 0))
                version = result.get("version", version)
        rival = min(["pytorch " + f for f in FORMATS], key=best.get)
        row = {"name": "train_step", "network": name, "batch": batch, "threads": a.threads, "clock": clock,
               "seconds": best["lpsgd"], "peer": rival, "peer_version": version, "peer_seconds": best[rival],
               "ratio": best[rival] / best["lpsgd"], "floor": best["floor"] / best["lpsgd"],
               "peak_bytes": peak["lpsgd"], "peer_peak_bytes": min(peak["pytorch " + f] for f in FORMATS),
               "all_seconds": best}
        rows.append(row)
        print(f"{name:16} {batch:5} {1e3 * row['seconds']:7.0f}ms {1e3 * row['peer_seconds']:7.0f}ms {row['ratio']:5.2f}x "
              f"{row['floor']:6.2f}   {row['peak_bytes'] / 2**20:6.0f} MiB {row['peer_peak_bytes'] / 2**20:6.0f} MiB",
              file=sys.stderr, flush=True)
    print(json.dumps(rows))


main()
