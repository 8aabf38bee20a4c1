"""Whole runs with random options. What must not change a run's result does not change a bit of its last checkpoint, and of
its records nothing but times: MPI instead of threads, an exchange after backward, other numbers of workers,
values computed again, and a stop and a resume after any step. What no test of one option sees shows here.

    random_runs_test.py [FIRST_SEED COUNT]     (default 0 12; LPSGD_DEVICE=cuda: on a GPU)
"""

import json
import os
import random
import shutil
import sys
import tempfile

from harness import LPSGD, equal, load, run

DEVICE = os.environ.get("LPSGD_DEVICE", "cpu")

# Of a record, what depends on time. Checkpoints of local steps average the weights, which sends bytes.
TIMES = {"seconds", "seconds_min", "seconds_max", "samples_per_s", "bytes_average"}


def flow(value):
    """A value as YAML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.17g}" if isinstance(value, float) else str(value)


class Configuration:
    """Options of a run, drawn from a seed. All of them are valid together."""

    def __init__(self, seed, folder):
        self.random = random.Random(seed)
        r = self.random
        self.ranks = r.choice([1, 2, 2, 3, 3, 4, 5, 6])
        self.epochs = r.choice([1, 2, 3])
        self.micro_batches = r.choice([1, 1, 1, 2, 3])
        self.batch = self.ranks * self.micro_batches * r.choice([1, 2, 4])
        self.is_text = r.random() < 0.3
        network, data = self.text(folder) if self.is_text else self.images()
        train = dict(epochs=self.epochs, batch_size=self.batch, micro_batches=self.micro_batches, seed=r.randrange(2**32),
                     threads=1, device=DEVICE, deterministic=True, label_smoothing=r.choice([0, 0, 0.1]),
                     recompute=r.choice(["none", "batch_norm"]))
        self.kind = r.choice(["sgd", "sgd", "sgd", "lars", "adam", "adamw"])
        self.schedule, self.decays = self.rates()
        self.sync = self.synchronisation()
        self.sections = dict(network=network, data=data, train=train, optimizer=self.optimizer(), schedule=self.schedule,
                             exchange=self.exchange(), sync=self.sync, checkpoint=dict(every_epochs=0, every_minutes=0),
                             metrics=dict(codec_error=r.random() < 0.3))

    def some(self, **choices):
        """Each key with probability 1/2, with one of its values."""
        return {key: self.random.choice(values) for key, values in choices.items() if self.random.random() < 0.5}

    def images(self):
        r = self.random
        size = r.choice([6, 8, 9])
        layers = ["{conv: conv1, filters: 8, kernel: 3, pad: 1, bias: %s}" % flow(r.random() < 0.5), self.norm("n1"), "{relu: r1}"]
        if r.random() < 0.5:
            layers += ["{conv: conv2, filters: 8, kernel: 3, pad: 1, bias: false, input: r1}", self.norm("n2"),
                       "{add: sum, input: [n2, r1]}", "{relu: r2}"]
        if r.random() < 0.3:
            layers.append("{dropout: d1, probability: 0.3}")
        layers += [r.choice(["average_pool", "{max_pool: pool, kernel: 2, stride: 2}"]), "flatten"]
        if r.random() < 0.3:
            layers += ["{dense: fc0, units: 24}", "{%s: act}" % r.choice(["tanh", "gelu", "silu"])]
        if r.random() < 0.3:
            layers.append("{dropout: d2, probability: 0.5}")
        network = f"{{name: images, input: [{size}, {size}, 3], classes: 5, layers: [{', '.join(layers)}, {{dense: fc, units: 5}}]}}"
        self.samples = self.batch * r.choice([3, 4, 7]) + r.randrange(self.batch)
        augment = self.some(pad=[1, 2], mirror=[True], jitter=[dict(brightness=0.2, hue=0.1)])
        data = dict(dataset="noise", image=[size, size, 3], classes=5, shuffle=r.random() < 0.8, augment=augment or "none",
                    train_samples=self.samples, test_samples=r.choice([1, 7, 23]))
        return network, data

    def norm(self, name):
        return self.random.choice(["{batch_norm: %s}", "{batch_norm: %s}", "{group_norm: %s, groups: 4}"]) % name

    def text(self, folder):
        """Random words: an LSTM, whose state is carried from piece to piece, or a transformer."""
        r = self.random
        words = random.Random(1)
        for name, lines in (("train.txt", 60), ("valid.txt", 12)):
            with open(os.path.join(folder, name), "w") as file:
                for _ in range(lines):
                    file.write(" ".join(words.choice("abcdefghijk") for _ in range(words.randrange(2, 9))) + "\n")
        if r.random() < 0.5:
            middle = "{lstm: lstm, cell: 8%s}" % r.choice(["", ", projection: 4"])
        else:
            middle = ("{position: place, frames: 16}, {layer_norm: ln}, {dense: qkv, units: 24}, {attention: at, heads: 2, causal: true}, "
                      "{add: sum, input: [at, place]}")
        dropout = r.choice(["", "{dropout: drop, probability: 0.2}, "])
        network = (f"{{name: text, input: [any], classes: 13, layers: [{{embedding: em, vocabulary: 13, dimension: 8}}, {middle}, {dropout}"
                   "{dense: out, units: 13}]}")
        data = dict(dataset="text", root=folder, shuffle=r.random() < 0.8, text=dict(train="train.txt", valid="valid.txt"))
        data["truncate"] = r.choice([3, 5])
        return network, data

    def rates(self):
        r = self.random
        schedule = dict(lr=0.05)
        if r.random() < 0.4:
            schedule["warmup_epochs"] = 1
            if r.random() < 0.5:
                schedule.update(lr_scaling=r.choice(["linear", "sqrt"]), lr_batch_size=4)
            else:
                schedule["warmup_from"] = 0.01
        decay = r.choice([None, {1: 0.5}, {1: 0.5, 2: 0.1}, dict(every=1, factor=0.5), dict(linear=0), dict(cosine=0.001)])
        if decay and (schedule.get("warmup_epochs", 0) < self.epochs or "every" in decay or 1 in decay):
            schedule["decay"] = decay
        if "adam" not in self.kind and r.random() < 0.3:
            schedule["momentum"] = {1: 0.5}
        return schedule, decay and ("every" in decay or 1 in decay)

    def optimizer(self):
        o = dict(kind=self.kind) | self.some(weight_decay=[1e-3], no_decay=[["bias", "norm"]], clip_norm=[0.5, 5], noise=[0.01])
        if "adam" in self.kind:
            return o | self.some(beta1=[0.8], eps=[1e-6])
        if self.kind == "lars":
            o |= self.some(trust=[0.01], lars_exclude=[["bias"]])
        return o | self.some(momentum=[0.0, 0.9], nesterov=[True], momentum_unit_gain=[True])

    def codec(self, local):
        r = self.random
        kind = r.choice(["none", "fp16", "bf16", "onebit", "qsgd", "qsgd", "qsgd", "sign", "topk", "dynamic8", "mx"])
        options = dict(kind=kind)
        if kind in ("none", "fp16", "bf16"):
            return options
        options |= self.some(bucket=[32, 64, 96, "tensor"], error_feedback=[True, False])
        if kind == "onebit" and r.random() < 0.3:
            options["bucket"] = "column"
        if kind == "qsgd":
            options |= self.some(bits=[2, 4, 8, 16], norm=["max", "l2"])
            if options.get("bits", 4) <= 8:
                options |= self.some(levels=["sign_magnitude", "interval", "exponential", "optimal"])
            else:
                options |= self.some(levels=["sign_magnitude", "interval"])
        if kind == "sign" and not local and r.random() < 0.3:
            options |= dict(majority=True, error_feedback=False)
        if kind == "topk":
            options["density"] = r.choice([0.05, 0.5, 1.0])
        if kind == "dynamic8":
            options |= self.some(type=["static_tree", "linear", "mantissa"])
        if kind == "mx":
            options |= self.some(element=["e2m1", "e4m3", "e5m2"], rounding=["nearest"])
        return options

    def exchange(self):
        r = self.random
        local = self.sync["kind"] != "every_step"
        e = dict(transport="threads", ranks=self.ranks, min_elements=r.choice(["auto", 0, 0, 20, 10**6]))
        if r.random() < 0.15:
            if self.sync["kind"] != "hierarchical_local_sgd":
                return e | dict(collective="allreduce", codec="none")
        elif r.random() < 0.3:
            e |= dict(collective="hierarchical",
                      ranks_per_block=r.choice([n for n in range(1, self.ranks + 1) if self.ranks % n == 0]))
        e["codec"] = self.codec(local)
        if r.random() < 0.4:
            e["rules"] = [dict(kind=r.choice(["conv", "dense", "bias", "norm"]), codec=self.codec(local))
                          for _ in range(r.choice([1, 2]))]
        if r.random() < 0.3:
            e["warmup_epochs"] = r.choice([0.3, 1, 1.5])
        return e

    def synchronisation(self):
        r = self.random
        kind = r.choice(["every_step"] * 4 + ["local_sgd"] * 2 + ["post_local_sgd", "hierarchical_local_sgd", "block_momentum"])
        sync = dict(kind=kind)
        if kind == "every_step":
            return sync
        sync["steps"] = r.choice([1, 2, 3, 4, 6])
        if "adam" not in self.kind and r.random() < 0.3:
            sync["reset_momentum"] = True
        if kind == "post_local_sgd":
            sync["from"] = "first_decay" if self.decays and r.random() < 0.5 else 1
        if kind == "hierarchical_local_sgd":
            sync |= dict(block_steps=r.choice([1, 2, 3]),
                         ranks_per_block=r.choice([n for n in range(1, self.ranks + 1) if self.ranks % n == 0]))
        if kind == "block_momentum":
            sync |= self.some(momentum=[0.0, 0.5], rate=[0.7], nesterov=[True])
        if kind in ("local_sgd", "block_momentum"):
            if r.random() < 0.4:
                fragments = r.choice([n for n in (1, 2, 3) if sync["steps"] % n == 0])
                delay = r.randrange(sync["steps"] // fragments)
                sync |= dict(fragments=fragments, delay=delay)
                if delay and r.random() < 0.5:
                    sync["mix"] = r.choice([0.0, 0.8])
            elif r.random() < 0.4:
                sync |= dict(warmup=r.choice(["constant", "linear", "exponential"]), warmup_epochs=r.choice([1, 2]))
        return sync

    def write(self, path):
        with open(path, "w") as file:
            for key, value in self.sections.items():
                file.write(f"{key}: {flow(value)}\n")

    def neutral(self):
        """Options that change no bit of the result."""
        r = self.random
        sets = {"data.workers": r.choice([1, 3]), "data.prefetch": r.choice([1, 5]),
                "exchange.overlap": r.choice(["true", "false"]), "train.recompute": r.choice(["none", "batch_norm"]),
                "checkpoint.every_steps": r.choice([0, 1, 3])}
        if r.random() < 0.3:
            sets["exchange.link"] = "{bandwidth: 1Gbit, latency: 100us}"
        return [f"--set={key}={value}" for key, value in sets.items()]


class Failure(Exception):
    pass


def train(config, out, *arguments, mpi=None):
    result = run("train", config, "--out", out, *arguments, ranks=mpi)
    if result.status:
        raise Failure(f"lpsgd train {config} --out {out} {' '.join(arguments)}\n{result}")
    return result


def records(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    return [{k: v for k, v in one.items() if k not in TIMES and not k.endswith("_s")} for one in lines]


def step_of(checkpoint):
    with open(os.path.join(checkpoint, "manifest.json")) as file:
        return json.load(file)["step"]


def last_checkpoint(folder):
    base = os.path.join(folder, "checkpoints")
    last = max(os.listdir(base), key=lambda name: (step_of(os.path.join(base, name)), name.startswith("epoch")))
    return os.path.join(base, last)


def compare(a, b, what, omit=()):
    first, second = last_checkpoint(a), last_checkpoint(b)
    if os.path.basename(first) != os.path.basename(second):
        raise Failure(f"{what}: ended with {first} and {second}")
    names = [sorted(n for n in os.listdir(c) if n.endswith(".safetensors")) for c in (first, second)]
    if names[0] != names[1]:
        raise Failure(f"{what}: files {names}")
    for name in names[0]:
        x, y = load(os.path.join(first, name)), load(os.path.join(second, name))
        if not equal(x, y):
            wrong = sorted(k for k in x.keys() | y.keys() if k not in x or k not in y or not (x[k] == y[k]).all())
            raise Failure(f"{what}: {name} differs in {wrong[:8]}\n  {first}\n  {second}")
    first, second = ([{k: v for k, v in one.items() if k not in omit} for one in records(f)] for f in (a, b))
    if first != second:
        for one, two in zip(first, second):
            for key in one.keys() | two.keys():
                if one.get(key) != two.get(key):
                    raise Failure(f"{what}: epoch {one['epoch']}: {key}: {one.get(key)} and {two.get(key)}\n  {a}\n  {b}")
        raise Failure(f"{what}: {len(first)} and {len(second)} records")


def check(seed, folder):
    made = Configuration(seed, folder)
    config = os.path.join(folder, "config.yaml")
    made.write(config)
    out = lambda name: os.path.join(folder, name)  # noqa: E731
    r = made.random
    train(config, out("plain"))
    train(config, out("neutral"), *made.neutral())
    compare(out("plain"), out("neutral"), "neutral options")
    own_sum = made.sections["exchange"].get("collective") == "allreduce"  # each transport's has an order of its own
    if r.random() < 0.5 and not own_sum:
        train(config, out("mpi"), "--set=exchange.transport=mpi", "--set=exchange.ranks=1", *made.neutral(), mpi=made.ranks)
        compare(out("plain"), out("mpi"), "MPI")
    steps = step_of(last_checkpoint(out("plain")))
    at = 0
    for _ in range(r.choice([1, 2])):
        at = r.randrange(at, steps + 1)
        train(config, out("resumed"), f"--steps={at}", "--resume", *made.neutral())
    train(config, out("resumed"), "--resume", *made.neutral())
    # Coding errors are those since the last resume.
    compare(out("plain"), out("resumed"), f"resumed after {at} of {steps} steps", omit=["codec_error"])


def main():
    first, count = (int(a) for a in sys.argv[1:3]) if len(sys.argv) > 2 else (0, 12)
    failed = 0
    for seed in range(first, first + count):
        folder = tempfile.mkdtemp(prefix=f"lpsgd-random-{seed}-")
        try:
            check(seed, folder)
            shutil.rmtree(folder, ignore_errors=True)
        except Failure as error:
            failed += 1
            print(f"seed {seed}: {error}\n  {open(os.path.join(folder, 'config.yaml')).read()}", flush=True)
    print(f"{count - failed} of {count} random runs agree ({LPSGD})")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
