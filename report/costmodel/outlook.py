"""Three figures from a calibration: speed-up against model size over computation, price against accuracy,
Dettmers' claim.
"""

import os
import tempfile

import files
import pandas
import program
import published
import style
import yaml
from view import latex, page, speedup
from view.item import Item

from costmodel import calibrate, cells, claim, equations, networks, outlook_figures
from costmodel.cells import Cell
from costmodel.errors import CostModelError

RANKS = 8
WIDTHS = (0.0625, 0.125, 0.25, 0.5, 1, 2, 4)


def study_batches(given):
    """Global batch by network and ranks."""
    return {(cell.network, cell.ranks): cell.batch for cell in given}


def alexnet(width, folder):
    """AlexNet with its two hidden dense layers `width` times as wide: many parameters, little computing."""
    with open(os.path.join(networks.NETWORKS, "alexnet.yaml"), encoding="utf-8") as file:
        network = yaml.safe_load(file)
    for layer in network["layers"][:-1]:
        if isinstance(layer, dict) and "units" in layer:
            layer["units"] = max(1, round(layer["units"] * width))
    path = os.path.join(folder, f"alexnet-{width:g}.yaml")
    files.write_text(path, yaml.safe_dump(network, sort_keys=False))
    shown = program.show(path)
    os.unlink(path)
    return networks.from_show(shown)


def seconds(model, cell, network=None, alone=None):
    """Of a step; for a network that no cell has: with its seconds on one rank, and no factor of its own."""
    if network is None:
        return float(sum(part[0] for part in model.parts([cell])))
    features = equations.Features([cell], {cell.network: alone}, lambda _: network)
    factors = {name: 1.0 for name in equations.FACTORS}
    return float(sum(part[0] for part in equations.parts(model.values, features, factors)))


def speedups(model, given, folder):
    """Rows of MB per GFLOP against the speed-up of 8 bit over 32 bit: the networks, and AlexNet by width."""
    machine, batches = given[0].machine, study_batches(given)
    rows = []
    for name in sorted({cell.network for cell in given}):
        if (name, RANKS) not in batches:
            continue
        pair = [
            Cell(machine, name, "mpi", codec, RANKS, batches[name, RANKS], None)
            for codec in ("none", "qsgd8")
        ]
        times = [seconds(model, cell) for cell in pair]
        rows.append(("network", name, intensity(networks.study_network(name)), times[0] / times[1]))
    if "alexnet" in model.parameters.alone:
        batch, alone = model.parameters.alone["alexnet"][:2]
        usual = networks.study_network("alexnet").flops
        for width in WIDTHS:
            network = alexnet(width, folder)
            of = (batch, alone * network.flops / usual)
            pair = [Cell(machine, "alexnet", "mpi", codec, RANKS, batch, None) for codec in ("none", "qsgd8")]
            times = [seconds(model, cell, network, of) for cell in pair]
            rows.append(("alexnet", f"width {width:g}", intensity(network), times[0] / times[1]))
    return rows


def intensity(network):
    """MB of float32 parameters per GFLOP of a sample, forward and backward."""
    return speedup.megabytes_per_gflop(network.parameters, network.flops)


def limit(model, given):
    """The speed-up of a network that does nothing but exchange long tensors: bytes and coding alone."""
    tensor = networks.Tensor("x", "dense", (1 << 20, 1 << 14), 1 << 34)
    network = networks.Network("x", tensor.elements, 0, 1, 0, (tensor,))
    pair = [Cell(given[0].machine, "x", "mpi", codec, RANKS, RANKS, None) for codec in ("none", "qsgd8")]
    times = [seconds(model, cell, network, (RANKS, 1e-9)) for cell in pair]
    return times[0] / times[1]


def prices(model, given):
    """For each network and codec with a published accuracy, the price by published.price_choices."""
    batches = study_batches(given)
    rows = []
    for network, data in published.data_sets().items():
        ranks = sorted(k for name, k in batches if name == network)
        for codec, accuracy in published.final_accuracy(network).items():
            if codec not in networks.CODECS:  # the cost model knows nothing of it
                continue
            for able in published.price_choices(codec, ranks):
                found = []
                for k in able:
                    cell = Cell(given[0].machine, network, "mpi", codec, k, batches[network, k], None)
                    price = published.training_price(network, k, cell.batch / seconds(model, cell))
                    found += [(*price, k)] if price else []
                if found:
                    dollars, hours, rented, k = min(found)
                    rows.append((network, data, codec, accuracy, k, rented, hours, dollars))
    return rows


def items(path):
    """The figures with their numbers, and what the command prints. Raises CostModelError."""
    given = cells.read(path, measured=True).cells
    machines = sorted({cell.machine for cell in given})
    if len(machines) > 1:
        raise CostModelError(
            f"{path}: an outlook takes the cells of one machine; there are {', '.join(machines)}"
        )
    priced = published.data_sets()
    if not {cell.network for cell in given} & set(priced):
        raise CostModelError(f"{path}: an outlook needs cells of one of {', '.join(priced)}")
    model = calibrate.fit(given)
    with tempfile.TemporaryDirectory(prefix="lpsgd-outlook-") as folder:
        speed = speedups(model, given, folder)
    price, claims, most = prices(model, given), claim.rows(model), limit(model, given)
    model_text = f"By the cost model, calibrated on {os.path.basename(path)}"
    found = [
        Item(
            "speedup",
            f"Speed-up of 8 bit against model size over computation (Fig. 16 of {published.NAME}, right)",
            f"{model_text}: samples per second of QSGD 8 bit over 32 bit, at {RANKS} ranks over MPI.",
            frame(("series", "name", "mb_per_gflop", "speedup_8bit"), speed),
            outlook_figures.speedup(speed, RANKS, most),
        ),
        Item(
            "price",
            f"Price against accuracy by the cost model (Fig. 16 of {published.NAME}, left)",
            f"{published.PRICE_RULE}. {model_text}, with published accuracy and Amazon's prices.",
            frame(("network", "data", "codec", "top1", "ranks", "gpus_rented", "hours", "dollars"), price),
            outlook_figures.price(price),
        ),
        Item(
            "dettmers",
            "Dettmers' claim (ICLR 2016), recomputed",
            "Speed-up of AlexNet with 128 samples a GPU, over the link at which 96 GPUs are 23 times as fast "
            "as one with 32 bit. Stars: his claim.",
            frame(claim.COLUMNS, claims),
            outlook_figures.dettmers(claims),
        ),
    ]
    limits = (
        f"speed-up of 8 bit over 32 bit at {RANKS} ranks: its limit, bytes and coding alone, is {most:.1f}"
    )
    return found, [limits, claim.text(claims)]


def frame(columns, rows):
    return pandas.DataFrame(
        [[float(f"{v:.5g}") if isinstance(v, float) else v for v in row] for row in rows], columns=columns
    )


def write(path, folder):
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CostModelError(f"{folder}: cannot be made: {error.strerror}") from None
    found, lines = items(path)
    try:
        for item in found:
            style.save(item.figure, folder, item.name)
            item.data.to_csv(os.path.join(folder, item.name + ".csv"), index=False)
            files.write_text(os.path.join(folder, item.name + ".tex"), latex.figure(item))
        source = f"{published.NAME[0].upper()}{published.NAME[1:]}: {published.SOURCE}."
        files.write_text(
            os.path.join(folder, "index.html"), page.text("Outlook of the cost model", found, [], [source])
        )
    except OSError as error:
        problem = f"{error.filename or folder}: {error.strerror or error}"
        raise CostModelError(f"{problem}: the outlook cannot be written") from None
    finally:
        for item in found:
            style.plt.close(item.figure)
    print("\n".join(lines))
    print(f"{os.path.join(folder, 'index.html')}: {', '.join(item.name for item in found)}, also as files")
