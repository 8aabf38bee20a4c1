"""Three figures from a calibration: speed-up against model size over computation, price against accuracy,
Dettmers' claim.
"""

import os

import files
import program
import published
import yaml

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
        batch, alone = model.parameters.alone["alexnet"]
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
    return 4 * network.parameters / 1e6 / (3 * network.flops / 1e9)


def limit(model, given):
    """The speed-up of a network that does nothing but exchange long tensors: bytes and coding alone."""
    tensor = networks.Tensor("x", "dense", (1 << 20, 1 << 14), 1 << 34)
    network = networks.Network("x", tensor.elements, 0, 1, 0, (tensor,))
    pair = [Cell(given[0].machine, "x", "mpi", codec, RANKS, RANKS, None) for codec in ("none", "qsgd8")]
    times = [seconds(model, cell, network, (RANKS, 1e-9)) for cell in pair]
    return times[0] / times[1]


def price_of(model, cell, samples):
    """Dollars, hours, ranks and GPUs rented for a training; None where no machine has as many GPUs."""
    machine = published.cheapest_machine(cell.ranks)
    if machine is None:
        return None
    dollars_per_hour, rented = machine
    hours = samples / cell.batch * seconds(model, cell) / 3600
    return hours * dollars_per_hour, hours, cell.ranks, rented


def prices(model, given):
    """For each network and codec with a published accuracy, the cheapest number of ranks from 2 up.

    One GPU sends nothing, so that no codec applies to it. It has a row of its own, for comparison, and none
    of the choices.
    """
    batches = study_batches(given)
    rows = []
    for network, data in published.data_sets().items():
        ranks = sorted(k for name, k in batches if name == network)
        for codec, accuracy in published.final_accuracy(network).items():
            if codec not in networks.CODECS:  # the cost model knows nothing of it
                continue
            choices = [[k for k in ranks if k > 1]]
            if codec == "none":
                choices.insert(0, [k for k in ranks if k == 1])
            for able in choices:
                asked = [
                    Cell(given[0].machine, network, "mpi", codec, k, batches[network, k], None) for k in able
                ]
                cheapest = cheapest_of(model, asked, published.samples_of_training(network))
                if cheapest:
                    dollars, hours, k, rented = cheapest
                    rows.append((network, data, codec, accuracy, k, rented, hours, dollars))
    return rows


def cheapest_of(model, asked, samples):
    """price_of the cheapest cell; None where there is none."""
    found = [price for price in (price_of(model, cell, samples) for cell in asked) if price]
    return min(found, default=None)


def write(path, folder):
    given = cells.read(path, measured=True).cells
    machines = sorted({cell.machine for cell in given})
    if len(machines) > 1:
        raise CostModelError(
            f"{path}: --outlook takes the cells of one machine; there are {', '.join(machines)}"
        )
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise CostModelError(f"{folder}: cannot be made: {error.strerror}") from None
    model = calibrate.fit(given, source=path)
    speed = speedups(model, given, folder)
    price = prices(model, given)
    claims = claim.rows(model)
    most = limit(model, given)
    save(folder, "speedup.csv", ("series", "name", "mb_per_gflop", "speedup_8bit"), speed)
    save(
        folder,
        "price.csv",
        ("network", "data", "codec", "top1", "ranks", "gpus_rented", "hours", "dollars"),
        price,
    )
    save(folder, "dettmers.csv", claim.COLUMNS, claims)
    outlook_figures.speedup(folder, speed, RANKS, most)
    outlook_figures.price(folder, price)
    outlook_figures.dettmers(folder, claims)
    print(f"speed-up of 8 bit over 32 bit at {RANKS} ranks: its limit, bytes and coding alone, is {most:.1f}")
    print(claim.text(claims))
    print(f"{folder}: speedup, price, dettmers (.csv, .png, .svg)")


def save(folder, name, header, rows):
    lines = [",".join(header)] + [
        ",".join(f"{v:.5g}" if isinstance(v, float) else str(v) for v in row) for row in rows
    ]
    files.write_text(os.path.join(folder, name), "\n".join(lines) + "\n")
