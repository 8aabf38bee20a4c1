#!/usr/bin/python3
"""The cost model: samples per second of what was not run.

    lpsgd predict --calibrate GIVEN.csv --cells ASK.csv --out OUT.csv [--report]
    lpsgd predict CONFIG [--run RUN]... --ranks 2,4,8 --link 10Gbit,50us [--sync SYNC]... [--json]
    lpsgd predict --outlook DIR --calibrate GIVEN.csv

The first form fits the model to the measured cells of GIVEN.csv (machine, network, transport, codec, ranks,
batch, samples_per_s) and writes ASK.csv's rows with the predicted samples_per_s. The second predicts the
steps of a configuration from a measured run. The third draws three figures. docs/cost-model.md has the
equations.
"""

import argparse
import sys

import command
import modules
from errors import UserError


def parse(words):
    parser = command.Parser(
        prog="lpsgd predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", help="configuration whose steps are predicted")
    group = parser.add_argument_group("calibration")
    group.add_argument("--calibrate", metavar="GIVEN.csv", help="measured cells")
    group.add_argument("--cells", metavar="ASK.csv", help="cells to predict; samples_per_s is ignored")
    group.add_argument("--out", metavar="OUT.csv", help="ASK.csv's rows with the prediction")
    group.add_argument(
        "--report", action="store_true", help="print constants, errors, cells left out, outliers"
    )
    group.add_argument(
        "--outlook", metavar="DIR", help="write the figures of speed-up, price and Dettmers' claim"
    )
    group = parser.add_argument_group("a configuration")
    group.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key, as of lpsgd train; several"
    )
    group.add_argument("--run", metavar="RUN", action="append", default=[],
                       help="folder of a measured run; several, with other local batches or codecs, say more")
    group.add_argument(
        "--step-seconds", type=float, metavar="S", help="without a run: computing of one step of one rank"
    )
    group.add_argument(
        "--step-batch",
        type=command.whole(1, 1 << 24),
        metavar="N",
        help="local batch of --step-seconds (default: the global batch)",
    )
    group.add_argument(
        "--frames",
        type=command.whole(1, 1 << 20),
        metavar="N",
        help="without a run: frames of the sequences that are measured, where the network leaves their number open",
    )
    group.add_argument("--ranks", metavar="K,...", help="2,4,8 or 2,4,..,256 (default 2,4,8)")
    group.add_argument(
        "--link",
        metavar="BANDWIDTH,LATENCY[,BURST]",
        help="of each rank, each direction: 10Gbit,50us (where ranks share a network card, a rank's part of it)",
    )
    group.add_argument(
        "--codecs", metavar="CODEC,...", help="to compare with none (default: the configured one)"
    )
    group.add_argument(
        "--message",
        type=command.number(0, 1, "a number of seconds from 0 to 1"),
        metavar="S",
        help="processor seconds of a message (default 20e-6)",
    )
    group.add_argument(
        "--coding-share",
        type=command.number(0, 1, "a number from 0 to 1"),
        default=None,
        metavar="X",
        help="of coding beside computing, that computing waits for: they share cores (default 0.5)",
    )
    group.add_argument(
        "--run-link",
        metavar="BANDWIDTH,LATENCY",
        help="that the runs of several ranks had (default: their exchange.link, else none, as on one host)",
    )
    group.add_argument(
        "--sync",
        metavar="SYNC",
        action="append",
        default=[],
        help="'{kind: local_sgd, steps: 8}': to compare with every_step (default: the configured); several",
    )
    group.add_argument(
        "--block-link",
        metavar="BANDWIDTH,LATENCY",
        help="between the ranks of a block of hierarchical_local_sgd, or of a machine with the collective hierarchical "
        "(default: none, as on one host)",
    )
    group.add_argument("--weak", action="store_true", help="each rank keeps the measured local batch")
    group.add_argument("--json", action="store_true", help="print JSON")
    return parser, parser.parse_args(words)


def calibrate_cells(options):
    from costmodel import calibrate, cells, fit_report
    from costmodel.errors import CostModelError

    given = cells.read(options.calibrate, measured=True)
    asked = cells.read(options.cells, measured=False) if options.cells else None
    machines = list(dict.fromkeys(cell.machine for cell in given.cells))
    models, predicted = {}, {}
    for cell in asked.cells if asked else []:
        if cell.machine not in machines:
            raise CostModelError(f"{cell.where}: {options.calibrate} has no cell of machine '{cell.machine}'")
    for machine in machines:
        own = [cell for cell in given.cells if cell.machine == machine]
        wanted = [cell for cell in asked.cells if cell.machine == machine] if asked else []
        known = calibrate.alone_cells(own)
        alone = calibrate.with_unknown(wanted, known)
        for network in sorted(set(alone) - set(known)):
            print(
                f"lpsgd: warning: {options.calibrate} has no cell of {network} on {machine}: the time of its computing is "
                f"estimated from its FLOPs",
                file=sys.stderr,
            )
        models[machine] = calibrate.fit(own, alone)
        if wanted:
            predicted.update(zip(map(id, wanted), models[machine].samples_per_s(wanted)))
    if asked:
        cells.write(options.out, asked, [predicted[id(cell)] for cell in asked.cells])
    if options.report:
        print("\n".join(fit_report.report(model) for model in models.values()), end="")


@command.refuses("lpsgd: error", UserError)
def main():
    parser, options = parse(sys.argv[1:])
    modules.require(__file__, "numpy", "scipy", "yaml")
    if options.config and (options.calibrate or options.cells or options.out):
        parser.error("a configuration and --calibrate are two forms of the command")
    if options.outlook:
        if not options.calibrate:
            parser.error("--outlook needs --calibrate GIVEN.csv")
        modules.require(__file__, "matplotlib", "pandas")
        from costmodel import outlook

        outlook.write(options.calibrate, options.outlook)
    elif options.config:
        from costmodel import config_report

        config_report.run(options)
    elif options.calibrate:
        if bool(options.cells) != bool(options.out):
            parser.error("--cells and --out belong together")
        if not options.cells and not options.report:
            parser.error("--calibrate needs --cells ASK.csv --out OUT.csv, or --report")
        calibrate_cells(options)
    else:
        parser.error("expected --calibrate GIVEN.csv or a configuration")


if __name__ == "__main__":
    sys.exit(main())
