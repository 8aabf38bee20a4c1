"""Small speech and text data sets for the command-line tests."""

import json
import math
import os
import struct

import numpy as np
from harness import Case

TEXT_NETWORK = """
name: tiny_text
input: [any]
classes: 12
layers:
  - {embedding: encoder, vocabulary: 12, dimension: 6}
  - {lstm: lstm1, cell: 8, projection: 5}
  - {lstm: lstm2, cell: 7}
  - {dense: decoder, units: 12}
"""

SPEECH_NETWORK = """
name: tiny_speech
input: [any, 99]
classes: 3
layers:
  - {lstm: lstm1, cell: 8, projection: 5}
  - {dense: fc, units: 3}
"""

CONFIG = """network: %(network)s.yaml
data: %(data)s
train: {epochs: 2, batch_size: %(batch)d, seed: 3, threads: 1, device: cpu}
optimizer: {momentum: 0.9, clip_norm: 1}
schedule: {lr: 0.3}
exchange: {transport: mpi, codec: {kind: none}}
checkpoint: {every_epochs: 1, keep: 3}
"""


def text(words, seed):
    """Lines of words in which each word depends on the one before."""
    random = np.random.default_rng(seed)
    word, lines = 0, []
    for _ in range(words):
        word = (3 * word + random.integers(0, 2)) % 10
        lines.append(f"w{word}" + ("\n" if random.integers(0, 8) == 0 else " "))
    return "".join(lines) + "\n"


class SequenceCase(Case):
    """A temporary folder with small networks, texts and recordings; `self.text` is a configuration."""

    def setUp(self):
        super().setUp()
        self.write("text.yaml", TEXT_NETWORK)
        self.write("speech.yaml", SPEECH_NETWORK)
        self.write("train.txt", text(700, 1))
        self.write("valid.txt", text(333, 2))
        self.text = self.config_of(
            "text", "{dataset: text, root: '.', truncate: 7, text: {train: train.txt, valid: valid.txt}}", batch=4)

    def config_of(self, network, data, batch):
        values = {"network": network, "batch": batch, "data": data.replace("'.'", f"'{self.dir}'")}
        return self.write(network + "_run.yaml", CONFIG % values)

    def write_speech(self, recordings=20):
        """A corpus in AN4's layout; each recording is as long as its number says."""
        for folder in ("etc", "cntk", "wav/corpus/train", "wav/corpus/held"):
            os.makedirs(self.path(folder), exist_ok=True)
        names, labels = [], ["#!MLF!#"]
        random = np.random.default_rng(5)
        for i in range(recordings):
            speaker = "held" if i % 5 == 0 else "train"
            name, frames = f"r{i}-{speaker}", 4 + 7 * i % 23
            names.append(f"corpus/{speaker}/{name}")
            half = frames // 2
            samples = []
            for t in range(160 * (frames + 2)):
                tone = 0.1 if t < 160 * half else 0.5 + 0.2 * (i % 2)
                samples.append(int(4000 * math.sin(tone * t) + random.integers(-50, 50)))
            with open(self.path("wav", names[-1] + ".raw"), "wb") as file:
                file.write(struct.pack(f">{len(samples)}h", *samples))
            labels += [f'"x/{name}.lab"', f"0 {half}00000 a", f"{half}00000 {frames}00000 {'bc'[i % 2]}", "."]
        self.write("etc/an4_train.fileids", "\n".join(names) + "\n")
        self.write("cntk/glob_0000.mlf", "\n".join(labels) + "\n")
        self.write("cntk/state.list", "a\nb\nc\n")
        options = "speech: {context: 1, features: filterbank, held_out: [held]}"
        return self.config_of("speech", "{dataset: an4, root: '.', %s}" % options, batch=4)

    def json(self, result):
        self.assertEqual(result.status, 0, result)
        return json.loads(result.out)

    def records(self, out, *arguments, **options):
        return self.metrics(self.train(out, *arguments, **options))

    def assert_same(self, a, b, keys, places=4):
        self.assertEqual(len(a), len(b))
        for one, other in zip(a, b):
            for key in keys:
                self.assertAlmostEqual(one[key], other[key], places, f"{key} of epoch {one['epoch']}")
