"""`lpsgd data check` and `lpsgd data pack`, and training from what they take and write."""

import glob
import io
import json
import os
import re
import shutil
import struct
import tarfile
import unittest

import numpy as np

from harness import LPSGD, Case, model, run

try:
    from PIL import Image
except ImportError:
    Image = None

NETWORK = """name: small
input: [16, 16, 3]
classes: 3
layers:
  - {conv: conv1, filters: 4, kernel: 3, stride: 2, pad: 1}
  - relu
  - average_pool
  - flatten
  - {dense: fc, units: 3}
"""
CONFIG = """network: small.yaml
data: {{dataset: {dataset}, root: "{root}", augment: {{crop: {{kind: random_resized}}, mirror: true}}}}
train: {{epochs: 1, batch_size: 4, seed: 3, threads: 1, device: cpu}}
schedule: {{lr: 0.05}}
exchange: {{codec: none}}
"""


def picture(height, width, seed):
    """A PPM file of smooth colours and some noise."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    values = 128 + 60 * np.sin((seed + 1) * y / 17 + c) + 50 * np.cos((seed + 2) * x / 23 - c)
    values += np.random.default_rng(seed).normal(0, 3, values.shape)
    return b"P6\n%d %d\n255\n" % (width, height) + values.clip(0, 255).astype(np.uint8).tobytes()


def every_kind():
    """Files of the kinds that a folder of photographs may hold."""
    colour = Image.fromarray(np.frombuffer(picture(60, 50, 7)[-9000:], np.uint8).reshape(60, 50, 3))
    turned = Image.Exif()
    turned[0x112] = 6
    kinds = [(colour, "JPEG", {"quality": 90}), (colour, "JPEG", {"progressive": True}), (colour, "JPEG", {"exif": turned}),
             (colour, "JPEG", {"subsampling": 0}), (colour.convert("L"), "JPEG", {}), (colour.convert("CMYK"), "JPEG", {}),
             (colour, "PNG", {}), (colour, "PNG", {"exif": turned}), (colour.convert("P"), "PNG", {}), (colour.convert("RGBA"), "PNG", {}),
             (colour.convert("L").convert("I"), "PNG", {}), (colour, "BMP", {}), (colour, "TIFF", {}), (colour, "WEBP", {})]
    files = []
    for image, kind, options in kinds:
        file = io.BytesIO()
        image.save(file, kind, **options)
        files.append(file.getvalue())
    return files


class DataCase(Case):
    def setUp(self):
        super().setUp()
        self.write("small.yaml", NETWORK)
        self.root = self.path("pictures")
        for split, count in (("train", 5), ("val", 3)):
            for label, name in enumerate(("cat", "dog", "eel")):
                for i in range(count + label):
                    self.put(f"{split}/{name}/{i}.ppm", picture(40 + i, 30 + 5 * label, 10 * label + i))
        self.images = self.write("images.yaml", CONFIG.format(dataset="images", root=self.root))

    def put(self, name, content):
        os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
        with open(os.path.join(self.root, name), "wb") as file:
            file.write(content)

    def check(self, *arguments, status=0, config=None):
        result = run("data", "check", config or self.images, *arguments)
        self.assertEqual(result.status, status, result)
        self.assertNotIn("\r", result.out)
        return result

    @staticmethod
    def read(path):
        with open(path, "rb") as file:
            return file.read()


class Data(DataCase):
    def pack(self, out, *arguments, status=0):
        result = run("data", "pack", self.images, "--out", out, *arguments)
        self.assertEqual(result.status, status, result)
        return result

    def test_check_counts(self):
        self.assertEqual(self.check().out.splitlines(), [
            "train: 18 images, 3 classes, 18 sizes, heights from 40 to 46, widths from 30 to 40",
            "train: of class 0 to 2: 5 6 7",
            "test: 12 images, 3 classes, 12 sizes, heights from 40 to 44, widths from 30 to 40",
            "test: of class 0 to 2: 3 4 5"])
        generated = self.check("--set", "data.dataset=shapes", "--set", "data.train_samples=30", "--set", "data.test_samples=12")
        self.assertEqual(generated.out.splitlines()[0], "train: 30 images, 10 classes, 32 x 32 x 3")
        self.assertEqual(generated.out.splitlines()[3], "test: of class 0 to 9: 2 2 1 1 1 1 1 1 1 1")

    def test_check_counts_sizes_if_they_are_few(self):
        self.root = self.path("sizes")
        for split, sizes in (("train", {(8, 6): 2, (10, 6): 3, (8, 16): 1}), ("val", {(9, 9): 2})):
            for (height, width), count in sizes.items():
                for i in range(count):
                    for label in "ab":
                        self.put(f"{split}/{label}/{height}-{width}-{i}.ppm", picture(height, width, i))
        config = self.write("sizes.yaml", CONFIG.format(dataset="images", root=self.root))
        self.assertEqual(self.check(config=config).out.splitlines(), [
            "train: 12 images, 2 classes, 3 sizes, heights from 8 to 10, widths from 6 to 16",
            "train: of class 0 to 1: 6 6",
            "train: of size 8 x 6 x 3: 4", "train: of size 8 x 16 x 3: 2", "train: of size 10 x 6 x 3: 6",
            "test: 4 images, 2 classes, 9 x 9 x 3",
            "test: of class 0 to 1: 2 2"])

    def test_check_names_every_bad_file(self):
        good = picture(40, 40, 1)
        self.put("train/cat/cut.ppm", good[:1000])
        self.put("train/dog/empty.ppm", b"")
        self.put("train/eel/text.jpg", b"This is no picture.")
        self.put("val/eel/huge.ppm", b"P6\n20000 20000\n255\n" + bytes(100))
        os.symlink("nowhere", os.path.join(self.root, "val/cat/dangling.jpg"))
        result = self.check(status=1)
        bad = sorted(line for line in result.out.splitlines() if line.startswith("bad: "))
        self.assertEqual([line.split(": ")[1] for line in bad], sorted(os.path.join(self.root, name) for name in (
            "train/cat/cut.ppm", "train/dog/empty.ppm", "train/eel/text.jpg", "val/eel/huge.ppm", "val/cat/dangling.jpg")))
        self.assertIn("train: 18 images, 3 classes, and 3 that cannot be read", result.out)
        self.assertIn("test: 12 images, 3 classes, and 2 that cannot be read", result.out)
        self.assertEqual(result.err.splitlines()[-1],
                         "lpsgd: error: data set images: 5 files or samples are bad, named above")

    def test_check_of_what_cannot_be_opened(self):
        shutil.rmtree(os.path.join(self.root, "val/eel"))
        result = self.check(status=1)
        self.assertEqual(result.out, f"bad: {self.root}/val: has no class 'eel', which {self.root}/train has\n")
        self.assertIn("1 file or sample is bad, named above", result.err)
        self.check("--set", "data.dataset=pictures", status=2)
        # Every file is named, also of those that are read as a whole.
        result = self.check("--set", "data.dataset=cifar100", status=1)
        self.assertEqual([line.split(": ")[1] for line in result.out.splitlines()],
                         [f"{self.root}/train.bin", f"{self.root}/test.bin"])
        self.assertIn("2 files or samples are bad", result.err)

    def shards(self, *arguments):
        folder = self.path("shards")
        os.makedirs(folder)
        for split in ("train", "test"):
            self.pack(os.path.join(folder, split + ".shard"), "--split", split, *arguments)
        self.assertEqual(sorted(os.listdir(folder)), ["test.shard", "train.shard"])
        return folder

    def test_training_from_shards_is_training_from_files(self):
        """Files as they are, and pixels: the same weights, bit for bit."""
        reference = model(self.train("files", ranks=2, config=self.images), "epoch-0001")
        for arguments in ((), ("--decoded",)):
            folder = self.shards(*arguments)
            shards = ["--set", f"data.shards={folder}"]
            packed = self.train("packed" + "".join(arguments), *shards, ranks=2, config=self.images)
            self.check(*shards)
            for run_folder in (packed, self.path("files")):
                with open(os.path.join(run_folder, "environment.json")) as file:
                    self.assertEqual(json.load(file)["classes"], ["cat", "dog", "eel"], run_folder)
            for name, value in model(packed, "epoch-0001").items():
                self.assertTrue(np.array_equal(value.view("<u4"), reference[name].view("<u4")), (arguments, name))
            shutil.rmtree(folder)

    def test_each_split_has_its_own_automatic_crop(self):
        """Training images have the network's size and are taken whole, test images have not."""
        for name in glob.glob(os.path.join(self.root, "train", "*", "*")):
            self.put(os.path.relpath(name, self.root), picture(16, 16, len(name) + int(name[-5])))
        folder = self.path("shards")
        os.makedirs(folder)
        self.pack(os.path.join(folder, "train.shard"), "--decoded")
        self.pack(os.path.join(folder, "test.shard"), "--split", "test")
        arguments = ("--set", "data.augment=none", "--set", f"data.shards={folder}")

        def weights(out, evaluate):
            return model(self.train(out, *arguments, "--set", f"data.evaluate={evaluate}", config=self.images), "epoch-0001")

        own, whole, cropped = (weights(*a) for a in (("auto", "auto"), ("whole", "{side_ratio: 1}"), ("cropped", "{side_ratio: 0.875}")))
        for name, value in own.items():
            self.assertTrue(np.array_equal(value.view("<u4"), whole[name].view("<u4")), name)
        self.assertFalse(all(np.array_equal(own[name], cropped[name]) for name in own))
        evaluated = run("eval", self.images, *arguments, "--set", "data.evaluate={side_ratio: 0.875}", "--json", "--checkpoint",
                        self.path("auto", "checkpoints", "epoch-0001"))
        self.assertAlmostEqual(json.loads(evaluated.out)["val_loss"], self.metrics(self.path("auto"))[0]["val_loss"], 6)
        with open(self.path("auto", "config.yaml")) as file:
            self.assertIn("side_ratio: 0.875", file.read())

    def test_short_side_and_quality(self):
        sizes = {}
        for quality in (20, 95):
            folder = self.shards("--short-side", "20", "--quality", quality)
            lines = self.check("--set", f"data.shards={folder}").out.splitlines()
            self.assertEqual(lines[0], "train: 18 images, 3 classes, 10 sizes, heights from 20 to 29, widths from 20 to 20")
            sizes[quality] = os.path.getsize(os.path.join(folder, "train.shard"))
            shutil.rmtree(folder)
        self.assertLess(sizes[20], sizes[95])

    def test_a_damaged_shard_is_named(self):
        folder = self.shards("--decoded")
        path = os.path.join(folder, "train.shard")
        with open(path, "r+b") as file:
            file.seek(64 + 100)  # in the first sample
            file.write(b"????")
        result = self.check("--set", f"data.shards={folder}", status=1)
        self.assertIn(f"bad: sample 0 of {path} ({self.root}/train/cat/0.ppm): damaged: ", result.out)
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 10)
        result = run("train", self.images, "--set", f"data.shards={folder}", "--out", self.path("out"))
        self.assertNotEqual(result.status, 0)
        self.assertIn(f"{path}: truncated shard", result.err)

    def test_a_pack_that_fails_leaves_what_was_there(self):
        path = self.path("x.shard")
        self.pack(path)
        before = self.read(path)
        self.put("train/dog/cut.ppm", picture(40, 40, 1)[:1000])
        result = self.pack(path, "--decoded", status=1)
        self.assertIn("train/dog/cut.ppm: ", result.err)
        self.assertEqual(self.read(path), before)
        self.assertEqual(glob.glob(path + "*"), [path])
        self.pack(self.path("missing/x.shard"), status=1)
        for arguments in (["--split", "val"], ["--quality", "0"], ["--short-side", "-1"]):
            self.pack(path, *arguments, status=2)
        generated = self.pack(path, "--set", "data.dataset=shapes", status=2)
        self.assertIn("data pack: data set shapes does not hold images from files", generated.err)
        self.assertIn("expected train or test, got 'val'", self.pack(path, "--split", "val", status=2).err)

    def test_bad_files_can_be_left_out_of_a_pack(self):
        bad = {"train/cat/1.ppm": picture(40, 40, 1)[:1000], "train/dog/text.jpg": b"no image", "train/eel/0.ppm": b"",
               "train/eel/1.ppm": b"P6\n9 9\n"}
        for name, content in bad.items():
            self.put(name, content)
        for arguments in ((), ("--decoded",), ("--short-side", "20")):
            path = self.path("x.shard")
            result = self.pack(path, *arguments, status=1)
            self.assertIn(f"{self.root}/train/cat/1.ppm: ", result.err)
            self.assertFalse(os.path.exists(path))
            result = self.pack(path, *arguments, "--set", "data.on_bad_sample=skip")
            self.assertIn(f"{path}: 15 images of data set images, split train", result.out)
            self.assertIn("4 samples could not be read: ", result.err)
            for name in list(bad)[:3]:
                self.assertIn(f"{self.root}/{name}: ", result.err)
            os.makedirs(self.path("one"), exist_ok=True)
            os.replace(path, self.path("one", "x.shard"))
            self.pack(self.path("one", "y.shard"), "--split", "test")
            lines = self.check("--set", "data.shards=" + self.path("one")).out.splitlines()
            self.assertEqual(lines[1], "train: of class 0 to 2: 4 6 5")
        self.assertNotIn("has no image in the shard", result.err)
        for label in ("cat", "dog", "eel"):
            shutil.rmtree(os.path.join(self.root, "train", label))
            self.put(f"train/{label}/0.jpg", b"no image")
            if label == "dog":
                self.put(f"train/{label}/1.jpg", b"no image")
                result = self.pack(path, "--set", "data.on_bad_sample=skip")
                self.assertIn("class 0 has no image in the shard: all 1 of it cannot be read", result.err)
                self.assertIn("class 1 has no image in the shard: all 2 of it cannot be read", result.err)
                self.assertNotIn("class 2 has", result.err)
        result = self.pack(self.path("none.shard"), "--set", "data.on_bad_sample=skip", status=1)
        self.assertIn("train/cat/0.jpg: ", result.err)
        self.assertIn("(and no other image of the split can be read)", result.err)
        self.assertEqual(glob.glob(self.path("none*")), [])

    def test_a_bad_file_ends_training_with_its_name(self):
        self.put("train/dog/0.ppm", b"P6\n4 4\n255\n")
        result = run("train", self.images, "--out", self.path("out"), ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertIn("train/dog/0.ppm: ", result.err)

    def test_a_bad_file_of_the_test_set_costs_no_step(self):
        self.write("small.yaml", NETWORK.replace("  - relu\n", "  - {batch_norm: bn1}\n  - relu\n"))
        arguments = ("train", self.images, "--set", "train.epochs=2", "--out")
        whole, out = self.path("whole"), self.path("out")
        self.assertEqual(run(*arguments, whole, ranks=2).status, 0)
        good = self.read(os.path.join(self.root, "val/dog/0.ppm"))
        self.put("val/dog/0.ppm", b"no image")
        result = run(*arguments, out, ranks=2)
        self.assertEqual(result.status, 1, result)
        self.assertIn("val/dog/0.ppm: ", result.err)
        kept = re.search(r"; epoch 1 is not evaluated, its steps are in checkpoint (.*)$", result.err, re.M)
        self.assertTrue(kept, result)
        self.assertEqual([kept[1]], glob.glob(os.path.join(out, "checkpoints", "*")))
        self.assertEqual(self.metrics(out), [])
        self.put("val/dog/0.ppm", good)
        result = run(*arguments, out, "--resume", ranks=2)
        self.assertEqual(result.status, 0, result)
        expected, actual = (model(folder, "epoch-0002") for folder in (whole, out))
        for name, value in expected.items():
            self.assertTrue(np.array_equal(value.view("<u4"), actual[name].view("<u4")), name)
        expected, actual = (
            [(e["train_loss"], e["val_loss"], e["val_top1"]) for e in self.metrics(f)] for f in (whole, out)
        )
        self.assertEqual(expected, actual)

    def test_no_sample_of_the_test_set_can_be_read(self):
        for path in glob.glob(os.path.join(self.root, "val", "*", "*")):
            self.put(os.path.relpath(path, self.root), b"no image")
        out = self.path("out")
        result = run("train", self.images, "--set", "data.on_bad_sample=skip", "--out", out, ranks=2)
        self.assertEqual(result.status, 1, result)
        kept = glob.glob(os.path.join(out, "checkpoints", "*"))
        self.assertEqual(len(kept), 1, result)
        self.assertIn(f"no sample of the test set can be read; epoch 1 is not evaluated, its steps are in checkpoint "
                      f"{kept[0]}\n", result.err)

    def test_bad_files_can_be_skipped(self):
        self.put("train/cat/1.ppm", self.read(os.path.join(self.root, "train/cat/1.ppm"))[:500])
        self.put("val/dog/0.ppm", b"no image")
        models = []
        for workers in (1, 3):
            out = self.path(f"skipped{workers}")
            result = run("train", self.images, "--out", out, "--set", "data.on_bad_sample=skip", "--set",
                         f"data.workers={workers}", "--set", "train.batch_size=18", ranks=2)
            self.assertEqual(result.status, 0, result)
            for bad in ("train/cat/1.ppm", "val/dog/0.ppm"):
                self.assertIn(f"{self.root}/{bad}: ", result.err + result.out)
            self.assertEqual([epoch["bad_samples"] for epoch in self.metrics(out)], [2])
            models.append(model(out, "epoch-0001"))
        for name, value in models[0].items():
            self.assertTrue(np.array_equal(value.view("<u4"), models[1][name].view("<u4")), name)
        evaluated = run("eval", self.images, "--set", "data.on_bad_sample=skip", "--checkpoint",
                        self.path("skipped1", "checkpoints", "epoch-0001"))
        self.assertIn("11 samples | ", evaluated.out, evaluated)
        for split, number in (("val/cat", 3), ("val/dog", 4), ("val/eel", 5)):
            for i in range(number):
                self.put(f"{split}/{i}.ppm", b"no image")
        evaluated = run("eval", self.images, "--set", "data.on_bad_sample=skip", "--checkpoint",
                        self.path("skipped1", "checkpoints", "epoch-0001"))
        self.assertEqual(evaluated.status, 1, evaluated)
        self.assertIn(f"{self.root}/val/cat/0.ppm: ", evaluated.err)
        self.assertIn("(and no other sample of the test set can be read)", evaluated.err)

    def test_an_opencv_that_cannot_be_loaded_is_no_bad_sample(self):
        name = re.search(rb"libopencv_imgcodecs\.so[.0-9]*", self.read(LPSGD))[0].decode()
        os.mkdir(self.path("lib"))
        library = self.path("lib", name)
        self.write("lib/" + name, "no library")
        environment = {"LD_LIBRARY_PATH": self.path("lib")}
        result = run("data", "check", self.images, env=environment)
        self.assertEqual(result.status, 1, result)
        self.assertIn(f"lpsgd: error: images other than JPEG and PNG need OpenCV's imgcodecs: {library}: ", result.err)
        self.assertNotIn("bad: ", result.out)
        # A library without the function.
        with open("/proc/self/maps") as maps:
            other = next(line.split()[-1] for line in maps if re.search(r"/libc\.so|/libc-", line))
        os.remove(library)
        shutil.copy(other, library)
        result = run("data", "check", self.images, env=environment)
        self.assertEqual(result.status, 1, result)
        self.assertIn(f"lpsgd: error: {name} has no cv::imdecode: ", result.err)


def samples_of_shard(path):
    """The samples' bytes, read as docs/data.md describes the format."""
    with open(path, "rb") as file:
        data = file.read()
    index, count = struct.unpack("<QQ", data[-128:-112])
    entries = [struct.unpack("<QQ", data[index + 48 * i : index + 48 * i + 16]) for i in range(count)]
    return [data[offset : offset + size] for offset, size in entries]


def tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


class ImageNet(DataCase):
    """The original archives, made of photographs if they are at hand, else of pictures."""

    def setUp(self):
        super().setUp()
        self.pictures_root = self.root
        self.root = self.path("imagenet")
        self.config = self.write("imagenet.yaml", CONFIG.format(dataset="imagenet", root=self.root))

    def photographs(self):
        pattern = os.path.join(os.environ.get("LPSGD_DATA", "/nonexistent"), "imagenet-mini", "*", "*.JPEG")
        found = [self.read(path) for path in sorted(glob.glob(pattern))]
        if found:
            self.assertEqual(len(found), 282)
            return found
        # JPEG files that `lpsgd data pack` writes, and others.
        path = self.path("x.shard")
        result = run("data", "pack", self.images, "--out", path, "--short-side", "24")
        self.assertEqual(result.status, 0, result)
        jpegs = samples_of_shard(path)
        self.assertEqual(len(jpegs), 18)
        self.assertTrue(all(jpeg.startswith(b"\xff\xd8\xff") for jpeg in jpegs))
        return jpegs + [picture(50 + i, 40, i) for i in range(12)]

    def test_archives_train_as_folders_do(self):
        self.train_from_both(self.photographs())

    @unittest.skipUnless(Image, "python3-pil is not installed, which makes files of every kind")
    def test_archives_of_every_kind_of_file(self):
        self.train_from_both(every_kind())

    def train_from_both(self, pictures):
        wnids = ["n01440764", "n01443537", "n02119789"]
        extension = "JPEG"  # the content decides, not the name
        inner = {}
        for c, wnid in enumerate(wnids):
            mine = pictures[c::3]
            for i, content in enumerate(mine):
                self.put(f"train/{wnid}/{wnid}_{i}.{extension}", content)
            tar(self.path(wnid + ".tar"), {f"{wnid}_{i}.{extension}": content for i, content in enumerate(mine)})
            inner[wnid + ".tar"] = self.read(self.path(wnid + ".tar"))
        val = {f"ILSVRC2012_val_{i + 1:08}.{extension}": content for i, content in enumerate(pictures[:7])}
        for name, content in val.items():
            self.put("val/" + name, content)
        self.put("ILSVRC2012_validation_ground_truth.txt", b"".join(b"%d\n" % (i % 3 + 1) for i in range(7)))
        self.put("synsets.txt", b"n02119789\nn01440764\nn01443537\n")
        checks, models = [], []
        for archives in (False, True):
            if archives:
                tar(os.path.join(self.root, "ILSVRC2012_img_train.tar"), inner)
                tar(os.path.join(self.root, "ILSVRC2012_img_val.tar"), val)
                shutil.rmtree(os.path.join(self.root, "train"))
                shutil.rmtree(os.path.join(self.root, "val"))
            checks.append(self.check(config=self.config).out)
            models.append(model(self.train(f"out{archives}", ranks=2, config=self.config), "epoch-0001"))
        self.assertEqual(checks[0], checks[1])
        self.assertIn("test: of class 0 to 2: 2 2 3", checks[0])
        for name, value in models[0].items():
            self.assertTrue(np.array_equal(value.view("<u4"), models[1][name].view("<u4")), name)


if __name__ == "__main__":
    unittest.main()
