#!/usr/bin/python3
"""What the order of values does to buckets: the error of coding in our memory order, and in CNTK's.

    bench/bucket_order.py CHECKPOINT...

Codes the momentum of a checkpoint, which is a mean of gradients. Our order is O-H-W-I for filters and out x in
for matrices; CNTK's matrices are by columns, which is O-I-H-W and in x out. Prints the norm of the error over
that of the values: for QSGD (scaled by the maximum) in expectation over the rounding.
"""

import json
import struct
import sys

import numpy as np

LEAST = 2304  # values; smaller tensors travel as float32


def tensors(path):
    """{name: (shape, values)} of a safetensors file's float32 tensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {
        name: (about["shape"], np.frombuffer(data[slice(*about["data_offsets"])], np.float32))
        for name, about in header.items()
        if about.get("dtype") == "F32"
    }


def buckets(values, size):
    """Rows of so many values, and which of them are no padding."""
    padding = (0, -len(values) % size)
    return (np.pad(part, padding).reshape(-1, size) for part in (values, np.ones(len(values), bool)))


def qsgd(bits, size):
    def error(values):
        rows, _ = buckets(values, size)
        step = np.abs(rows).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
        step[step == 0] = 1
        part = np.abs(rows) / step % 1
        return (step**2 * part * (1 - part)).sum()

    return error


def onebit(size):
    def error(values):
        rows, is_value = buckets(values, size)
        total = 0.0
        for half in ((rows >= 0) & is_value, (rows < 0) & is_value):
            count = np.maximum(half.sum(axis=1, keepdims=True), 1)
            mean = (rows * half).sum(axis=1, keepdims=True) / count
            total += (((rows - mean) * half) ** 2).sum()
        return total

    return error


CODECS = {
    "QSGD 8 bit, bucket 512": qsgd(8, 512),
    "QSGD 4 bit, bucket 512": qsgd(4, 512),
    "QSGD 2 bit, bucket 128": qsgd(2, 128),
    "1bitSGD*, bucket 64": onebit(64),
}


def both_orders(folder):
    """Each larger tensor's momentum in our order and in CNTK's."""
    shapes = {name: shape for name, (shape, _) in tensors(f"{folder}/model.safetensors").items()}
    for name, (_, values) in tensors(f"{folder}/state-rank0000.safetensors").items():
        shape = shapes.get(name.removeprefix("momentum."), [])
        values = values.astype(np.float64)
        if not name.startswith("momentum.") or values.size < LEAST:
            continue
        if len(shape) == 2:
            yield values, values.reshape(shape).T.reshape(-1)
        elif len(shape) == 4:
            outputs, inputs, height, width = shape
            filters = values.reshape(outputs, height, width, inputs)
            yield values, filters.transpose(0, 3, 1, 2).reshape(-1)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    for folder in sys.argv[1:]:
        found = list(both_orders(folder))
        norm = sum((ours**2).sum() for ours, _ in found)
        for name, error in CODECS.items():
            ours, theirs = ((sum(map(error, part)) / norm) ** 0.5 for part in zip(*found))
            print(f"{folder}: {name}: memory order {ours:.4f}, CNTK's {theirs:.4f}, ratio {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
