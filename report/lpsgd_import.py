#!/usr/bin/env python3
"""Writes a PyTorch module as a network file with its weights: docs/from-pytorch.md.

    lpsgd import FILE.py:NAME --input C,H,W [--with KEY=VALUE]... [--weights FILE] --out DIR

Ends with 0 when both files are written and compared, 2 where the module cannot be imported.
"""

import importlib.util
import os
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
        raise command.argparse.ArgumentTypeError(f"'{text}' is not C,H,W, nor FRAMES,FEATURES, nor one number")
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


def few(names):
    """The first of the names, and how many more there are."""
    most = 3
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def frozen_layers(module, network):
    """Names of the layers whose parameters all need no gradient."""
    needs = {}
    for name, parameter in module.named_parameters():
        needs.setdefault(name.rpartition(".")[0], []).append(parameter.requires_grad)
    return [layer.name for layer in network.layers if layer.name in needs and not any(needs[layer.name])]


def remarks(module, network):
    lines = list(network.notes)
    used = set(network.parameters)
    unused = [n for n in module.state_dict() if n not in used and not n.endswith("num_batches_tracked")]
    if unused:
        lines.append(f"left out, because the scores do not depend on it: {few(unused)}")
    frozen = frozen_layers(module, network)
    if frozen:
        lines.append(f"need no gradient in PyTorch: --set 'train.freeze=[{', '.join(frozen)}]' freezes them")
    return lines


def compare_scores(options, folder, module, network):
    """Says how far lpsgd's scores are from PyTorch's. Raises UserError where they are others."""
    from torch_import import check

    if not check.can_compare_scores(options.input):
        return "scores were not compared: the input is not an image of 1 or 3 channels"
    distance, alike = check.scores(folder, module, options.input, network)
    of = "the scores' deviation" if alike else "a score's deviation between images"
    if not distance <= check.FURTHEST:
        raise UserError(
            f"{options.module}: scores of random images differ from PyTorch's by {distance:.1e} of {of}, more than "
            f"{check.FURTHEST:g}, so nothing is written; does forward in training compute something else than in "
            "evaluation?"
        )
    said = f"scores of {check.IMAGES} random images are PyTorch's to {distance:.1e} of {of}"
    return said + (", but with these weights they hardly depend on the image" if alike else "")


@command.refuses("lpsgd: error: import", UserError)
def main():
    options = arguments()
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"{sys.executable} has no module torch; LPSGD_PYTHON names a Python that has PyTorch")
    import torch
    from torch_import import check, convert, network, source, traced, weights_file

    files = {name: os.path.join(options.out, name) for name in (NETWORK, WEIGHTS)}
    for path in files.values():
        if os.path.lexists(path):
            raise UserError(f"{path} is there already; --out names another folder")
    module = source.make(options.module, dict(source.keyword(word) for word in options.keywords), options.seed)
    if options.weights:
        source.load_weights(module, options.weights)
    batch = (traced.BATCH, *options.input)
    samples = torch.zeros(batch, dtype=torch.int64) if options.tokens else torch.randn(batch)
    found = traced.trace(module, samples)
    converted = convert.Converter(found).run()
    if converted.problems:
        lines = [f"{few(places)}: {what}" for what, places in converted.problems.items()]
        raise UserError("\n  ".join([f"{options.module} cannot be imported", *lines]))
    name = options.module.rpartition(":")[2].lower()
    comment = [f"{options.module} of PyTorch {torch.__version__}, by lpsgd import."]
    comment += [f"--with {word}" for word in options.keywords]
    try:
        os.makedirs(options.out, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.out, prefix=".new-") as folder:
            with open(os.path.join(folder, NETWORK), "w", encoding="utf-8") as file:
                file.write(network.text(name, options.input, converted, comment))
            weights_file.save(os.path.join(folder, WEIGHTS), converted.parameters)
            shown = check.shapes(os.path.join(folder, NETWORK), converted)
            compared = compare_scores(options, folder, module, converted)
            for file in (WEIGHTS, NETWORK):
                os.replace(os.path.join(folder, file), files[file])
    except OSError as error:
        raise UserError(f"{error.filename or options.out}: cannot be written: {error.strerror}") from None
    print(f"{files[NETWORK]}: {len(converted.layers)} layers, {shown['parameters']} parameters")
    print(f"{files[WEIGHTS]}: {sum(4 * t.numel() for t in converted.parameters.values()) / 1e6:.1f} MB")
    for line in [*remarks(module, converted), compared]:
        print(f"  {line}")
    print(f"train it: lpsgd train CONFIG --set network={files[NETWORK]} --init {files[WEIGHTS]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
