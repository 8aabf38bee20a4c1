"""What the program says of itself: help, hints at misspelled words, the reference page and the schema."""

import glob
import json
import os
import re
import unittest

from harness import CONFIG, SOURCE, Case, run

try:
    import jsonschema
    import yaml
except ImportError:
    jsonschema = None


def read(*names):
    with open(os.path.join(SOURCE, *names)) as file:
        return file.read()


class CommandLine(Case):
    def refused(self, arguments, expected, ranks=None):
        result = run(*arguments, ranks=ranks)
        self.assertEqual(result.status, 2, result)
        self.assertEqual((result.out, result.err), ("", f"lpsgd: error: {expected}\n"))

    def test_a_misspelled_command(self):
        commands = ("commands: train, show, eval, infer, export, quantize, data, checkpoint, bench, predict, study, report, "
                    "import, doctor, help, version")
        self.refused(["trian", self.config], f"no command 'trian', did you mean 'train'?; {commands}")
        self.refused(["trian", self.config], f"no command 'trian', did you mean 'train'?; {commands}", ranks=3)
        self.refused(["fly"], f"no command 'fly'; {commands}")
        self.refused([], f"lpsgd needs a command; {commands}")
        self.refused(["bench", "codex"], "no command 'bench codex', did you mean 'codec'?; commands: codec, exchange, layers, loader")
        self.refused(["bench"], "lpsgd bench needs a command; commands: codec, exchange, layers, loader")

    def test_a_misspelled_option(self):
        for arguments, command, option, near in (
            (["train", self.config, "--resum"], "train", "--resum", "--resume"),
            (["train", "--sett", "a=b"], "train", "--sett", "--set"),
            (["train", self.config, "--step=3"], "train", "--step", "--steps"),
            (["show", self.config, "--jsn"], "show", "--jsn", "--json"),
            (["bench", "exchange", "--link-speed", "1"], "bench exchange", "--link-speed", None),
            (["bench", "codec", "--codecs", "none"], "bench codec", "--codecs", "--codec"),
        ):
            hint = f", did you mean '{near}'?" if near else ""
            self.refused(arguments, f"{command}: no option '{option}'{hint}; 'lpsgd {command} --help' lists the options")

    def test_other_mistakes_name_the_command(self):
        self.refused(["train"], "train: config is required; 'lpsgd train --help' lists the options")
        self.refused(["show", self.config, "more"], "show: unexpected 'more'; 'lpsgd show --help' lists the options")
        for mode in ("loud", "7"):
            self.refused(["train", self.config, "--progress", mode],
                         f"train: --progress: expected auto, plain, terminal or none, got '{mode}'; "
                         "'lpsgd train --help' lists the options")
        self.refused(["train", self.config, "--resume-required"],
                     "train: --resume-required requires --out; 'lpsgd train --help' lists the options")


class Help(Case):
    def help(self, *words):
        result = run("help", *words)
        self.assertEqual((result.status, result.err), (0, ""), result)
        return result.out

    def test_alone_it_is_the_usage(self):
        text = self.help()
        for word in ("train", "quantize", "--version", "lpsgd help KEY", "exchange", "how ranks average their gradients"):
            self.assertIn(word, text)

    def test_a_key(self):
        self.assertEqual(self.help("train.batch_size"),
                         "train.batch_size: samples per step, of all ranks together; a multiple of the number of ranks. "
                         "A table gives it for each number of ranks that the run may have\n"
                         "  an integer from 1 to 1000000000, or {ranks: integer, ...}; default: 128\n")
        self.assertEqual(self.help("exchange.codec.bits"), "exchange.codec.bits: bits per value; `bucket` is by default 128 with 2 bits, 8192 with 16, else 512\n"
                         "  2, 4, 8, 16; default: 4\n")
        self.assertIn("dataset: ", self.help("data.dataset"))
        self.assertIn("; required\n", self.help("data.dataset"))
        for key in ("exchange.rules.kind", "exchange.rules[0].kind"):
            self.assertEqual(self.help(key), f"{key}: tensors of this kind\n"
                             "  conv, dense, norm, bias, lstm, embedding; default: none\n")

    def test_a_key_of_several_codecs(self):
        text = self.help("exchange.codec.bucket")
        self.assertIn("exchange.codec.bucket (kind: onebit): ", text)
        self.assertIn("exchange.codec.bucket (kind: qsgd): ", text)

    def test_a_section(self):
        text = self.help("exchange")
        self.assertTrue(text.startswith("exchange: how ranks average their gradients\n"), text)
        for key in ("transport", "codec", "rules", "link"):
            self.assertRegex(text, rf"\n  {key} ")
        text = self.help("exchange.codec")
        for word in ("with kind: qsgd", "with kind: topk", "density"):
            self.assertIn(word, text)

    def test_a_word_that_is_a_section_and_a_command(self):
        self.assertIn("batch_size", self.help("train"))
        self.assertIn("lpsgd train --help", self.help("train"))
        self.assertEqual(self.help("show"), run("show", "--help").out)

    def test_what_there_is_not(self):
        for word, near in (("exchange.codec.bit", "exchange.codec.bits"), ("exchnge", "exchange"), ("trian", "train"),
                           ("batch_size", "train.batch_size"), ("zzzz", None)):
            result = run("help", word)
            self.assertEqual((result.status, result.out), (2, ""), result)
            hint = f", did you mean '{near}'?" if near else ""
            self.assertEqual(result.err, f"lpsgd: error: help: no key or command '{word}'{hint}; 'lpsgd help' lists them\n")


class Reference(Case):
    def test_the_page_is_current(self):
        page = read("docs", "configuration.md")
        generated = re.search(r"<!-- generated: begin -->\n(.*)<!-- generated: end -->", page, re.DOTALL).group(1)
        self.assertEqual(generated, run("help", "--markdown").out, "run scripts/update-reference")

    def test_the_schema_is_current(self):
        self.assertEqual(read("configs", "schema.json"), run("help", "--schema").out, "run scripts/update-reference")

    def test_every_key_of_a_resolved_configuration_is_explained(self):
        folder = self.train("out", "--steps", "0", "--set", "exchange.transport=threads", ranks=None)
        with open(os.path.join(folder, "config.yaml")) as file:
            section, keys = None, []
            for line in file:
                word = re.match(r"( *)(\w+):", line)
                if word and not word[1]:
                    section = word[2]
                elif word and len(word[1]) == 2 and section != "network":
                    keys.append(f"{section}.{word[2]}")
        self.assertGreater(len(keys), 30)
        page = read("docs", "configuration.md")
        for key in keys:
            self.assertIn(f"| `{key}` |", page)


@unittest.skipUnless(jsonschema, "python3-jsonschema or python3-yaml is not installed")
class Schema(Case):
    @classmethod
    def setUpClass(cls):
        schema = json.loads(read("configs", "schema.json"))
        jsonschema.Draft7Validator.check_schema(schema)
        cls.validator = jsonschema.Draft7Validator(schema)

    def errors(self, text):
        def with_text_keys(value):  # JSON has no others
            if isinstance(value, dict):
                return {str(k): with_text_keys(v) for k, v in value.items()}
            return [with_text_keys(v) for v in value] if isinstance(value, list) else value

        return [e.message for e in self.validator.iter_errors(with_text_keys(yaml.safe_load(text)))]

    def test_every_configuration_is_valid_and_names_the_schema(self):
        for folder, least, schema in (("configs", 10, "schema.json"), ("configs/study", 7, "../schema.json")):
            paths = sorted(glob.glob(os.path.join(SOURCE, folder, "*.yaml")))
            self.assertGreaterEqual(len(paths), least)
            for path in paths:
                text = read(folder, os.path.basename(path))
                self.assertEqual(self.errors(text), [], path)
                self.assertIn(f"\n# yaml-language-server: $schema={schema}\n", text, path)

    def test_a_resolved_configuration_is_valid(self):
        folder = self.train("out", "--steps", "0")
        with open(os.path.join(folder, "config.yaml")) as file:
            self.assertEqual(self.errors(file.read()), [])

    def test_it_takes_what_the_program_takes(self):
        for change, is_allowed in (
            ("train.batch_size=32", True), ("train.batch_size=0", False), ("train.batch_size=many", False),
            ("train.batch_size={1: 32, 2: 64}", True), ("train.batch_size={1: 0}", False), ("train.batch_size={two: 64}", False),
            ("schedule.decay={linear: 0}", True), ("schedule.decay={linear: -1}", False),
            ("schedule.decay={linear: 0, 3: 0.1}", False), ("schedule.momentum={0: 0, 1: 0.9}", True),
            ("schedule.momentum={1: 2}", False), ("optimizer.momentum_unit_gain=true", True),
            ("train.batchsize=32", False), ("train=", True), ("data=", False), ("network=", False), ("schedule.lr=0", True), ("schedule.lr=-1", False),
            ("exchange.codec=onebit", True), ("exchange.codec=onebits", False), ("exchange.codec={bits: 4}", False),
            ("exchange.codec={kind: qsgd, bits: 8}", True), ("exchange.codec={kind: qsgd, bits: 3}", False),
            ("exchange.codec={kind: onebit, bits: 4}", False), ("exchange.codec={kind: onebit, bucket: column}", True),
            ("exchange.codec={kind: qsgd, bucket: column}", False), ("exchange.codec={kind: qsgd, bucket: 33}", False),
            ("exchange.codec={kind: topk, density: 0}", False), ("exchange.codec={kind: topk, density: 1}", True),
            ("exchange.min_elements=auto", True), ("exchange.min_elements=-1", False),
            ("exchange.rules=[{name: fc.*, kind: dense, codec: none}]", True), ("exchange.rules=[{name: fc.*}]", False),
            ("exchange.rules=[{kind: dnse, codec: none}]", False), ("exchange.device_pointers=true", True),
            ("exchange.link={bandwidth: 1Gbit, latency: 5 us}", True), ("exchange.link={bandwidth: 1}", False),
            ("data.augment=none", True), ("data.augment={pad: 2}", True), ("data.augment={pda: 2}", False),
            ("data.augment=all", False), ("optimizer.no_decay=[norm]", True), ("optimizer.no_decay=[nrm]", False),
            ("schedule.decay={}", True), ("schedule.decay={3: 0.1}", True), ("schedule.decay={3: 0}", False),
            ("schedule.decay={every: 2, factor: 0.9}", True), ("schedule.decay={every: 2}", False),
            ("schedule.decay={x: 0.1}", False), ("sync.kind=every_step", True), ("sync.kind=never", False),
        ):
            with self.subTest(change):
                tree = yaml.safe_load(CONFIG)
                key, _, value = change.partition("=")
                *sections, last = key.split(".")
                inner = tree
                for section in sections:
                    inner = inner.setdefault(section, {})
                inner[last] = yaml.safe_load(value)
                self.assertEqual(self.errors(yaml.safe_dump(tree)) == [], is_allowed)
                result = run("show", self.config, "--set", change)
                self.assertEqual(result.status, 0 if is_allowed else 2, result)


if __name__ == "__main__":
    unittest.main(verbosity=2)
