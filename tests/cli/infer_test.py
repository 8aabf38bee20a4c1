"""lpsgd infer: images classified by a run. The probabilities are compared with those of the exported ONNX model,
run by the definitions of its operators, from the same pixels."""

import json
import os
import shutil
import sys
import unittest
from pathlib import Path

import harness
import numpy as np
from harness import SOURCE, Case, run

sys.path.insert(0, os.path.join(SOURCE, "tests", "nn"))
try:
    import onnx
    from onnx_reference import evaluate
    from PIL import Image
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CIFAR = "airplane automobile bird cat deer dog frog horse ship truck".split()
MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])


def pictures(count, seed):
    """(count, 32, 32, 3) with a colour for each of ten classes, and noise; and the labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    colours = np.random.default_rng(1).uniform(40, 215, (10, 3))
    return np.clip(colours[labels][:, None, None] + rng.normal(0, 40, (count, 32, 32, 3)), 0, 255).astype(np.uint8), labels


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Infer(Case):
    """A run on pictures in CIFAR-10's files."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("cifar"))
        for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
            images, labels = pictures(40, i)
            records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(40, -1)], axis=1)
            Path(self.path("cifar", name + ".bin")).write_bytes(records.astype(np.uint8).tobytes())
        config = self.write("cifar.yaml", f"""network: tiny_network.yaml
data: {{dataset: cifar10, root: "{self.path("cifar")}", augment: {{pad: 2, mirror: true}}}}
train: {{epochs: 2, batch_size: 20, seed: 3, threads: 1, device: cpu}}
schedule: {{lr: 0.05}}
exchange: {{transport: mpi, codec: {{kind: none}}}}
checkpoint: {{every_epochs: 1, keep: 3}}
""")
        self.folder = self.train("run", config=config, ranks=1)
        self.images, self.labels = pictures(40, 5)  # of the test set
        self.files = []
        os.mkdir(self.path("png"))
        for i, image in enumerate(self.images):
            self.files.append(self.path("png", f"{i:03}.png"))
            Image.fromarray(image).save(self.files[-1])

    def infer(self, *arguments, status=0):
        result = run("infer", self.folder, *arguments)
        self.assertEqual(result.status, status, result)
        return result

    def infer_json(self, *arguments, status=0):
        return json.loads(self.infer(*arguments, "--json", status=status).out)

    def test_probabilities_are_those_of_the_exported_model(self):
        onnx_file = self.path("model.onnx")
        result = run("export", self.folder, "--onnx", onnx_file)
        self.assertEqual(result.status, 0, result)
        model = onnx.load(onnx_file)
        meta = {p.key: p.value for p in model.metadata_props}
        self.assertEqual(json.loads(meta["classes"]), CIFAR)
        np.testing.assert_allclose(json.loads(meta["mean"]), MEAN)
        np.testing.assert_allclose(json.loads(meta["std"]), STD)
        self.assertEqual((meta["epoch"], meta["step"]), ("2", "20"))
        x = (self.images / 255.0 - MEAN) / STD
        expected = softmax(evaluate(model, {"input": x.transpose(0, 3, 1, 2)})["scores"])
        found = self.infer_json(self.path("png"), "--top", 10)
        self.assertEqual(found["checkpoint"], os.path.join(self.folder, "checkpoints", "epoch-0002"))
        self.assertEqual([one["image"] for one in found["images"]], self.files)
        for one, row in zip(found["images"], expected):
            by_class = {c["class"]: c["probability"] for c in one["classes"]}
            np.testing.assert_allclose([by_class[c] for c in range(10)], row, rtol=1e-4, atol=1e-7)
            self.assertEqual([c["name"] for c in one["classes"]], [CIFAR[c["class"]] for c in one["classes"]])
            self.assertEqual(sorted(by_class.values(), reverse=True), [c["probability"] for c in one["classes"]])
        hits = np.mean([one["classes"][0]["class"] for one in found["images"]] == self.labels)
        self.assertAlmostEqual(100 * hits, self.metrics(self.folder)[-1]["val_top1"], places=3)

    def test_text_says_the_same(self):
        found = self.infer_json(self.files[0], self.files[7])["images"]
        lines = []
        for one in found:
            self.assertEqual(len(one["classes"]), 5)
            lines.append(one["image"])
            lines += [f"  {100 * c['probability']:6.2f} %  {c['name']}" for c in one["classes"]]
        self.assertEqual(self.infer(self.files[0], self.files[7]).out.splitlines(), lines)

    def test_a_checkpoint_may_be_chosen(self):
        first = self.infer_json(self.files[0], "--checkpoint", "epoch-0001")
        self.assertTrue(first["checkpoint"].endswith("epoch-0001"))
        file = os.path.join(self.folder, "checkpoints", "epoch-0001", "model.safetensors")
        self.assertEqual(self.infer_json(self.files[0], "--checkpoint", file)["images"], first["images"])
        self.assertNotEqual(self.infer_json(self.files[0])["images"], first["images"])
        self.assertIn("epoch-0009: no such checkpoint",
                      self.infer(self.files[0], "--checkpoint", "epoch-0009", status=1).err)

    def test_only_the_model_is_read(self):
        """Not the other ranks' states, which may be many gigabytes."""
        for name in ("epoch-0001", "epoch-0002"):
            os.truncate(os.path.join(self.folder, "checkpoints", name, "state-rank0000.safetensors"), 10)
        self.assertTrue(self.infer_json(self.files[0])["checkpoint"].endswith("epoch-0002"))
        os.truncate(os.path.join(self.folder, "checkpoints", "epoch-0002", "model.safetensors"), 10)
        self.assertTrue(self.infer_json(self.files[0])["checkpoint"].endswith("epoch-0001"))

    def test_a_file_beside_the_exported_one_stays(self):
        mine = Path(self.write("m.onnx.new", "mine"))
        result = run("export", self.folder, "--onnx", self.path("m.onnx"))
        self.assertEqual(result.status, 0, result)
        self.assertEqual(mine.read_text(), "mine")

    def test_other_sizes_and_grey(self):
        image = Image.fromarray(self.images[0])
        image.resize((96, 96), Image.NEAREST).save(self.path("large.png"))
        wide = np.zeros((96, 160, 3), np.uint8)  # the centre counts
        wide[:, 32:128] = np.asarray(image.resize((96, 96), Image.NEAREST))
        Image.fromarray(wide).save(self.path("wide.png"))
        image.convert("L").save(self.path("grey.png"))
        image.convert("L").convert("RGB").save(self.path("grey_rgb.png"))
        names = ["large", "wide", "grey", "grey_rgb"]
        small, *found = self.infer_json(self.files[0], *(self.path(n + ".png") for n in names), "--top", 10)["images"]
        p = [np.array([c["probability"] for c in sorted(one["classes"], key=lambda c: c["class"])])
             for one in (small, *found)]
        np.testing.assert_allclose(p[1], p[2], atol=1e-6)
        np.testing.assert_allclose(p[0], p[1], atol=0.05)  # the resized image is nearly the same
        np.testing.assert_allclose(p[3], p[4], atol=1e-6)

    def test_an_image_that_cannot_be_read_stops_no_other(self):
        self.write("bad.png", "no image")
        result = self.infer(self.files[0], self.path("bad.png"), self.path("none.png"), self.files[1], status=1)
        self.assertIn(self.files[0], result.out)
        self.assertIn(self.files[1], result.out)
        self.assertNotIn("bad.png", result.out)
        errors = result.err.splitlines()
        self.assertEqual(len(errors), 2, result)
        self.assertIn("bad.png", errors[0])
        self.assertIn("none.png", errors[1])
        found = self.infer_json(self.files[0], self.path("bad.png"), self.files[1], status=1)["images"]
        self.assertEqual([list(one) for one in found], [["image", "classes"], ["image", "error"], ["image", "classes"]])

    def test_the_data_set_is_not_needed(self):
        before = self.infer_json(self.files[0])
        shutil.rmtree(self.path("cifar"))
        self.assertEqual(self.infer_json(self.files[0]), before)
        os.remove(os.path.join(self.folder, "environment.json"))  # an older version's has no names
        self.assertEqual(self.infer_json(self.files[0]), before)

    def test_class_names_that_do_not_fit(self):
        Path(self.folder, "environment.json").write_text('{"classes": ["one", "two"]}')
        result = self.infer(self.files[0])
        self.assertIn("class ", result.out)
        self.assertIn("names of 2 classes, but the network has 10", result.err)

    def test_mistakes(self):
        self.assertIn("has no config.yaml", run("infer", self.path("png"), self.files[0]).err)
        self.assertEqual(run("infer", self.path("png"), self.files[0]).status, 2)
        self.assertEqual(run("infer", self.folder).status, 2)
        self.assertEqual(run("infer", self.folder, self.files[0], "--top", 0).status, 2)
        os.mkdir(self.path("empty"))
        result = self.infer(self.path("empty"), status=1)
        self.assertIn("empty", result.err)
        self.assertEqual(run("export", self.folder, "--onnx", self.path("no", "folder.onnx")).status, 1)
        result = run("export", self.folder, "--onnx", self.path("model.onnx"), "--state")
        self.assertEqual(result.status, 2, result)
        self.assertIn("no recurrent layer", result.err)
        self.assertFalse(os.path.exists(self.path("model.onnx")))
        path = os.path.join(self.folder, "checkpoints", "epoch-0002", "model.safetensors")
        data = bytearray(Path(path).read_bytes())
        data[-3] ^= 1
        Path(path).write_bytes(data)
        result = self.infer(self.files[0])  # the one before
        self.assertIn("epoch-0002 is passed over", result.err)
        result = self.infer(self.files[0], "--checkpoint", "epoch-0002", status=1)
        self.assertIn("model.safetensors", result.err)


class Folders(Case):
    """Classes are the names of folders."""

    def test_names_are_the_folders(self):
        images, labels = pictures(60, 3)
        kinds = ["cat", "dog", "with space"]
        for split, part in (("train", range(45)), ("val", range(45, 60))):
            for kind in kinds:
                os.makedirs(self.path(split, kind), exist_ok=True)
            for i in part:
                Image.fromarray(np.kron(images[i], np.ones((2, 2, 1), np.uint8))).save(
                    self.path(split, kinds[i % 3], f"{i}.png"))
        self.write("three.yaml", harness.NETWORK.replace("classes: 10", "classes: 3").replace("units: 10", "units: 3"))
        config = self.write("folders.yaml", f"""network: three.yaml
data: {{dataset: images, root: "{self.dir}"}}
train: {{epochs: 1, batch_size: 15, threads: 1, device: cpu}}
schedule: {{lr: 0.05}}
exchange: {{transport: mpi, codec: {{kind: none}}}}
""")
        folder = self.train("run", config=config, ranks=1)
        self.assertEqual(json.loads(Path(folder, "environment.json").read_text())["classes"], kinds)
        result = run("infer", folder, self.path("val"), "--json")
        self.assertEqual(result.status, 0, result)
        found = json.loads(result.out)["images"]
        self.assertEqual(len(found), 15)
        hits = [one["classes"][0]["name"] == os.path.basename(os.path.dirname(one["image"])) for one in found]
        self.assertAlmostEqual(100 * np.mean(hits), self.metrics(folder)[-1]["val_top1"], places=3)


if __name__ == "__main__":
    unittest.main()
