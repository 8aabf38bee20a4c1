"""What the command-line tests share: running lpsgd, a tiny configuration, reading and writing safetensors."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(77)

LPSGD = os.environ.get("LPSGD", "build/release/lpsgd")
SOURCE = os.environ.get("LPSGD_SOURCE", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MPIRUN = os.environ.get("MPIRUN", "mpirun")

# A network with every kind of layer that a ResNet has, small enough for a step in milliseconds.
NETWORK = """
name: tiny
input: [32, 32, 3]
classes: 10
parameters: {activation: relu, norm: true}
layers:
  - {conv: conv1, filters: 8, kernel: 3, stride: 2, pad: 1, bias: not $norm}
  - {batch_norm: bn1, if: $norm}
  - {$activation: act1}
  - {conv: conv2, filters: 16, kernel: 3, stride: 2, pad: 1, bias: not $norm}
  - {batch_norm: bn2, if: $norm}
  - {$activation: act2}
  - average_pool
  - flatten
  - {dense: fc, units: 10}
"""

CONFIG = """network: tiny_network.yaml
data: {dataset: shapes, shuffle: true, augment: {pad: 2, mirror: true}, train_samples: 96, test_samples: 50}
train: {epochs: 2, batch_size: 24, seed: 3, threads: 1, device: cpu}
optimizer: {momentum: 0.9, weight_decay: 1.0e-4}
schedule: {lr: 0.05, decay: {1: 0.1}}
exchange: {transport: mpi, codec: {kind: qsgd, bits: 4, bucket: 64}}
checkpoint: {every_epochs: 1, keep: 3}
"""


class Result:
    def __init__(self, process):
        self.status, self.out, self.err = process.returncode, process.stdout, process.stderr

    def __repr__(self):
        return f"status {self.status}\n--- out\n{self.out}\n--- err\n{self.err}"


# Runs between mpirun and the program: for NCCL each rank is a different host, so that ranks can share a GPU.
A_HOST_EACH = ["sh", "-c", 'NCCL_HOSTID=rank${PMI_RANK:-$OMPI_COMM_WORLD_RANK} NCCL_SOCKET_IFNAME=lo exec "$0" "$@"']


def run(*arguments, ranks=None, wrap=(), env=None, timeout=300, **options):
    """Runs lpsgd, under mpirun when `ranks` is given."""
    command = [*wrap, LPSGD, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    if ranks:
        command = [MPIRUN, "-n", str(ranks), *command]
    environment = dict(os.environ, OMP_NUM_THREADS="1", **(env or {}))
    return Result(subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout,
                                 env=environment, **options))


class Case(unittest.TestCase):
    """A temporary folder with the tiny configuration in it."""

    maxDiff = None

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="lpsgd-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.write("tiny_network.yaml", NETWORK)
        self.config = self.write("tiny.yaml", CONFIG)

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def train(self, out, *arguments, ranks=2, config=None, **options):
        """A run that must succeed; returns its folder."""
        result = run("train", config or self.config, "--out", self.path(out), *arguments, ranks=ranks, **options)
        self.assertEqual(result.status, 0, result)
        return self.path(out)

    def metrics(self, folder):
        with open(os.path.join(folder, "metrics.jsonl")) as file:
            return [json.loads(line) for line in file]


def checkpoints(folder):
    return sorted(os.listdir(os.path.join(folder, "checkpoints")))


def model(folder, checkpoint):
    return load(os.path.join(folder, "checkpoints", checkpoint, "model.safetensors"))


def load(path):
    """A safetensors file of float32 tensors as a dictionary of arrays."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(entry["shape"])
    return tensors


def save(path, tensors):
    header, pieces, offset = {}, [], 0
    for name, array in tensors.items():
        array = np.ascontiguousarray(array, "<f4")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        pieces.append(array.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def equal(a, b):
    """Whether two dictionaries of arrays are the same, bit for bit."""
    return a.keys() == b.keys() and all(np.array_equal(a[k].view("<u4"), b[k].view("<u4")) for k in a)
