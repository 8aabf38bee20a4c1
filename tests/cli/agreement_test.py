"""Ranks that were started differently: another configuration, command or option, or other data. All end with 2."""

import concurrent.futures
import itertools
import json
import os
import re
import shutil
import subprocess
import unittest

from harness import CONFIG, LPSGD, MPIRUN, NETWORK, Case, Result, run

# What the schema does not tell: settings of both ranks with which the other rank's value is legal, too, and that value.
# Without a value (no "=") the schema gives one. A pair is a key and a setting that changes it. Keys that are not here
# are set by themselves, to a value of the schema's.
GIVEN = [
    ([], ["network=other_network.yaml", "checkpoint.keep=5", "data.augment=none", "data.augment.mirror=false", "data.augment.pad=3",
          "data.dataset=noise", "data.evaluate={resize: 40}", "data.image=[8, 8, 3]", "data.mean=[0.1, 0.1, 0.1]",
          "data.std=[0.5, 0.5, 0.5]", "data.speech.held_out=[x]", "exchange.codec=onebit", "exchange.collective=simulated",
          "exchange.min_elements=7", "exchange.timeout=5min", "exchange.timeout_outside_step=1h",
          "exchange.rules=[{kind: conv, codec: none}]", "optimizer.no_decay=[bias]", "schedule.decay={1: 0.2}",
          "schedule.momentum={1: 0.5}", ("sync.kind", "sync={kind: local_sgd, steps: 2}"), "train.batch_size=48",
          "train.device=auto", "train.epochs=3", "train.freeze=[conv1, bn1]", "train.micro_batches=2", "train.seed=4", "train.threads=2"]),
    (["data.augment={mirror: true}"], ["data.augment.crop={kind: random_resized}"]),
    (["data.augment={crop: {kind: random_resized}}"],
     [("data.augment.crop.kind", "data.augment.crop={kind: side_ratio, ratio: 0.5}"), "data.augment.crop.area=[0.5, 1]",
      "data.augment.crop.aspect=[0.5, 1]"]),
    (["data.augment={crop: {kind: side_ratio, ratio: [0.5, 1]}}"], ["data.augment.crop.ratio=[0.25, 1]"]),
    (["data.evaluate={resize: 40}"], ["data.evaluate.resize=48"]),
    (["data.evaluate={side_ratio: 0.5}"], ["data.evaluate.side_ratio=0.75"]),
    (["exchange.collective=hierarchical"], ["exchange.ranks_per_block=1"]),
    (["exchange.codec={kind: qsgd}"], [("exchange.codec.kind", "exchange.codec={kind: sign}")]),
    (["exchange.link={bandwidth: 1Gbit}"], ["exchange.link.bandwidth=2Gbit", "exchange.link.latency=5us", "exchange.link.burst=1MB"]),
    (["exchange.inject={step: 3}"], ["exchange.inject.step=4", "exchange.inject.rank", "exchange.inject.tensor=fc.weight",
                                     "exchange.inject.element", "exchange.inject.bit"]),
    (["exchange.rules=[{name: conv1.weight, kind: conv, codec: {kind: none}}]"],
     [("exchange.rules[0].name", "exchange.rules=[{name: conv2.weight, kind: conv, codec: {kind: none}}]"),
      ("exchange.rules[0].kind", "exchange.rules=[{name: conv1.weight, kind: dense, codec: {kind: none}}]"),
      ("exchange.rules[0].codec", "exchange.rules=[{name: conv1.weight, kind: conv, codec: onebit}]"),
      ("exchange.rules[0].codec.kind", "exchange.rules=[{name: conv1.weight, kind: conv, codec: {kind: onebit}}]")]),
    (["optimizer={kind: lars}"], ["optimizer.trust", "optimizer.lars_exclude=[bias]"]),
    (["optimizer={kind: adam}"], ["optimizer.kind=adamw", "optimizer.beta1", "optimizer.beta2", "optimizer.eps"]),
    (["schedule.lr_scaling=linear"], ["schedule.lr_batch_size"]),
    (["schedule.decay={every: 1, factor: 0.5}"], ["schedule.decay.every=2", "schedule.decay.factor=0.25"]),
    (["schedule.decay={linear: 0.01}"], ["schedule.decay.linear=0.02"]),
    (["schedule.decay={cosine: 0.01}"], ["schedule.decay.cosine=0.02"]),
    (["sync={kind: block_momentum, steps: 4}"], ["sync.steps=8", "sync.momentum", "sync.rate", "sync.nesterov", "sync.fragments",
                                                 "sync.delay", "sync.reset_momentum", "sync.distance"]),
    (["sync={kind: block_momentum, steps: 4, delay: 1}"], ["sync.mix"]),
    (["sync={kind: local_sgd, steps: 4, warmup: linear, warmup_epochs: 1}"], ["sync.warmup=exponential", "sync.warmup_epochs=2"]),
    (["sync={kind: post_local_sgd, steps: 4}"], ["sync.from=3"]),
    (["sync={kind: hierarchical_local_sgd, steps: 4}"], ["sync.block_steps", "sync.ranks_per_block=2"]),
]
# Keys with one legal value here: the other rank's is refused before anything is compared.
ONE_VALUE = {
    "exchange.ranks": "2",  # is for the transport threads, which mpirun cannot start
    "exchange.transport": "threads",  # as above; and nccl needs a GPU for each rank
    "train.compute": "tf32",  # tf32 and bf16 are arithmetic of GPUs
}


def other_value(key, schema):
    """One that is not the default."""
    default = schema.get("default")
    words = [str(value).lower() for value in schema.get("enum", []) if value not in (default, "auto")]
    if words and len(schema["enum"]) > 1:
        return words[0]
    if schema.get("type") == "boolean":
        return str(not default).lower()
    if schema.get("type") == "string" and "pattern" not in schema:
        return "elsewhere"
    if schema.get("type") == "number":
        return "0.125"
    for number in schema.get("anyOf", [schema]):  # or a word and a number
        if number.get("type") == "integer" and "default" in schema:
            return str(default + number.get("multipleOf", 1) if isinstance(default, int) else number["minimum"])
    raise AssertionError(f"{key}: give a value in GIVEN")


def leaves(schema, definitions, key="", kind=None):
    """Each key with its schema and, if kinds have keys of their own, the kind that it belongs to."""
    for part in schema.get("allOf", []):
        schema = {**schema, **definitions[part["$ref"].rsplit("/", 1)[1]]}
    if "properties" not in schema:
        yield key, schema, kind
    if "properties" in schema.get("items", {}):
        yield from leaves(schema["items"], definitions, key + "[0]")
    for alternative in [schema, *schema.get("anyOf", [])]:
        inner = alternative.get("properties", {})
        kinds = inner.get("kind", {}).get("enum", []) if alternative is not schema else []
        for name in inner:
            yield from leaves(inner[name], definitions, f"{key}.{name}" if key else name, kinds[0] if kinds else None)


def cases(schema):
    """(key, settings of both ranks, what is set on rank 1)"""
    given = {}
    for both, keys in GIVEN:
        for entry in keys:
            key, setting = entry if isinstance(entry, tuple) else (entry.split("=")[0], entry)
            assert key not in given, key
            given[key] = both, setting
    found = set()
    for key, inner, kind in leaves(schema, schema["definitions"]):
        section, _, name = key.rpartition(".")
        if key in found and (section != "exchange.codec" or key in given):
            continue  # a key of several kinds: the codec's options differ, of others one is enough
        found.add(key)
        if key in given:
            both, setting = given[key]
            yield key, both, setting if "=" in setting else f"{key}={other_value(key, inner)}"
        elif key in ONE_VALUE:
            yield key, [], f"{key}={ONE_VALUE[key]}"
        elif section == "exchange.rules[0].codec":
            yield (key, [f"exchange.rules=[{{codec: {{kind: {kind}}}}}]"],
                   f"exchange.rules=[{{codec: {{kind: {kind}, {name}: {other_value(key, inner)}}}}}]")
        else:
            yield key, [f"{section}={{kind: {kind}}}"] if kind else [], f"{key}={other_value(key, inner)}"
    unknown = {*given, *ONE_VALUE} - found
    assert not unknown, f"no keys of the schema: {unknown}"


def together(all_cases, most=6):
    """Cases with the same settings of both ranks, as many as a message names; none of a group's keys holds another."""
    groups = []
    for case in all_cases:
        key, settings, _ = case
        for other_settings, group in groups:
            keys = [other for other, _, _ in group]
            holds = any((key + ".").startswith(other + ".") or (other + ".").startswith(key + ".") for other in keys)
            if settings == other_settings and len(group) < most and not holds and not {key, *keys} & {*ONE_VALUE}:
                group.append(case)
                break
        else:
            groups.append((settings, [case]))
    return groups


def apart(first, second, programs=(LPSGD, LPSGD), cwd=None):
    """Two ranks with arguments of their own."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [MPIRUN, "-n", "1", programs[0], *first, ":", "-n", "1", programs[1], *second]
    return Result(subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment, cwd=cwd))


class Disagreement(Case):
    def setUp(self):
        super().setUp()
        self.write("other_network.yaml", NETWORK.replace("filters: 16", "filters: 12"))
        self.start = ["train", self.config, "--out", self.path("out")]

    def refused(self, result, *expected, out="out"):
        self.assertEqual(result.status, 2, result)
        self.assertEqual(result.err.count("lpsgd: error:"), 1, result)
        for text in expected:
            self.assertIn(text, result.err)
        self.assertFalse(os.path.exists(self.path(out)), "nothing may start")

    def test_every_key_of_the_configuration(self):
        all_cases = list(cases(json.loads(run("help", "--schema").out)))
        all_cases += [("network.parameters.activation", [], "network.parameters.activation=tanh"),
                      ("exchange.inject", [], "exchange.inject={step: 3}"), ("exchange.link", [], "exchange.link={latency: 5us}")]
        self.assertGreater(len(all_cases), 140)
        outs = itertools.count()

        def started(settings, *own):
            """Rank 1 has settings of its own as well. A key that holds others shows itself in them."""
            out = f"out{next(outs)}"
            start = ["train", self.config, "--out", self.path(out)]
            both, one = ([word for setting in of for word in ("--set", setting)] for of in (settings, own))
            result = apart([*start, *both], [*start, *both, *one])
            named = re.match(r"lpsgd: error: the ranks disagree on (\S+): .+ on rank 0, .+ on rank 1(?:; also on (.+))?\n\Z", result.err)
            names = [named[1], *(named[2] or "").split(", ")] if named else []
            return result, out, lambda key: any(re.fullmatch(rf"{re.escape(key)}(?:[.\[]\S*)?", name) for name in names)

        def few(settings, of):
            """Several keys at once, and one at a time where that is an error of another kind or too many differ."""
            result, out, names = started(settings, *(own for _, _, own in of))
            if len(of) > 1 and not all(names(key) for key, _, _ in of):
                return [answer for one in of for answer in few(settings, [one])]
            return [(key, settings, own, result, out, names(key)) for key, _, own in of]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(few, settings, of) for settings, of in together(all_cases)]
        answered = [one for answer in answers for one in answer.result()]
        self.assertEqual(sorted(key for key, *_ in answered), sorted(key for key, *_ in all_cases))
        for key, settings, own, result, out, is_named in answered:
            with self.subTest(key=key, shared=settings, own=own):
                self.refused(result, key, out=out)
                self.assertEqual(is_named, key not in ONE_VALUE, result)
                self.assertEqual("the ranks disagree on" in result.err, key not in ONE_VALUE, result)

    def test_the_message_has_both_values(self):
        result = apart(self.start, [*self.start, "--set", "schedule.lr=0.1", "--set", "train.seed=4"])
        self.refused(result, "lpsgd: error: the ranks disagree on train.seed: 3 on rank 0, 4 on rank 1; also on schedule.lr\n")

    def test_options(self):
        for option in (["--steps", "1"], ["--resume"], ["--trace", self.path("trace")]):
            with self.subTest(option=option):
                self.refused(apart(self.start, [*self.start, *option]), f"the ranks disagree on {option[0]}: ")
        self.refused(apart(self.start, ["train", self.config, "--out", self.path("elsewhere")]), "the ranks disagree on --out")
        first = self.train("first", "--steps", "0", ranks=1)
        self.refused(apart([*self.start, "--init", first, "--init-skip", "fc"], [*self.start, "--init", first, "--init-skip", "bn1,fc"]),
                     "the ranks disagree on --init-skip: fc on rank 0, bn1,fc on rank 1")
        result = apart([*self.start, "--steps", "1"], [*self.start, "--steps", "1", "--progress", "none"])
        self.assertEqual(result.status, 0, result)

    def test_commands(self):
        for other in (["show", self.config], ["version"], ["--help"], ["bench", "exchange"]):
            for order in ((self.start, other), (other, self.start)):
                with self.subTest(order=order):
                    name = {"--help": "--help or --version"}.get(other[0], " ".join(w for w in other if w != self.config))
                    values = [name, "train"] if order[0] == other else ["train", name]
                    self.refused(apart(*order), "the ranks disagree on the command: "
                                                f"{values[0]} on rank 0, {values[1]} on rank 1")
        self.refused(apart(self.start, ["trian"]), "rank 1: no command 'trian'")
        result = run("show", self.config, ranks=2)
        self.assertEqual(result.status, 0, result)

    def images(self, root, shade):
        for split in ("train", "val"):
            for number in range(24):
                folder = self.path(root, split, "ab"[number % 2])
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"{number:02}.ppm"), "wb") as file:
                    file.write(b"P6\n32 32\n255\n" + bytes([shade if number == 5 else number]) * (32 * 32 * 3))

    def test_builds(self):
        """The same program, with the revision that it was built from changed in a copy."""
        revision = re.search(r"\(([0-9a-f]{12})", run("version").out)
        if not revision:
            self.skipTest("the program was built outside a repository")
        with open(LPSGD, "rb") as file:
            program = file.read()
        self.assertGreater(program.count(revision[1].encode()), 0)
        other = self.path("lpsgd")
        with open(other, "wb") as file:
            file.write(program.replace(revision[1].encode(), b"0123456789ab"))
        os.chmod(other, 0o755)
        self.assertIn("(0123456789ab", subprocess.run([other, "version"], capture_output=True, text=True, timeout=30).stdout)
        for programs in ((LPSGD, other), (other, LPSGD)):
            result = apart(self.start, self.start, programs)
            self.refused(result, "lpsgd: error: the ranks disagree on the revision of lpsgd: ", f"{revision[1]}", "0123456789ab")

    def test_data(self):
        self.write("two.yaml", NETWORK.replace("classes: 10", "classes: 2").replace("units: 10", "units: 2"))
        config = self.write("images.yaml", CONFIG.replace("tiny_network", "two").replace(
            "dataset: shapes", "dataset: images").replace("{pad: 2, mirror: true}", "none").replace(", train_samples: 96, test_samples: 50", ""))
        for root, shade in (("here", 1), ("mounted", 1), ("other", 2)):
            self.images(root, shade)
        start = ["train", config, "--out", self.path("out"), "--steps", "1", "--set"]
        here = [*start, f"data.root={self.path('here')}"]
        self.refused(apart(here, [*start, f"data.root={self.path('other')}"]),
                     "the ranks disagree on the checksum of the content of the training data: ",
                     "also on the checksum of the content of the test data")
        for root in ("mounted", "mounted/", "mounted//"):
            result = apart(here, [*start, f"data.root={self.path(root)}"])
            self.assertEqual(result.status, 0, result)
            shutil.rmtree(self.path("out"))
        os.mkdir(self.path("a"))  # a letter of "sample", which a shard's samples are called
        for split in ("train", "test"):
            result = run("data", "pack", config, "--set", f"data.root={self.path('here')}", "--split", split, "--out",
                         self.path("a", split + ".shard"))
            self.assertEqual(result.status, 0, result)
        for first, second in (("a", "a/"), ("a/", self.path("a"))):
            result = apart([*start, f"data.shards={first}"], [*start, f"data.shards={second}"], cwd=self.dir)
            self.assertEqual(result.status, 0, result)
            shutil.rmtree(self.path("out"))


if __name__ == "__main__":
    unittest.main()
