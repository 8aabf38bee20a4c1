#!/usr/bin/env python3
"""Training over real, slow network links on one machine: hosts are network namespaces joined by veth pairs,
shaped by `tc tbf`. lpsgd and PyTorch's DistributedDataParallel over gloo run on them in turns. As root; needs
iproute2 and MPICH.

    link.py ddp --out FOLDER        samples/s beside DDP: AlexNet at 32 and ResNet-50 at 8 a rank, 1 Gbit/s,
                                    two hosts
    link.py hook --out FOLDER       DDP with lpsgd's communication hook beside DDP's own, 1 Gbit/s
    link.py overlap --out FOLDER    exposed communication: AlexNet, QSGD 4 bit, 1 Gbit/s and unshaped;
                                    with traces
    link.py emulated --out FOLDER   the emulated link beside the real one, step time
    link.py bytes --out FOLDER      bytes on the cable beside bytes_sent, and whether the seconds add up
    link.py ranks --out FOLDER      more ranks than cores: ResNet-20, 8 ranks beside 2 on one host
    link.py blocks --out FOLDER     gradients added within a host first, or not: ResNet-20, four ranks on two
                                    hosts, 100 Mbit/s and 1 Gbit/s, and on one host without a link
    link.py local --out FOLDER      local SGD, 8 steps, none and EF-sign, beside PyTorch's post-local SGD:
                                    AlexNet at 32 and ResNet-20 at 64 a rank, 1 Gbit/s
    link.py own --out FOLDER --networks resnet20 --batch 64 --rates 100mbit --codecs none,topk --hooks full

Every rank has one thread. Each round runs all rows in turn, so that other load on the machine affects all
alike. Each row's result is kept in FOLDER/rows, so a run that was stopped continues from there;
FOLDER/POINT.md and POINT.json have the table so far. Namespaces, cables and run folders are removed at the
end, also after an error.
"""

import argparse
import datetime
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

from hosts import BURST, Hosts
from jobs import CODECS, ROOT, JobError, Row, ddp, train

HOOKS = ["full", "fp16", "powersgd"]
STEPS = {"alexnet": 8, "resnet50": 4, "resnet20": 40}
BATCH = {"alexnet": 32, "resnet50": 8, "resnet20": 64}
LOCAL_STEPS = 8  # of the point local, whose steps are these
LOCAL_RUN = 64


def rows_of(options):
    """The rows of a point, in the order in which a round runs them."""
    def steps(network):
        return options.steps or (LOCAL_RUN if options.local_steps else STEPS.get(network, 8))

    def batch(network):
        return options.batch or BATCH.get(network, 32)

    def ours(network, codecs, rates, computes=("fp32",), **more):
        return [Row(network, batch(network), steps(network), rate=rate, codec=codec, compute=compute,
                    local_steps=options.local_steps, **more)
                for rate in rates for codec in codecs for compute in computes]

    def theirs(network, hooks, rates, codecs=("",)):
        return [Row(network, batch(network), steps(network), rate=rate, hook=hook, python=python, label=label,
                    local_steps=options.local_steps, codec=codec)
                for rate in rates for label, python in options.torch for hook in hooks for codec in codecs]

    def and_emulated(rows):
        pairs = [(row, Row(**{**vars(row), "over": "emulated"})) for row in rows]
        return [r for pair in pairs for r in pair if r.over == "cable" or r.rate in BURST]

    if options.point == "ddp":
        return [row for network in ("alexnet", "resnet50")
                for row in ours(network, ["none", "qsgd8", "qsgd4", "onebit"], ["1gbit"], ["fp32", "bf16"])
                + theirs(network, HOOKS, ["1gbit"])]
    if options.point == "hook":
        return [row for network in ("alexnet", "resnet50")
                for row in theirs(network, HOOKS, ["1gbit"])
                + theirs(network, ["lpsgd"], ["1gbit"], ["none", "qsgd8", "qsgd4", "onebit"])]
    if options.point == "local":
        return [row for network in ("alexnet", "resnet20")
                for row in ours(network, ["none", "sign"], ["1gbit"]) + theirs(network, ["full"], ["1gbit"])]
    if options.point == "overlap":
        return ours("alexnet", ["qsgd4"], ["1gbit", "unshaped"], ["fp32", "bf16"], trace=True)
    if options.point == "emulated":
        return [
            row
            for network in ("alexnet", "resnet20")
            for row in and_emulated(
                ours(network, ["none", "qsgd4", "onebit"], ["100mbit", "1gbit", "10gbit"])
            )
        ]
    if options.point == "bytes":
        return [
            row
            for network in ("alexnet", "resnet20")
            for row in ours(network, ["none", "qsgd8", "qsgd4", "onebit"], ["1gbit"])
        ]
    if options.point == "blocks":
        alone = [Row("resnet20", batch("resnet20"), steps("resnet20"), ranks=4, rate="", over="local", codec=codec)
                 for codec in ("none", "qsgd4")]
        return alone + [
            Row("resnet20", batch("resnet20"), steps("resnet20"), ranks=4, rate=rate, codec=codec, per_host=2,
                hierarchical=hierarchical)
            for rate in ("100mbit", "1gbit")
            for codec in ("none", "qsgd4")
            for hierarchical in (False, True)
        ]
    if options.point == "ranks":
        return [
            Row(
                "resnet20",
                batch("resnet20"),
                steps("resnet20"),
                ranks=ranks,
                rate="",
                over="local",
                codec=codec,
            )
            for codec in ("none", "qsgd4")
            for ranks in (2, 8)
        ]
    rows = []
    for network in options.networks:
        cable = ours(network, options.codecs, options.rates, options.computes)
        rows += (and_emulated(cable) if options.emulate else cable) + theirs(
            network, options.hooks, options.rates
        )
    return rows


def library():
    """That lpsgd's hook loads: python/lpsgd/library.py. None where it is missing."""
    beside = os.path.join(ROOT, "python", "lpsgd", "liblpsgd.so")
    named = os.environ.get("LPSGD_LIBRARY")
    paths = [named] if named else [beside, os.path.join(ROOT, "build", "release", "liblpsgd.so")]
    return next(filter(os.path.exists, paths), None)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


class Results:
    """One JSON file per row and round. Rows of another build of lpsgd are ignored, also those of its hook; PyTorch's
    own do not depend on it."""

    def __init__(self, folder, lpsgd, hook_library=None):
        self.folder = os.path.join(folder, "rows")
        os.makedirs(self.folder, exist_ok=True)
        self.build = digest(lpsgd)
        self.hook_build = digest(hook_library) if hook_library else None

    def build_of(self, row):
        return self.hook_build if row.hook == "lpsgd" else self.build

    def path(self, row, number):
        return os.path.join(self.folder, f"{row.key}.{number}.json")

    def read(self, row, number):
        """None if there is none. If it failed, `failed` says why."""
        try:
            with open(self.path(row, number), encoding="utf-8") as file:
                result = json.load(file)
        except FileNotFoundError:
            return None
        return result if row.hook not in ("", "lpsgd") or result["build"] == self.build_of(row) else None

    def done(self, row, number):
        result = self.read(row, number)
        return result is not None and "failed" not in result

    def keep(self, row, number, result):
        with open(self.path(row, number) + ".part", "w", encoding="utf-8") as file:
            json.dump({**result, "build": self.build_of(row)}, file)
        os.rename(self.path(row, number) + ".part", self.path(row, number))

    def of(self, row, rounds):
        """Every key's median over the finished rounds; None if there are none."""
        by_round = {number: r for number in range(rounds) if (r := self.read(row, number))}
        results = list(by_round.values())
        found = [r for r in results if "failed" not in r]
        if not results:
            return None
        common = {**vars(row), "name": row.name, "rounds": len(found), "failures": len(results) - len(found)}
        if not found:
            return {**common, "failed": results[0]["failed"]}
        out = {
            k: statistics.median(f[k] for f in found) if isinstance(v, (int, float)) else v
            for k, v in found[0].items()
        }
        notes = [f["note"] for f in found if "note" in f]
        if notes:
            out["note"] = notes[0]
        return {
            **common,
            **out,
            "range": [min(f["samples_per_s"] for f in found), max(f["samples_per_s"] for f in found)],
            "steps_s": {number: r["step_s"] for number, r in by_round.items() if "failed" not in r},
        }


def measure(options, rows, results):
    """Runs the rows without a result. Returns how many failed."""
    failed, jobs = 0, [(number, row) for number in range(options.rounds) for row in rows]
    jobs = [(number, row) for number, row in jobs if not results.done(row, number)]
    print(
        f"{len(rows) * options.rounds - len(jobs)} of {len(rows) * options.rounds} rows have a result",
        flush=True,
    )
    hosts, started = None, None
    try:
        for i, (number, row) in enumerate(jobs):
            wanted = (row.ranks // row.per_host, row.rate, row.per_host) if row.over == "cable" else started
            if wanted != started:
                if hosts:
                    hosts.__exit__()
                hosts, started = Hosts(*wanted).__enter__(), wanted
            print(
                f"[{i + 1}/{len(jobs)}] round {number + 1}: {row.network}, {row.ranks} ranks, "
                f"{row.over} {row.rate}, {row.name} ...",
                end=" ",
                flush=True,
            )
            start = time.time()
            try:
                trace = os.path.join(options.out, "trace-" + row.key) if row.trace else None
                result = ddp(row, hosts) if row.hook else train(row, hosts, options.lpsgd, trace)
                results.keep(row, number, result)
                print(f"{result['samples_per_s']:.2f} samples/s ({time.time() - start:.0f} s)", flush=True)
            except JobError as error:
                failed += 1
                results.keep(row, number, {"failed": str(error)})
                print(f"failed: {error}", flush=True)
            write(options, rows, results)
    finally:
        if hosts:
            hosts.__exit__()
    return failed


# The columns: a title, and a row's text for it from (result, all results).
def of_ddp(label, hooks):
    """Our samples/s over those of the best of these hooks of that PyTorch with the same local steps; none if
    one of them failed."""
    def text(r, everything):
        rivals = [
            o
            for o in everything
            if o["hook"] in hooks
            and o["label"] == label
            and all(o[k] == r[k] for k in ("network", "rate", "local_steps"))
        ]
        if not rivals or any("failed" in o for o in rivals):
            return ""
        return f"{r['samples_per_s'] / max(o['samples_per_s'] for o in rivals):.2f}x"
    return text


def ratio_of_rounds(r, other, factor=1):
    """The median ratio of steps of the same round, which ran one after the other, because the machine's speed
    drifts."""
    ratios = [
        factor * seconds / other["steps_s"][number]
        for number, seconds in r["steps_s"].items()
        if number in other["steps_s"]
    ]
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.3f}" + (
        f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    )


def against_real(r, everything):
    real = [
        o
        for o in everything
        if "failed" not in o
        and o["over"] == "cable"
        and r["over"] == "emulated"
        and not o["hook"]
        and all(o[k] == r[k] for k in ("network", "codec", "rate", "compute"))
    ]
    return ratio_of_rounds(r, real[0]) if real else ""


def against_two_ranks(r, everything):
    two = [o for o in everything if "failed" not in o and o["ranks"] == 2 and o["codec"] == r["codec"]]
    return ratio_of_rounds(r, two[0], 2 / r["ranks"]) if two else ""


def cable_of_step(r, _):
    if r["cable_bytes"] is None:
        return ""
    sent = r["cable_bytes"] - r["start_bytes"]
    return f"{sent / (2 * r['steps']) / 1e6:.3f} MB"  # of two epochs


def against_flat(r, everything):
    flat = [o for o in everything if "failed" not in o and not o["hierarchical"]
            and all(o[key] == r[key] for key in ("codec", "rate", "network"))]
    return ratio_of_rounds(r, flat[0]) if flat and r["hierarchical"] else ""


COMMON = {
    "network": lambda r, _: f"{r['network']}, {r['ranks']} ranks, {r['batch']} samples each",
    "link": lambda r, _: {"cable": r["rate"], "emulated": f"{r['rate']}, emulated", "local": "one host"}[
        r["over"]
    ],
    "who": lambda r, _: r["name"]
    + (f" ({r['torch']})" if r.get("torch") else "")
    + (f" ({r['note']})" if r.get("note") else ""),
    "samples/s": lambda r, _: f"{r['samples_per_s']:.2f}",
    "min-max": lambda r, _: f"{r['range'][0]:.2f}-{r['range'][1]:.2f}",
    "step": lambda r, _: f"{1e3 * r['step_s']:.0f} ms",
}
EXPOSED = {"exposed": lambda r, _: f"{100 * r['exposed']:.1f} %" if "exposed" in r else ""}
WIRE = {"wire": lambda r, _: f"{r['wire_ratio']:.1f}x less" if "wire_ratio" in r else ""}
CABLE = {
    "bytes_sent": lambda r, _: f"{r['bytes_sent'] / 1e6:.2f} MB" if "bytes_sent" in r else "",
    "on the cable / bytes_sent": lambda r, _: (
        f"{(r['cable_bytes'] - r['start_bytes']) / r['bytes_sent']:.3f}" if r.get("cable_bytes") else ""
    ),
    "with start and end": lambda r, _: (
        f"{r['cable_bytes'] / r['bytes_sent']:.3f}" if r.get("cable_bytes") else ""
    ),
    "other / total": lambda r, _: f"{100 * r['other']:.2f} %" if "other" in r else "",
}
COLUMNS = {  # ddp, hook, local and own: also of_ddp
    "ddp": COMMON | EXPOSED | WIRE,
    "hook": COMMON,
    "local": COMMON | EXPOSED | WIRE,
    "overlap": COMMON | EXPOSED,
    "emulated": COMMON | EXPOSED | {"emulated / real": against_real},
    "bytes": COMMON | CABLE,
    "blocks": COMMON | EXPOSED | {"on the cable, a step": cable_of_step, "step / flat step": against_flat},
    "ranks": COMMON | {"step / (ranks/2 steps of 2 ranks)": against_two_ranks},
    "own": COMMON | EXPOSED | WIRE | CABLE | {"emulated / real": against_real},
}


def columns_of(options):
    columns = dict(COLUMNS[options.point])
    if options.point not in ("ddp", "hook", "local", "own"):
        return columns
    for label, _ in options.torch:
        if options.local_steps:
            columns[f"of post-local SGD, {label}"] = of_ddp(label, ["full"])
            continue
        columns[f"of best DDP, {label}"] = of_ddp(label, HOOKS)
        columns[f"of full DDP, {label}"] = of_ddp(label, ["full"])
    return columns


def environment(options):
    version = subprocess.run(
        [options.lpsgd, "version", "--json"], check=True, capture_output=True, text=True
    ).stdout
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"^model name\s*: (.*)", file.read(), re.M)
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model.group(1) if model else "?",
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "load": os.getloadavg(),
        "lpsgd": json.loads(version),
    }


def write(options, rows, results):
    """The table so far."""
    found = [r for r in (results.of(row, options.rounds) for row in rows) if r]
    columns = columns_of(options)
    where = options.environment

    def cell(title, r):
        if "failed" in r and title not in ("network", "link", "who"):
            return "failed" if title == "samples/s" else ""
        return columns[title](r, found)

    lines = [
        f"{where['date']}, {where['cores']} cores of {where['cpu']}, Linux {where['kernel']}; "
        f"load before: {where['load'][0]:.1f}. "
        f"{'; '.join(f'{r}: burst {b >> 10} KiB' for r, b in BURST.items())}. "
        f"Medians of up to {options.rounds} rounds.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    lines += ["| " + " | ".join(cell(title, r) for title in columns) + " |" for r in found]
    with open(os.path.join(options.out, options.point + ".md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    with open(os.path.join(options.out, options.point + ".json"), "w", encoding="utf-8") as file:
        json.dump(
            {"point": options.point, "environment": where, "burst": BURST, "rows": found}, file, indent=1
        )
    return "\n".join(lines)


def words(text):
    return [w for w in text.split(",") if w]


def interpreter(text):
    label, _, path = text.rpartition("=")
    return label or path, path


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("point", choices=COLUMNS)
    parser.add_argument("--out", required=True, help="folder for rows and tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each of the two epochs of a run; the second counts")
    parser.add_argument("--only", help="rows whose key matches this pattern")
    parser.add_argument("--torch", type=interpreter, action="append", metavar="[LABEL=]PYTHON",
                        help="an interpreter that has PyTorch; may be repeated (default /usr/bin/python3)")
    parser.add_argument("--lpsgd", default=os.path.join(ROOT, "build/release/lpsgd"))
    parser.add_argument(
        "--networks", type=words, default=["resnet20"], help="own: files of configs/networks, without .yaml"
    )
    parser.add_argument("--batch", type=int, help="samples a rank")
    parser.add_argument(
        "--rates", type=words, default=["1gbit"], help=f"own: of {', '.join(BURST)}, unshaped"
    )
    parser.add_argument(
        "--codecs", type=words, default=["none", "qsgd4"], help=f"own: of {', '.join(CODECS)}"
    )
    parser.add_argument("--computes", type=words, default=["fp32"], help="own: fp32, bf16")
    parser.add_argument("--local-steps", type=int, metavar="H",
                        help=f"local and own: weights are averaged every H steps, ours and DDP's (local: {LOCAL_STEPS})")
    parser.add_argument("--hooks", type=words, default=[], help=f"own: DDP's, of {', '.join(HOOKS)}")
    parser.add_argument(
        "--emulate", action="store_true", help="own: also over the emulated link, on one host"
    )
    options = parser.parse_args()
    if options.local_steps and options.point not in ("local", "own"):
        parser.error("--local-steps: of the points local and own")
    options.local_steps = options.local_steps or (LOCAL_STEPS if options.point == "local" else 0)
    if options.local_steps and (options.steps or LOCAL_RUN) % options.local_steps:
        parser.error(f"--steps: with local steps a multiple of {options.local_steps}")
    if options.local_steps and options.hooks not in ([], ["full"]):
        parser.error("--hooks: with local steps full")
    options.torch = options.torch or [("Debian's PyTorch", "/usr/bin/python3")]
    if len({label for label, _ in options.torch}) < len(options.torch):
        parser.error("--torch: two interpreters of one label")
    for given, known in (
        (options.codecs, CODECS),
        (options.rates, [*BURST, "unshaped"]),
        (options.hooks, HOOKS),
    ):
        unknown = [g for g in given if g not in known]
        if unknown:
            parser.error(f"{', '.join(unknown)}: not known; there are {', '.join(known)}")
    rows = rows_of(options)
    if options.only:
        rows = [row for row in rows if re.search(options.only, row.key)]
    if os.geteuid() != 0 and any(row.over == "cable" for row in rows):
        sys.exit("link.py: making network namespaces needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed, too
    options.out = os.path.abspath(options.out)
    results = Results(options.out, options.lpsgd, library())
    options.environment = environment(options)
    failed = measure(options, rows, results)
    print(write(options, rows, results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
