"""What one row of a table runs: lpsgd, or PyTorch's DistributedDataParallel, on hosts that exist already."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

from hosts import BURST, MPIRUN

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CODECS = {
    "none": "{kind: none}",
    "fp16": "{kind: fp16}",
    "qsgd8": "{kind: qsgd, bits: 8, bucket: 512}",
    "qsgd4": "{kind: qsgd, bits: 4, bucket: 512}",
    "qsgd2": "{kind: qsgd, bits: 2, bucket: 128}",
    "onebit": "{kind: onebit, bucket: 64}",
    "topk": "{kind: topk, density: 0.01}",
    "sign": "{kind: sign}",  # with error feedback: EF-sign
}
LIMIT = 1800  # seconds of one command


class JobError(Exception):
    pass


@dataclass(frozen=True)
class Row:
    """`over`: the cable, or emulated (its link, one host), or local (one host, no link)."""

    network: str
    batch: int  # samples a rank
    steps: int  # lpsgd: of each of two epochs, the second counts; DDP: after a warm-up of half as many
    ranks: int = 2
    rate: str = "1gbit"
    over: str = "cable"
    codec: str = ""  # of lpsgd, or of its hook
    compute: str = "fp32"
    hook: str = ""  # of DDP
    python: str = ""  # DDP's, with PyTorch
    label: str = ""  # of that python
    trace: bool = False
    local_steps: int = 0  # from one average of the ranks' weights to the next; 0: gradients in every step
    per_host: int = 1  # ranks
    hierarchical: bool = False  # the exchange's collective

    @property
    def name(self):
        local = f", H = {self.local_steps}" if self.local_steps else ""
        if self.hook:
            hook = f"lpsgd's hook, {self.codec}" if self.codec else self.hook
            return f"{'post-local SGD' if local else 'DDP ' + hook}{local}, {self.label}"
        blocks = ", hierarchical" if self.hierarchical else ""
        return f"lpsgd {self.codec}{local}{blocks}" + ("" if self.compute == "fp32" else f", {self.compute}")

    @property
    def key(self):
        parts = [
            self.network,
            str(self.batch),
            f"{self.ranks}ranks",
            f"{self.steps}steps",
            self.rate,
            self.over,
            self.name,
        ]
        parts += [f"{self.per_host}-a-host"] if self.per_host > 1 else []
        parts += ["traced"] if self.trace else []
        return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower())


def run(command, **environment):
    try:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=LIMIT,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    except subprocess.TimeoutExpired:
        raise JobError(f"{' '.join(map(str, command))}\nhas not ended after {LIMIT} s") from None
    if done.returncode:
        raise JobError(
            f"{' '.join(map(str, command))}\nended with {done.returncode}:\n"
            f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def network_file(row):
    return os.path.join(ROOT, "configs/networks", row.network + ".yaml")


def shape_and_classes(text):
    """Of the text of a network's file: its input as words, and its number of classes, which may be a parameter."""
    shape = re.search(r"^input: \[(\d+), *(\d+), *(\d+)\]", text, re.M).groups()
    classes = re.search(r"^classes: (\S+)", text, re.M).group(1)
    if classes.startswith("$"):
        classes = re.search(rf"^parameters: .*\b{classes[1:]}: (\d+)", text, re.M).group(1)
    return shape, int(classes)


def train(row, hosts, lpsgd, trace_folder=None):
    """Two epochs on images of noise. Returns the second one's record, and the bytes that the kernel counted
    on the cables."""
    with open(network_file(row), encoding="utf-8") as file:
        text = file.read()
    shape, classes = shape_and_classes(text)
    with tempfile.TemporaryDirectory(prefix="lpsgd-link-") as folder:
        blocks = f", collective: hierarchical, ranks_per_block: {row.per_host}" if row.hierarchical else ""
        config, out = os.path.join(folder, "config.yaml"), os.path.join(folder, "out")
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                f"network: {network_file(row)}\n"
                f"data: {{dataset: noise, image: [{', '.join(shape)}], classes: {classes}, "
                f"train_samples: {row.steps * row.batch * row.ranks}, test_samples: {row.ranks}}}\n"
                f"train: {{epochs: 2, batch_size: {row.batch * row.ranks}, "
                f"threads: 1, compute: {row.compute}}}\n"
                f"exchange: {{codec: {CODECS[row.codec]}{blocks}}}\n"
                "optimizer: {momentum: 0.9, weight_decay: 1.0e-4}\n"  # ddp.py's, too
                "schedule: {lr: 0.001}\ncheckpoint: {every_epochs: 0}\n"
            )
            if row.local_steps:  # PyTorch measures no distance either
                file.write(f"sync: {{kind: local_sgd, steps: {row.local_steps}, distance: false}}\n")
        two = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
        prefix = (
            hosts.mpirun() if row.over == "cable" else ["taskset", "-c", two, MPIRUN, "-n", str(row.ranks)]
        )
        command = [*prefix, lpsgd, "train", config, "--out", out]
        if row.over == "emulated":
            rate = row.rate.replace("gbit", "Gbit").replace("mbit", "Mbit")
            command += [
                "--set",
                f"exchange.link={{bandwidth: {rate}, latency: 30us, burst: {BURST[row.rate]}B}}",
            ]
        started = 0
        if row.over == "cable":  # bytes of start and end
            before = hosts.bytes_sent()
            run([*command, "--steps", "0"])
            shutil.rmtree(out)
            started = hosts.bytes_sent() - before
            before = hosts.bytes_sent()
        run(command)
        cable = hosts.bytes_sent() - before if row.over == "cable" else None
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        if trace_folder:
            shutil.rmtree(out)
            run([*command, "--steps", str(min(row.steps, 8)), "--trace", trace_folder])
    record, seconds = records[-1], records[-1]["seconds"]
    steps = record["samples"] / (row.batch * row.ranks)
    slowest, sent = record["seconds_max"], sum(r["bytes_sent"] for r in records)
    busy = slowest["total"] - slowest["eval"]  # of the slowest rank, by the wall clock, as ddp.py's
    return {
        "samples_per_s": record["samples"] / busy,
        "step_s": busy / steps,
        "exposed": seconds["exposed_comm"] / busy,
        "wire_ratio": record["bytes_fp32"] / max(1, record["bytes_sent"]),
        "bytes_sent": sent,
        "cable_bytes": cable,
        "start_bytes": started,
        "seconds": seconds,
        "other": seconds["other"] / seconds["total"],
    }


def ddp(row, hosts):
    """All ranks of ddp.py; the slowest one's step."""
    try:
        return ddp_ranks(row, hosts)
    except JobError as error:
        # With several buckets the hook sends its second messages in the order in which the first ones
        # returned. That order differs between ranks, so gloo matches messages of different sizes.
        if row.hook != "powersgd" or "op.preamble" not in str(error):
            raise
        return {**ddp_ranks(row, hosts, "--one-bucket"), "note": "one bucket: with several it fails"}


def ddp_ranks(row, hosts, *more):
    processes = []
    for rank in range(hosts.count):
        command = [
            "ip",
            "netns",
            "exec",
            f"lpsgd{rank + 1}",
            "env",
            f"RANK={rank}",
            f"WORLD_SIZE={hosts.count}",
            "MASTER_ADDR=10.77.0.1",
            "MASTER_PORT=29577",
            "GLOO_SOCKET_IFNAME=eth0",
            "OMP_NUM_THREADS=1",
            row.python,
            os.path.join(HERE, "ddp.py"),
            "--network",
            row.network,
            "--batch",
            str(row.batch),
            "--steps",
            str(row.steps),
            "--hook",
            row.hook,
            "--local-steps",
            str(row.local_steps),
            *(["--codec", CODECS[row.codec]] if row.codec else []),
            *more,
        ]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        outputs = [p.communicate(timeout=LIMIT) for p in processes]
    except subprocess.TimeoutExpired:
        raise JobError(f"{row.name} has not ended after {LIMIT} s") from None
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
    if any(p.returncode for p in processes):
        raise JobError(
            f"ddp.py ended with {[p.returncode for p in processes]}:\n"
            + "".join(err[-3000:] for _, err in outputs)
        )
    results = [json.loads(out) for out, _ in outputs]
    step = max(r["step_s"] for r in results)
    return {
        "samples_per_s": row.batch * hosts.count / step,
        "step_s": step,
        "torch": f"{results[0]['torch']}, {results[0]['format']}",
    }
