#!/usr/bin/env python3
"""Training over a real, slow network link on one machine: hosts are network namespaces joined by veth pairs, shaped by
`tc tbf`. lpsgd, with several codecs, beside PyTorch's DistributedDataParallel over gloo, in turns in one run.

    link.py --network alexnet --batch 32 --rate 1gbit                       (as root; needs iproute2 and MPICH)
    link.py --network resnet20 --batch 64 --rate 100mbit --emulate          also the emulated link, for comparison

Each host runs one rank of one thread. A table on standard output, one line of JSON at its end. Namespaces, cables and run
folders are removed at the end, also after an error.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Bytes that leave at once after a pause. Less than this and tbf cannot keep the rate; more and the link is not the one named.
BURST = {"100mbit": "64kb", "1gbit": "256kb", "10gbit": "2mb"}
CODECS = {
    "none": "{kind: none}",
    "qsgd8": "{kind: qsgd, bits: 8, bucket: 512}",
    "qsgd4": "{kind: qsgd, bits: 4, bucket: 512}",
    "qsgd2": "{kind: qsgd, bits: 2, bucket: 128}",
    "onebit": "{kind: onebit, bucket: 64}",
}


def sh(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **options).stdout


class Hosts:
    """Namespaces lpsgd1.. with addresses 10.77.0.1.., each behind a shaped veth into one bridge (or, two of them, joined)."""

    def __init__(self, count, rate):
        self.count, self.rate = count, rate

    def __enter__(self):
        self.remove()
        try:
            for i in range(1, self.count + 1):
                sh("ip", "netns", "add", f"lpsgd{i}")
                sh("ip", "-n", f"lpsgd{i}", "link", "set", "lo", "up")
            if self.count == 2:
                sh("ip", "link", "add", "eth0", "netns", "lpsgd1", "type", "veth", "peer", "name", "eth0", "netns", "lpsgd2")
            else:
                sh("ip", "netns", "add", "lpsgdswitch")
                sh("ip", "-n", "lpsgdswitch", "link", "add", "switch", "type", "bridge")
                sh("ip", "-n", "lpsgdswitch", "link", "set", "switch", "up")
                for i in range(1, self.count + 1):
                    sh("ip", "link", "add", "eth0", "netns", f"lpsgd{i}", "type", "veth", "peer", "name", f"port{i}", "netns",
                       "lpsgdswitch")
                    sh("ip", "-n", "lpsgdswitch", "link", "set", f"port{i}", "master", "switch", "up")
                    self.shape("lpsgdswitch", f"port{i}")
            for i in range(1, self.count + 1):
                sh("ip", "-n", f"lpsgd{i}", "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                sh("ip", "-n", f"lpsgd{i}", "link", "set", "eth0", "up")
                self.shape(f"lpsgd{i}", "eth0")
            deadline = time.time() + 10
            while any("LOWER_UP" not in (link := sh("ip", "-n", f"lpsgd{i}", "link", "show", "eth0")) or "NO-CARRIER" in link
                      for i in range(1, self.count + 1)):
                if time.time() > deadline:
                    sys.exit("link.py: the cables do not come up")
                time.sleep(0.05)
            return self
        except BaseException:
            self.remove()
            raise

    def shape(self, host, device):
        if self.rate != "unshaped":
            sh("tc", "-n", host, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, "burst", BURST[self.rate],
               "latency", "50ms")

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        for line in sh("ip", "netns", "list").splitlines():
            if line.startswith("lpsgd"):
                subprocess.run(["ip", "netns", "del", line.split()[0]], check=False)

    def addresses(self):
        return [f"10.77.0.{i}" for i in range(1, self.count + 1)]

    def bytes_sent(self):
        """Of all hosts, as the kernel counted them on the cables."""
        return sum(int(sh("ip", "netns", "exec", f"lpsgd{i}", "cat", "/sys/class/net/eth0/statistics/tx_bytes"))
                   for i in range(1, self.count + 1))


def train(options, folder, name, settings, prefix):
    """One run of two epochs; the second's record, and the bytes that the kernel saw are the caller's to count."""
    out = os.path.join(folder, name)
    config = os.path.join(folder, "config.yaml")
    shape = re.search(r"^input: \[(\d+), *(\d+), *(\d+)\]", open(options.network_file).read(), re.M).groups()
    classes = re.search(r"^classes: (\d+)", open(options.network_file).read(), re.M).group(1)
    with open(config, "w") as file:
        samples = options.steps * options.batch * options.hosts
        file.write(f"network: {options.network_file}\n"
                   f"data: {{dataset: noise, image: [{', '.join(shape)}], classes: {classes}, train_samples: {samples}, "
                   f"test_samples: {options.hosts}}}\n"
                   f"train: {{epochs: 2, batch_size: {options.batch * options.hosts}, threads: 1}}\n"
                   "schedule: {lr: 0.001}\ncheckpoint: {every_epochs: 0}\n")
    command = [*prefix, options.lpsgd, "train", config, "--out", out]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with open(os.path.join(out, "metrics.jsonl")) as file:
        records = [json.loads(line) for line in file]
    shutil.rmtree(out)
    record = records[-1]
    steps = record["samples"] / (options.batch * options.hosts)
    busy = record["communication_s"] + record["computation_s"]
    return {"name": name, "samples_per_s": record["samples_per_s"], "step_s": busy / steps,
            "exposed": record["seconds"]["exposed_comm"] / busy, "bytes_sent": sum(r["bytes_sent"] for r in records),
            "wire_ratio": record["bytes_fp32"] / max(1, record["bytes_sent"])}


def mpirun(hosts):
    # No shared memory between ranks: what travels goes over the cable.
    return ["ip", "netns", "exec", "lpsgd1", "env", "MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0", "mpirun",
            "-iface", "eth0", "-launcher", "ssh", "-launcher-exec", os.path.join(HERE, "enter"), "-hosts",
            ",".join(hosts.addresses()), "-ppn", "1", "-n", str(hosts.count)]


def ddp(options, hosts, hook):
    processes = []
    for rank in range(hosts.count):
        command = ["ip", "netns", "exec", f"lpsgd{rank + 1}", "env", f"RANK={rank}", f"WORLD_SIZE={hosts.count}",
                   "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29577", "GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", options.python,
                   os.path.join(HERE, "ddp.py"), "--network", options.network, "--batch", str(options.batch), "--steps",
                   str(options.steps), "--hook", hook]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [p.communicate() for p in processes]
    if any(p.returncode for p in processes):
        sys.exit(f"ddp.py ended with {[p.returncode for p in processes]}:\n" + "".join(err for _, err in outputs))
    step = max(json.loads(out)["step_s"] for out, _ in outputs)
    return {"name": f"ddp {hook}", "samples_per_s": options.batch * hosts.count / step, "step_s": step}


def emulated_link(rate):
    return f"exchange.link={{bandwidth: {rate.replace('gbit', 'Gbit').replace('mbit', 'Mbit')}, latency: 30us}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="alexnet", help="a file of configs/networks, without .yaml")
    parser.add_argument("--batch", type=int, default=32, help="samples a host")
    parser.add_argument("--rate", default="1gbit", choices=[*BURST, "unshaped"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of each of the two epochs of a run; the second counts")
    parser.add_argument("--codecs", default="none,qsgd8,qsgd4,onebit", help=f"of {', '.join(CODECS)}")
    parser.add_argument("--ddp", default="full,fp16,powersgd", help="PyTorch's hooks; empty: none")
    parser.add_argument("--emulate", action="store_true", help="also over the emulated link, on one host")
    parser.add_argument("--python", default="/usr/bin/python3", help="the one that has PyTorch")
    parser.add_argument("--lpsgd", default=os.path.join(ROOT, "build/release/lpsgd"))
    options = parser.parse_args()
    options.network_file = os.path.join(ROOT, "configs/networks", options.network + ".yaml")
    if os.geteuid() != 0:
        sys.exit("link.py: making network namespaces needs root")
    rows = []
    with tempfile.TemporaryDirectory(prefix="lpsgd-link-") as folder, Hosts(options.hosts, options.rate) as hosts:
        for codec in filter(None, options.codecs.split(",")):
            setting = f"exchange.codec={CODECS[codec]}"
            before = hosts.bytes_sent()
            row = train(options, folder, f"lpsgd {codec}", [setting], mpirun(hosts))
            row["kernel_bytes_ratio"] = (hosts.bytes_sent() - before) / row["bytes_sent"]
            rows.append(row)
            print(row, file=sys.stderr)
            if options.emulate:
                row = train(options, folder, f"lpsgd {codec}, emulated", [setting, emulated_link(options.rate)],
                            ["mpirun", "-n", str(options.hosts)])
                row["against_real"] = row["step_s"] / rows[-1]["step_s"]
                rows.append(row)
                print(row, file=sys.stderr)
        for hook in filter(None, options.ddp.split(",")):
            rows.append(ddp(options, hosts, hook))
            print(rows[-1], file=sys.stderr)
    best = max((r["samples_per_s"] for r in rows if r["name"].startswith("ddp")), default=None)
    print(f"{options.network}, {options.hosts} hosts, {options.batch} samples a host, {options.rate} (burst "
          f"{BURST.get(options.rate, '-')})")
    print(f"{'':28} {'samples/s':>10} {'step':>9} {'exposed':>8} {'wire':>7} {'cable/ours':>10} {'of best DDP':>12}")
    for r in rows:
        print(f"{r['name']:28} {r['samples_per_s']:10.2f} {r['step_s']:8.3f}s "
              + (f"{100 * r['exposed']:7.1f}% {r['wire_ratio']:6.1f}x " if "exposed" in r else f"{'':8} {'':7} ")
              + (f"{r['kernel_bytes_ratio']:10.3f}" if "kernel_bytes_ratio" in r else f"{'':10}")
              + (f" {r['samples_per_s'] / best:11.2f}x" if best else ""))
    print(json.dumps({"network": options.network, "hosts": options.hosts, "batch": options.batch, "rate": options.rate,
                      "burst": BURST.get(options.rate), "rows": rows}))


main()
