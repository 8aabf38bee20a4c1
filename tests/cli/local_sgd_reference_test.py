"""Every kind of `sync` against a slow reference in numpy: softmax regression, 12 steps, 2 to 4 ranks over threads, with and
without codecs; some of them over MPI, too. tests/trainer/local_step_mpi_test.cc shows that all train the same over MPI."""

import concurrent.futures
import itertools
import math
import os
import sys
import unittest

import numpy as np

from harness import Case, model, run

sys.path.insert(0, os.path.join(os.environ["LPSGD_SOURCE"], "tests", "golden"))


import reference  # noqa: E402  (tests/golden)

SIDE, CLASSES, BATCH, PER_EPOCH, STEPS, SEED = 6, 3, 12, 6, 12, 9
LR, MU, DECAY = 0.2, 0.9, 0.01
f32 = np.float32

NETWORK = f"""
name: softmax
input: [{SIDE}, {SIDE}, 1]
classes: {CLASSES}
layers: [flatten, {{dense: fc, units: {CLASSES}}}]
"""

CONFIG = f"""
network: softmax.yaml
data: {{dataset: images, root: ROOT, shuffle: false, augment: none, evaluate: {{resize: {SIDE}}}, mean: [0], std: [1]}}
train: {{epochs: 2, batch_size: {BATCH}, seed: {SEED}, threads: 1, device: cpu}}
optimizer: {{momentum: {MU}, weight_decay: {DECAY}}}
schedule: {{lr: {LR}, decay: {{1: 0.5}}}}
exchange: {{min_elements: 0}}
checkpoint: {{every_epochs: 0}}
"""

EVERY_PAIR = os.environ.get("LPSGD_PAIRS") == "all"  # of codecs and numbers of ranks
CODECS = {
    "none": None,
    "sign": dict(kind="sign", bucket="tensor", error_feedback=False),
    "EF-sign": dict(kind="sign", bucket="tensor", error_feedback=True),
    "onebit": dict(kind="onebit", bucket=64, error_feedback=True),
    "qsgd": dict(kind="qsgd", bits=4, bucket=64, error_feedback=False),
}


def flow(options):
    word = lambda v: str(v).lower() if isinstance(v, bool) else v  # noqa: E731
    return "{" + ", ".join(f"{k}: {word(v)}" for k, v in options.items()) + "}"


class Exchange:
    """The exchange of one group of ranks, which begins at rank `first`."""

    def __init__(self, codec, tensors, first, ranks):
        self.codec, self.first, self.ranks = codec, first, ranks
        self.residual1 = [[np.zeros(n, f32) for n in tensors] for _ in range(ranks)]
        self.residual2 = [np.zeros(n, f32) for n in tensors]

    def mean(self, step, values):
        """values[rank][tensor] -> the means by tensor"""
        return [self.one(step, t, [v[t] for v in values]) for t in range(len(self.residual2))]

    def one(self, step, t, values):
        if self.codec is None:
            total = values[0]
            for v in values[1:]:
                total = total + v
            return total * f32(1 / self.ranks)
        n, feedback = len(values[0]), self.codec["error_feedback"]
        bucket = n if self.codec["bucket"] == "tensor" else self.codec["bucket"]
        buckets = -(-n // bucket)
        decoded = []
        for r, v in enumerate(values):
            context = dict(seed=SEED, tensor=t, step=step, rank=self.first + r, round_=1)
            residual = self.residual1[r][t] if feedback else None
            _, left, q = reference.encode(self.codec, v, residual, 0, bucket, **context)
            self.residual1[r][t] = left
            decoded.append(q)
        out = np.empty(n, f32)
        for stripe in range(self.ranks):
            a, b = (min(n, s * buckets // self.ranks * bucket) for s in (stripe, stripe + 1))
            if a == b:
                continue
            owner = self.first + (stripe + t) % self.ranks
            context = dict(seed=SEED, tensor=t, step=step, rank=owner, round_=2)
            residual = self.residual2[t][a:b] if feedback else None
            _, left, q = reference.reduce(
                self.codec, [d[a:b] for d in decoded], residual, first=a, bucket=bucket, **context)
            self.residual2[t][a:b] = left
            out[a:b] = q
        return out

    def scale(self, factor):
        self.residual1 = [[r * f32(factor) for r in tensors] for tensors in self.residual1]
        self.residual2 = [r * f32(factor) for r in self.residual2]


def gradients(weights, images, labels):
    """Of the mean cross-entropy, by tensor: the weight (classes x inputs, flat) and the bias."""
    w, b = weights[0].reshape(CLASSES, -1).astype("f8"), weights[1].astype("f8")
    scores = images @ w.T + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    p /= len(labels)
    return [(p.T @ images).astype(f32).ravel(), p.sum(axis=0).astype(f32)]


class Ranks:
    """K ranks, one step at a time."""

    def __init__(self, start, ranks, codec):
        self.weights = [[w.copy() for w in start] for _ in range(ranks)]
        self.momentum = [[np.zeros_like(w) for w in start] for _ in range(ranks)]
        self.sizes = [len(w) for w in start]
        self.count, self.codec = ranks, codec
        self.all = Exchange(codec, self.sizes, 0, ranks)

    def update(self, grads, lr):
        for w, v, g in zip(self.weights, self.momentum, grads, strict=True):
            for t in range(len(w)):
                v[t] = v[t] * f32(MU) + (g[t] + w[t] * f32(DECAY))
                w[t] = w[t] - v[t] * f32(lr)

    def grads(self, data, step):
        images, labels = data
        share = BATCH // self.count
        first = step % PER_EPOCH * BATCH
        parts = [slice(first + r * share, first + (r + 1) * share) for r in range(self.count)]
        return [gradients(w, images[p], labels[p]) for w, p in zip(self.weights, parts, strict=True)]

    def changes(self, agreed, of):
        return [[s - w for s, w in zip(agreed[r], self.weights[r], strict=True)] for r in of]


def interval(sync, step):
    """H of a step."""
    epoch, h = step // PER_EPOCH, sync.get("steps", 1)
    if sync["kind"] == "post_local_sgd":
        return h if epoch >= sync["from"] else 1
    if epoch >= sync.get("warmup_epochs", 0):
        return h
    share = step / (PER_EPOCH * sync["warmup_epochs"])
    return {"constant": 1, "linear": math.floor(1 + (h - 1) * share), "exponential": math.floor(h**share + 1e-9)}[sync["warmup"]]


def trained(sync, start, ranks, codec, data):
    """The average of the ranks' weights after 12 steps."""
    k = Ranks(start, ranks, codec)
    kind = sync["kind"]
    size = sync.get("ranks_per_block", ranks)
    blocks = [range(first, first + size) for first in range(0, ranks, size)]
    within = [Exchange(codec, k.sizes, block[0], size) for block in blocks]
    mu, rate = (sync["momentum"], sync["rate"]) if kind == "block_momentum" else (0, 1)
    u = [np.zeros_like(w) for w in start]
    agreed = block_agreed = None
    since = rounds = 0
    for step in range(STEPS):
        lr = LR * (0.5 if step >= PER_EPOCH else 1)
        now = interval(sync, step)
        if agreed is None:
            local = now > 1 or kind in ("block_momentum", "hierarchical_local_sgd")
            if not local:
                mean = k.all.mean(step, k.grads(data, step))
                k.update([mean] * ranks, lr)
                continue
            agreed = [w.copy() for w in k.weights[0]]
            block_agreed = [agreed] * ranks
            if step > 0:
                k.all.scale(lr)
        k.update(k.grads(data, step), lr)
        since += 1
        if since < now:
            continue
        since, rounds = 0, rounds + 1
        if kind == "hierarchical_local_sgd" and rounds < sync["block_steps"]:
            for block, exchange in zip(blocks, within, strict=True):
                mean = exchange.mean(step, k.changes(block_agreed, block))
                new = [s - d for s, d in zip(block_agreed[block[0]], mean, strict=True)]
                for r in block:
                    k.weights[r], block_agreed[r] = [w.copy() for w in new], new
            if sync.get("reset_momentum"):
                k.momentum = [[np.zeros_like(w) for w in start] for _ in range(ranks)]
            continue
        rounds = 0
        mean = k.all.mean(step, k.changes([agreed] * ranks, range(ranks)))
        u = [x * f32(mu) + d for x, d in zip(u, mean, strict=True)]
        moves = [d + x * f32(mu) if sync.get("nesterov") else x for x, d in zip(u, mean, strict=True)]
        agreed = [s - m * f32(rate) for s, m in zip(agreed, moves, strict=True)]
        block_agreed = [agreed] * ranks
        k.weights = [[w.copy() for w in agreed] for _ in range(ranks)]
        if sync.get("reset_momentum"):
            k.momentum = [[np.zeros_like(w) for w in start] for _ in range(ranks)]
    return [sum(k.weights[r][t].astype("f8") for r in range(ranks)) / ranks for t in range(len(start))]


def streamed(sync, start, ranks, codec, data):
    """The same with fragments, of which there are one or two, and a delay."""
    k = Ranks(start, ranks, codec)
    h, delay, mix = sync["steps"], sync.get("delay", 0), sync.get("mix", 0)
    groups = [[0], [1]] if sync.get("fragments", 1) == 2 else [[0, 1]]
    turn = h // len(groups)
    mu, rate = (sync["momentum"], sync["rate"]) if sync["kind"] == "block_momentum" else (0, 1)
    u, agreed = [np.zeros_like(w) for w in start], [w.copy() for w in start]
    since, due, means = 0, None, {}

    def arrive():
        for t, d in means.items():
            u[t] = u[t] * f32(mu) + d
            agreed[t] = agreed[t] - (d + u[t] * f32(mu) if sync.get("nesterov") else u[t]) * f32(rate)
            for w, v in zip(k.weights, k.momentum, strict=True):
                w[t] = agreed[t] + (w[t] - agreed[t]) * f32(mix)
                if sync.get("reset_momentum"):
                    v[t] = np.zeros_like(v[t])

    for step in range(STEPS):
        k.update(k.grads(data, step), LR * (0.5 if step >= PER_EPOCH else 1))
        if due == step:
            arrive()
        since += 1
        if since % turn > 0:
            continue
        group = groups[since // turn - 1]
        since %= h
        changes = k.changes([agreed] * ranks, range(ranks))
        due, means = step + delay, {t: k.all.one(step, t, [c[t] for c in changes]) for t in group}
        if delay == 0:
            arrive()
    return [sum(k.weights[r][t].astype("f8") for r in range(ranks)) / ranks for t in range(len(start))]


class LocalSgd(Case):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(4)
        self.images, self.labels = [], []
        for split in ("train", "val"):
            for number in range(BATCH * PER_EPOCH):
                label = number * CLASSES // (BATCH * PER_EPOCH)  # as folders are read: class by class
                pixels = rng.integers(0, 256, SIDE * SIDE, dtype="u1")
                pixels[label * 12:label * 12 + 12] //= 3
                folder = self.path("images", split, "abc"[label])
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"{number:03}.pgm"), "wb") as file:
                    file.write(b"P5\n%d %d\n255\n" % (SIDE, SIDE) + pixels.tobytes())
                if split == "train":
                    self.images.append(pixels / 255.0)
                    self.labels.append(label)
        self.write("softmax.yaml", NETWORK)
        self.config = self.write("softmax_run.yaml", CONFIG.replace("ROOT", self.path("images")))
        first = model(self.train("start", "--steps", "0", ranks=1), "step-000000")
        self.start = [first["fc.weight"].ravel(), first["fc.bias"]]

    def compare(self, sync, counts=(2, 3, 4), codecs=tuple(CODECS), blocks=None, mpi=(), every_pair=False):
        """Each codec with a number of ranks, or every pair of them. `blocks`: of each number of ranks, the ranks of a block;
        `mpi`: the codecs whose runs are repeated over MPI."""
        pairs = itertools.product(counts, codecs) if every_pair or EVERY_PAIR else zip(itertools.cycle(counts), codecs)

        def check(pair):
            ranks, name = pair
            options = {**sync, "ranks_per_block": blocks[ranks]} if blocks else sync
            self.check(options, ranks, name, over_mpi=name in mpi)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(check, pairs))

    def check(self, sync, ranks, name, over_mpi):
        codec = CODECS[name]
        train = streamed if "fragments" in sync or "delay" in sync else trained
        expected = train(sync, self.start, ranks, codec, (np.array(self.images), np.array(self.labels)))
        settings = ["--steps", str(STEPS), "--set", f"sync={flow(sync)}",
                    "--set", f"exchange.codec={flow(codec) if codec else 'none'}"]
        out = "-".join([sync["kind"], str(sync.get("warmup", "")), str(ranks), name])
        result = run("train", self.config, "--out", self.path(f"{out}-threads"), *settings, "--set",
                     "exchange.transport=threads", "--set", f"exchange.ranks={ranks}")
        self.assertEqual(result.status, 0, result)
        threads = model(self.path(f"{out}-threads"), f"step-{STEPS:06}")
        runs = [threads]
        if over_mpi:
            runs.append(model(self.train(f"{out}-mpi", *settings, ranks=ranks), f"step-{STEPS:06}"))
        for got in runs:
            for mine, theirs in zip((got["fc.weight"].ravel(), got["fc.bias"]), expected, strict=True):
                worst = np.abs(mine - theirs).max() / max(np.abs(e).max() for e in expected)
                self.assertLess(worst, 1e-6, (sync, ranks, name))
        moved = np.abs(threads["fc.weight"].ravel() - self.start[0]).max()
        self.assertGreater(moved, 1e-2, "it trains")

    def test_every_step(self):
        self.compare({"kind": "every_step"})

    def test_local_sgd(self):
        self.compare({"kind": "local_sgd", "steps": 3}, mpi=("EF-sign",))

    def test_local_sgd_that_ends_between_two_synchronisations(self):
        self.compare({"kind": "local_sgd", "steps": 5, "reset_momentum": True}, counts=(3,))

    def test_post_local_sgd(self):
        self.compare({"kind": "post_local_sgd", "steps": 2, "from": 1})

    def test_hierarchical_local_sgd(self):
        hierarchical = {"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 2}
        self.compare(hierarchical, counts=(2, 4, 3), blocks={2: 1, 3: 3, 4: 2}, mpi=("qsgd",))

    def test_hierarchical_local_sgd_with_blocks_of_one_rank(self):
        self.compare({"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 3}, counts=(3,), blocks={3: 1})

    def test_hierarchical_local_sgd_that_resets_momentum(self):
        self.compare({"kind": "hierarchical_local_sgd", "steps": 2, "block_steps": 2, "reset_momentum": True},
                     counts=(4,), codecs=("none", "EF-sign"), blocks={4: 2})

    def test_fragments(self):
        self.compare({"kind": "local_sgd", "steps": 4, "fragments": 2, "reset_momentum": True}, mpi=("onebit",))

    def test_delay(self):
        self.compare({"kind": "local_sgd", "steps": 3, "delay": 2, "mix": 0.5}, mpi=("none", "EF-sign"))

    def test_streaming_diloco(self):
        self.compare({"kind": "block_momentum", "steps": 4, "momentum": 0.9, "rate": 0.7, "nesterov": True,
                      "fragments": 2, "delay": 1, "mix": 0.25}, mpi=("qsgd", "EF-sign"), every_pair=True)

    def test_block_momentum(self):
        self.compare({"kind": "block_momentum", "steps": 3, "momentum": 0.5, "rate": 0.75, "nesterov": False})

    def test_block_momentum_with_nesterov(self):
        self.compare({"kind": "block_momentum", "steps": 2, "momentum": 0.9, "rate": 0.7, "nesterov": True})

    def test_warm_ups(self):
        for warmup in ("constant", "linear", "exponential"):
            self.compare({"kind": "local_sgd", "steps": 4, "warmup": warmup, "warmup_epochs": 1})


if __name__ == "__main__":
    unittest.main(verbosity=2)
