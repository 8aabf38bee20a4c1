#!/usr/bin/env python3
"""Writes codecs.golden, the vectors that every implementation of the codecs is held to; with --check compares the
file with what it would write.

    u32 number of cases, then per case: text meta, u32 number of blobs, blobs
    text, blob: u32 length, bytes. All little-endian.
    meta: YAML; op encode: blobs values, residual, bytes, new residual, decoded (residuals empty without one)
                op reduce: blobs residual, bytes, new residual, contributions...
"""
import math
import os
import random
import struct
import sys

import numpy as np

import reference

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "codecs.golden")


def inputs(kind, n, seed):
    """n float32 values of one kind, from arithmetic that is exact everywhere."""
    r = random.Random(seed)

    def bell():
        return r.random() + r.random() + r.random() - 1.5

    make = {
        "random": lambda: bell() * 0.01,
        "mixed": lambda: bell() * 2.0 ** r.randrange(-40, 40),
        "constant": lambda: -0.375,
        "zero": lambda: 0.0,
        "signed_zero": lambda: r.choice([0.0, -0.0]),
        "positive": lambda: r.random(),
        "levels": lambda: r.randrange(-7, 8) / 7.0,
        "denormal": lambda: bell() * 2.0 ** -130,
        "tiny": lambda: r.randrange(-3, 4) * 2.0 ** -149,
        "huge": lambda: bell() * 2.0 ** 127,
        "overflow": lambda: (1 + r.random()) * 2.0 ** 126,
        "squares_overflow": lambda: bell() * 2.0 ** 70,
        "squares_vanish": lambda: bell() * 2.0 ** -80,
    }[kind]
    return np.array([make() for _ in range(n)], dtype=np.float64).astype(np.float32)


def with_special(n, seed, special):
    out = inputs("random", n, seed)
    out[n // 2] = special
    return out


def text(s):
    data = s.encode()
    return struct.pack("<I", len(data)) + data


def blob(data):
    return struct.pack("<I", len(data)) + data


def floats(array):
    return b"" if array is None else np.asarray(array, dtype="<f4").tobytes()


def yaml(codec):
    def word(x):
        return str(x).lower() if isinstance(x, bool) else str(x)

    return "{" + ", ".join(f"{k}: {word(v)}" for k, v in codec.items()) + "}"


class Golden:
    def __init__(self):
        self.cases = []

    def context(self):
        i = len(self.cases)
        return dict(seed=i % 5 * 0x3C6EF35F % 2**32, tensor=i % 7, step=i * 101, rank=i % 4, round_=1 + i % 2)

    def add(self, meta, blobs):
        self.cases.append(text(yaml(meta)) + struct.pack("<I", len(blobs)) + b"".join(map(blob, blobs)))

    def encode(self, codec, bucket, values, residual=None, first=0):
        if codec.get("majority"):
            residual = None  # goes without error feedback
        context = self.context()
        data, left, q = reference.encode(codec, values, residual, first, bucket, **context)
        v = np.array(reference.with_residual(values, residual), dtype=np.float32)
        scale_poisoned = bool(np.isnan(q).any()) if codec["kind"] not in ("none", "fp16", "bf16") else False
        meta = dict(op="encode", codec=yaml(codec), n=len(values), first=first, bucket=bucket, **context,
                    finite=bool(np.isfinite(v).all()) and not scale_poisoned,
                    decoded_finite=bool(np.isfinite(q).all()))
        self.add(meta, [floats(values), floats(residual), data, floats(left if residual is not None else None),
                        floats(q)])

    def reduce(self, codec, bucket, gradients, residual, first=0):
        if codec.get("majority"):
            residual = None
        context = self.context()
        contributions, decoded = [], []
        for rank, g in enumerate(gradients):
            data, _, q = reference.encode(codec, g, None, first, bucket, **dict(context, rank=rank, round_=1))
            contributions.append(data)
            decoded.append(q)
        context["round_"] = 2
        data, left, _ = reference.reduce(codec, decoded, residual, first=first, bucket=bucket, **context)
        meta = dict(op="reduce", codec=yaml(codec), n=len(gradients[0]), first=first, bucket=bucket, **context)
        self.add(meta, [floats(residual), data, floats(left if residual is not None else None)] + contributions)

    def usual(self, codec, kinds):
        """Values, lengths and means that every codec with buckets is tried on."""
        for i, kind in enumerate(kinds):  # what is coded
            residual = inputs("random", 70, 50 + i) if i % 2 else None
            self.encode(codec, 64, inputs(kind, 70, i), residual, first=64 * i)
        for i, special in enumerate((np.nan, np.inf, -np.inf, struct.unpack("<f", b"\x01\x00\xa0\xff")[0])):
            residual = inputs("random", 90, 70 + i) if i % 2 else None
            self.encode(codec, 32, with_special(90, i, special), residual)
        for i, n in enumerate((0, 1, 2, 31, 32, 33, 63, 65, 127, 129, 257)):  # lengths
            if codec.get("norm") == "l2":
                continue
            residual = inputs("random", n, 90 + i) if i % 2 else None
            self.encode(codec, 128, inputs("random", n, 80 + i), residual, first=128 * i)
        self.reduce(codec, 32, [inputs("random", 75, 200 + k) for k in range(3)], None)
        self.reduce(codec, 64, [inputs("mixed", 70, 210 + k) for k in range(2)], inputs("mixed", 70, 220))
        self.reduce(codec, 64, [inputs("random", 40, 230)], inputs("random", 40, 231), first=640)

    def bytes(self):
        return struct.pack("<I", len(self.cases)) + b"".join(self.cases)


def make():
    out = Golden()
    qsgd = [dict(kind="qsgd", bits=b, norm=norm) for b in (2, 4, 8, 16) for norm in ("max", "l2")]
    onebit = dict(kind="onebit")
    kinds = ("random", "mixed", "constant", "zero", "signed_zero", "positive", "levels", "denormal", "tiny", "huge",
             "overflow", "squares_overflow", "squares_vanish")

    others = [dict(kind="qsgd", bits=b, levels="interval") for b in (2, 8, 16)]
    others += [dict(kind="qsgd", bits=b, levels="exponential") for b in (2, 4, 8)]
    others += [dict(kind="qsgd", bits=b, levels="optimal") for b in (2, 4, 8)]
    others += [dict(kind="qsgd", bits=4, norm="l2", levels=levels) for levels in ("interval", "exponential", "optimal")]
    others += [dict(kind="sign"), dict(kind="sign", majority=True, error_feedback=False)]
    others += [dict(kind="topk", density=d) for d in (0.01, 0.3, 1.0)]
    others += [dict(kind="dynamic8", type=t) for t in ("dynamic_tree", "static_tree", "linear", "mantissa")]

    for codec in [onebit] + qsgd + others:
        out.usual(codec, kinds)
    # Sums of several blocks, in one bucket.
    for codec in (onebit, dict(kind="qsgd", bits=2, norm="l2")):
        out.encode(codec, 9001, inputs("mixed", 9001, 300), inputs("random", 9001, 301))
    # Columns of any length.
    for rows in (1, 3, 5, 7, 100):
        out.encode(onebit, rows, inputs("random", 3 * rows + 2, 310 + rows), inputs("random", 3 * rows + 2, 320))
    for codec in (dict(kind="sign"), dict(kind="topk", density=0.02), dict(kind="qsgd", bits=4, levels="optimal")):
        out.encode(codec, 9001, inputs("mixed", 9001, 302), inputs("random", 9001, 303))
    # Values between the codes of every 8-bit type, and ties of magnitudes.
    for kind in ("dynamic_tree", "static_tree", "linear", "mantissa"):
        grid = reference.dynamic8_magnitudes(kind)
        half = [np.float32((float(a) + float(b)) / 2) for a, b in zip(grid, grid[1:])]
        near = [np.nextafter(x, np.float32(t), dtype=np.float32) for x in half for t in (0, 2)]
        values = np.array([1.0] + half + near + [-x for x in half] + list(grid), dtype=np.float32)
        out.encode(dict(kind="dynamic8", type=kind), len(values), values)
    tied = np.array([1, -2, 2, 0, -1, 2, -2, 1, 0, -0.0] * 9, dtype=np.float32)
    for density in (0.1, 0.35, 0.9):
        out.encode(dict(kind="topk", density=density), 64, tied)
    # A late element, a late step, any seed.
    out.encode(dict(kind="qsgd", bits=4, norm="max"), 512, inputs("random", 600, 330), first=2**31 + 2**20)

    for kind in ("none", "fp16", "bf16"):
        codec = dict(kind=kind)
        for i, what in enumerate(kinds):
            out.encode(codec, 64, inputs(what, 70, 400 + i), inputs("random", 70, 420) if i % 2 else None)
        for i, special in enumerate((np.nan, np.inf, -np.inf, struct.unpack("<f", b"\x01\x00\xa0\xff")[0])):
            out.encode(codec, 64, with_special(66, i, special), inputs("random", 66, 440) if i % 2 else None)
        out.reduce(codec, 64, [inputs("mixed", 70, 450 + k) for k in range(3)], None)
    # Every boundary of the half formats: around each power of two, the largest finite values, ties.
    edges = []
    for e in range(-28, 18):
        for step in range(-3, 4):
            edges.append(2.0**e * (1 + step * 2.0**-12))
    edges += [65504, 65519, 65520, 65536, 5.9604645e-08, 2.9802322e-08, 2.9802326e-08, 3.3895314e38, 3.4028235e38]
    edges = np.array(edges + [-x for x in edges], dtype=np.float32)
    for kind in ("fp16", "bf16"):
        out.encode(dict(kind=kind), 64, edges)
    for element in reference.MX_ELEMENTS:
        for rounding in ("stochastic", "nearest"):
            out.usual(dict(kind="mx", element=element, rounding=rounding), kinds)
    # Every code of every microscaling element with ties and their neighbours, under scales of three kinds.
    for element in reference.MX_ELEMENTS:
        grid = reference.mx_magnitudes(element)
        half = [np.float32((a + b) / 2) for a, b in zip(grid, grid[1:])]
        near = [np.nextafter(x, np.float32(t), dtype=np.float32) for x in half for t in (0, grid[-1])]
        points = list(grid) + half + near
        points = [x * sign for x in points for sign in (1, -1)]
        for exponent in (0, -135, 100):
            blocks = [[grid[-1]] + points[i:i + 31] for i in range(0, len(points), 31)]
            values = np.array([math.ldexp(float(x), exponent) for block in blocks for x in block], dtype=np.float32)
            for rounding in ("stochastic", "nearest"):
                out.encode(dict(kind="mx", element=element, rounding=rounding), 512, values)
    # Around the largest magnitude that has a scale, and powers of two below it.
    edges = [np.nextafter(np.float32(2.0**e), np.float32(t), dtype=np.float32) for e in (-126, 0, 125, 126) for t in (0, 3e38)]
    edges += [np.float32(2.0**e) for e in (-149, -127, -126, 0, 125, 126)]
    blocks = np.array([x * sign for x in edges for sign in [1, -0.75] + [0.25] * 30], dtype=np.float32)
    for element in reference.MX_ELEMENTS:
        for rounding in ("stochastic", "nearest"):
            out.encode(dict(kind="mx", element=element, rounding=rounding), 512, blocks)
            out.reduce(dict(kind="mx", element=element, rounding=rounding), 64, [blocks, blocks], None)
    return out.bytes()


if __name__ == "__main__":
    data = make()
    if "--check" in sys.argv[1:]:
        with open(PATH, "rb") as f:
            if f.read() != data:
                sys.exit(f"{PATH} is not what the reference gives")
        print(f"{PATH}: {len(data)} bytes, as the reference gives")
    else:
        with open(PATH, "wb") as f:
            f.write(data)
        print(f"{PATH}: {len(data)} bytes")
