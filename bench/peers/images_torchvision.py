#!/usr/bin/env python3
"""Images from files to samples: `lpsgd bench loader` in alternation with torchvision's same transforms, on
one core.

    bench/peers/images_torchvision.py FOLDER... [--build build/release] [--rounds 5] [--python PROGRAM]
                                      [--cpu-time]
                                       [--json]

Both read every image below the folders (their files lie in the page cache after the first pass), take
random-resized crops (area 0.08 to 1) of 224 x 224 and mirror half of them. torchvision: Pillow,
RandomResizedCrop and RandomHorizontalFlip, then either uint8 (PILToTensor) or normalised float32 (ToTensor,
Normalize). Each round runs lpsgd and torchvision one after the other, each in a process of its own with one
thread. Prints the medians over the rounds; `ratio` is torchvision's time over ours. With --cpu-time it is
processor time, for machines that are never idle. lpsgd's loader stays at uint8: its network scales the pixels
on its device.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}


def images_below(folders):
    paths = sorted(
        path for folder in folders for path in Path(folder).rglob("*") if path.suffix.lower() in EXTENSIONS
    )
    if not paths:
        sys.exit(f"no images in {', '.join(folders)}")
    return paths


def peer(folders, clock):
    """Runs in a process of its own: prints the seconds of a pass for either result."""
    import torch
    from PIL import Image
    from torchvision import transforms

    torch.set_num_threads(1)
    paths = images_below(folders)
    crop = [transforms.RandomResizedCrop(224, scale=(0.08, 1)), transforms.RandomHorizontalFlip()]
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    results = {"uint8": transforms.Compose([*crop, transforms.PILToTensor()]),
               "float32": transforms.Compose([*crop, transforms.ToTensor(), normalise])}

    def seconds(transform):
        begin = clock()
        for path in paths:
            with open(path, "rb") as file:  # as torchvision.datasets.folder.pil_loader
                transform(Image.open(file).convert("RGB"))
        return clock() - begin

    seconds(results["uint8"])  # reads the files into the page cache
    print(json.dumps({name: seconds(transform) for name, transform in results.items()}))


def run(command):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "OMP_NUM_THREADS": "1"})
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed")
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.folders, time.process_time if arguments.cpu_time else time.perf_counter)
        return
    count = len(images_below(arguments.folders))
    ours, theirs, pairs = {}, {}, {}
    clock = ["--cpu-time"] if arguments.cpu_time else []
    for _ in range(arguments.rounds):
        rows = run(
            [
                Path(arguments.build) / "lpsgd",
                "bench",
                "loader",
                "--json",
                "--repeats",
                "1",
                "--images",
                count,
                "--workers",
                "0",
                *clock,
                "--data",
                *arguments.folders,
            ]
        )
        seconds = run([arguments.python, __file__, "--peer", *clock, *arguments.folders])
        for name, value in seconds.items():
            theirs.setdefault(name, []).append(value)
        for row in (row for row in rows if "ratio_to_opencv" in row):
            ours.setdefault(row["name"], []).append(row["seconds"])
            for name, value in seconds.items():
                pairs.setdefault((row["name"], name), []).append(value / row["seconds"])
    out = [{"name": name, "images": count, "seconds": statistics.median(values),
            **{f"torchvision_{kind}_seconds": statistics.median(theirs[kind]) for kind in theirs},
            **{f"ratio_to_torchvision_{kind}": statistics.median(pairs[name, kind]) for kind in theirs}}
           for name, values in ours.items()]
    if arguments.json:
        print(json.dumps(out, indent=2))
        return
    print(f"{'samples of 224 x 224':<42} {'us each':>9} {'to uint8':>9} {'to float32':>11}")
    for row in out:
        print(
            f"{row['name']:<42} {1e6 * row['seconds'] / count:>9.1f} "
            f"{row['ratio_to_torchvision_uint8']:>9.2f} {row['ratio_to_torchvision_float32']:>11.2f}"
        )
    print(
        f"torchvision to uint8: {1e6 * statistics.median(theirs['uint8']) / count:.1f} us each, "
        f"to normalised float32: {1e6 * statistics.median(theirs['float32']) / count:.1f}"
    )


if __name__ == "__main__":
    main()
