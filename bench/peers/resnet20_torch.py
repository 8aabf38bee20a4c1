"""ResNet-20, one process, one thread, float32: a training step of lpsgd beside PyTorch's, in one run.

    resnet20_torch.py STEP_BENCH NETWORK_FILE [--batch 128] [--rounds 5] [--steps 4]

Systems take turns, round after round, so that a busy machine slows all alike; each one's best step counts. PyTorch
runs in both memory formats and the better one is the peer. Prints a table and one line of JSON. The ratio is of wall
time; with --cpu-time it is of processor time, for machines that are never quiet.
"""
import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402

torch.set_num_threads(1)
nn = torch.nn


class Block(nn.Module):
    def __init__(self, inputs, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Identity()
        if inputs != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        return torch.relu_(y + self.shortcut(x))


def resnet20():
    layers, inputs = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)], 16
    for filters in [16, 32, 64]:
        for _ in range(3):
            layers.append(Block(inputs, filters, 2 if inputs != filters else 1))
            inputs = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Peer:
    def __init__(self, batch, memory_format):
        torch.manual_seed(1)
        self.model = resnet20().to(memory_format=memory_format)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        self.x = torch.randn(batch, 3, 32, 32).contiguous(memory_format=memory_format)
        self.y = torch.randint(0, 10, (batch,))

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def seconds(self, steps, clock):
        self.step()
        times = []
        for _ in range(steps):
            start = clock()
            self.step()
            times.append(clock() - start)
        return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step_bench")
    parser.add_argument("network")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--cpu-time", action="store_true")
    a = parser.parse_args()
    clock = time.process_time if a.cpu_time else time.perf_counter
    peers = {"pytorch nchw": Peer(a.batch, torch.contiguous_format),
             "pytorch nhwc": Peer(a.batch, torch.channels_last)}

    def ours():
        line = subprocess.run([a.step_bench, a.network, "--batch", str(a.batch), "--steps", str(a.steps)], check=True,
                              capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
        return json.loads(line)["cpu_seconds_min" if a.cpu_time else "seconds_min"]

    best = {}
    for _ in range(a.rounds):
        for name, measure in [("lpsgd", ours)] + [(n, lambda p=p: p.seconds(a.steps, clock)) for n, p in peers.items()]:
            best[name] = min(best.get(name, float("inf")), measure())
    peer = min(peers, key=best.get)
    ratio = best[peer] / best["lpsgd"]
    for name, seconds in best.items():
        print(f"{name:14} {seconds * 1e3:8.1f} ms a step  {a.batch / seconds:7.1f} samples/s", file=sys.stderr)
    print(f"lpsgd against {peer} (PyTorch {torch.__version__}): {ratio:.2f}x", file=sys.stderr)
    print(json.dumps([{"name": "resnet20_train_step", "batch": a.batch, "threads": 1, "clock": "cpu" if a.cpu_time else "wall",
                       "seconds": best["lpsgd"],
                       "peer": peer, "peer_version": torch.__version__, "peer_seconds": best[peer], "ratio": ratio,
                       "all_seconds": best}]))


main()
