#!/usr/bin/env python3
"""Writes a PyTorch module as a network file with its weights: docs/from-pytorch.md.

    lpsgd import FILE.py:NAME --input C,H,W [--with KEY=VALUE]... [--weights FILE] --out DIR

Ends with 0 when both files are written and compared, 2 where the module cannot be imported.
"""

import argparse
import importlib.util
import os
import shlex
import sys
import tempfile

import command
from errors import UserError

NETWORK, WEIGHTS = "network.yaml", "weights.safetensors"


def shape(text):
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) not in (1, 2, 3) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not C,H,W, nor FRAMES,FEATURES, nor one number")
    return sizes


def arguments():
    parser = command.Parser(
        prog="lpsgd import",
        description="Writes a PyTorch module as DIR/network.yaml and DIR/weights.safetensors.",
    )
    parser.add_argument(
        "module", metavar="MODULE:NAME", help="FILE.py:NAME or package.module:NAME; a class, a function or a module"
    )
    parser.add_argument(
        "--input",
        metavar="C,H,W",
        type=shape,
        required=True,
        help="the shape of one sample in PyTorch: C,H,W; FRAMES,FEATURES; or FEATURES",
    )
    parser.add_argument(
        "--with",
        dest="keywords",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an argument for NAME, such as num_classes=10; may be repeated",
    )
    parser.add_argument("--weights", metavar="FILE", help="a state dict to load: of torch.save, or .safetensors")
    parser.add_argument(
        "--tokens", action="store_true", help="a sample is a row of token numbers: --input is their number"
    )
    parser.add_argument(
        "--seed", metavar="N", type=command.whole(0, 2**32 - 1), default=1, help="of PyTorch's random weights (default 1)"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="a folder that holds neither of the two files")
    parsed = parser.parse_args()
    if parsed.tokens and len(parsed.input) != 1:
        parser.error("--tokens: --input is the number of tokens of a sample")
    return parsed


def write(files, text, save):
    """Both files, each whole or not at all; the network file last."""
    try:
        os.makedirs(os.path.dirname(files[NETWORK]) or ".", exist_ok=True)
        save(files[WEIGHTS] + ".new")
        with open(files[NETWORK] + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        for name in (WEIGHTS, NETWORK):
            os.replace(files[name] + ".new", files[name])
    except OSError as error:
        for path in files.values():
            if os.path.exists(path + ".new"):
                os.unlink(path + ".new")
        raise UserError(f"{error.filename or files[NETWORK]}: cannot be written: {error.strerror}") from None


@command.refuses("lpsgd: error: import", UserError)
def main():
    options = arguments()
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"{sys.executable} has no module torch; LPSGD_PYTHON names a Python that has PyTorch")
    import torch
    from torch_import import check, convert, network, remarks, source, traced, weights_file

    files = {name: os.path.join(options.out, name) for name in (NETWORK, WEIGHTS)}
    for path in files.values():
        if os.path.lexists(path):
            raise UserError(f"{path} is there already; --out names another folder")
    module = source.make(options.module, dict(source.keyword(word) for word in options.keywords), options.seed)
    if options.weights:
        source.load_weights(module, options.weights)
    batch = (traced.BATCH, *options.input)
    samples = torch.zeros(batch, dtype=torch.int64) if options.tokens else torch.randn(batch)
    found = convert.Converter(traced.trace(module, samples)).run()
    if found.problems:
        lines = [f"{remarks.few(places)}: {what}" for what, places in found.problems.items()]
        raise UserError("\n  ".join([f"{options.module} cannot be imported", *lines]))
    network.check_scores(found)
    name = options.module.rpartition(":")[2].lower()
    comment = [f"{options.module} of PyTorch {torch.__version__}, by lpsgd import."]
    text = network.text(name, options.input, found, comment + [f"--with {word}" for word in options.keywords])
    lines = remarks.lines(module, found)
    image = options.input if check.can_infer(options.input) else None
    with check.other_weights(module, found, image), tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, NETWORK)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        shown = check.shapes(path, found)
        if sys.stderr.isatty():
            print("lpsgd import: comparing with PyTorch; a minute for large networks", file=sys.stderr)
        check.functions(module, found, options.input, network.vocabulary(found) if options.tokens else None)
        lines.append("with other weights: scores, gradients and running statistics are the module's, in PyTorch")
        if image:
            distance = check.scores(path, module, image, found)
            lines.append(
                f"with other weights: lpsgd's scores of {check.IMAGES} images are PyTorch's to {distance:.1e} "
                "of their deviation"
            )
    write(files, text, lambda path: weights_file.save(path, found.parameters))
    print(f"{files[NETWORK]}: {len(found.layers)} layers, {shown['parameters']} parameters")
    print(f"{files[WEIGHTS]}: {sum(4 * t.numel() for t in found.parameters.values()) / 1e6:.1f} MB")
    for line in lines:
        print(f"  {line}")
    quoted = {key: shlex.quote(path) for key, path in files.items()}
    print(f"train it: lpsgd train CONFIG --set network={quoted[NETWORK]} --init {quoted[WEIGHTS]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
