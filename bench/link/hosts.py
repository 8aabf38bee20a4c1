"""Hosts made of network namespaces: joined by veth pairs, shaped by `tc tbf`. As root; needs iproute2."""

import fcntl
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MPIRUN = shutil.which("mpirun.mpich") or "mpirun"
# Bytes that are sent at once after a pause. With less tbf cannot keep the rate; with more the link is faster
# than named.
BURST = {"100mbit": 64 << 10, "1gbit": 256 << 10, "10gbit": 2 << 20}


def sh(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


class Hosts:
    """Namespaces lpsgd1.. with addresses 10.77.0.1.., each behind a shaped veth into one bridge (or, two of
    them, joined)."""

    def __init__(self, count, rate, per_host=1):
        self.count, self.rate, self.per_host = count, rate, per_host

    def __enter__(self):
        self.lock = open("/tmp/lpsgd-link.lock", "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another process measures in the namespaces lpsgd1..")
        self.remove()
        try:
            for i in range(1, self.count + 1):
                sh("ip", "netns", "add", f"lpsgd{i}")
                sh("ip", "-n", f"lpsgd{i}", "link", "set", "lo", "up")
            if self.count == 2:
                sh(
                    "ip",
                    "link",
                    "add",
                    "eth0",
                    "netns",
                    "lpsgd1",
                    "type",
                    "veth",
                    "peer",
                    "name",
                    "eth0",
                    "netns",
                    "lpsgd2",
                )
            else:
                sh("ip", "netns", "add", "lpsgdswitch")
                sh("ip", "-n", "lpsgdswitch", "link", "add", "switch", "type", "bridge")
                sh("ip", "-n", "lpsgdswitch", "link", "set", "switch", "up")
                for i in range(1, self.count + 1):
                    sh(
                        "ip",
                        "link",
                        "add",
                        "eth0",
                        "netns",
                        f"lpsgd{i}",
                        "type",
                        "veth",
                        "peer",
                        "name",
                        f"port{i}",
                        "netns",
                        "lpsgdswitch",
                    )
                    sh("ip", "-n", "lpsgdswitch", "link", "set", f"port{i}", "master", "switch", "up")
                    self.shape("lpsgdswitch", f"port{i}")
            for i in range(1, self.count + 1):
                sh("ip", "-n", f"lpsgd{i}", "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                sh("ip", "-n", f"lpsgd{i}", "link", "set", "eth0", "up")
                self.shape(f"lpsgd{i}", "eth0")
            deadline = time.time() + 10
            while any(
                "LOWER_UP" not in (link := sh("ip", "-n", f"lpsgd{i}", "link", "show", "eth0"))
                or "NO-CARRIER" in link
                for i in range(1, self.count + 1)
            ):
                if time.time() > deadline:
                    sys.exit("the cables do not come up")
                time.sleep(0.05)
            return self
        except BaseException:
            self.remove()
            raise

    def shape(self, host, device):
        if self.rate != "unshaped":
            sh(
                "tc",
                "-n",
                host,
                "qdisc",
                "add",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                self.rate,
                "burst",
                f"{BURST[self.rate]}b",
                "latency",
                "50ms",
            )

    def __exit__(self, *_):
        self.remove()
        self.lock.close()

    def remove(self):
        for line in sh("ip", "netns", "list").splitlines():
            if line.startswith("lpsgd"):
                name = line.split()[0]
                for pid in sh("ip", "netns", "pids", name).split():  # processes of an interrupted job
                    subprocess.run(["kill", "-KILL", pid], check=False, capture_output=True)
                subprocess.run(["ip", "netns", "del", name], check=False)

    def addresses(self):
        return [f"10.77.0.{i}" for i in range(1, self.count + 1)]

    def bytes_sent(self):
        """Bytes of all hosts, counted by the kernel on the cables."""
        return sum(
            int(sh("ip", "netns", "exec", f"lpsgd{i}", "cat", "/sys/class/net/eth0/statistics/tx_bytes"))
            for i in range(1, self.count + 1)
        )

    def mpirun(self):
        """Consecutive ranks on a host. Ranks have no shared memory: messages between hosts use the cable, those
        within one TCP."""
        return [
            "ip",
            "netns",
            "exec",
            "lpsgd1",
            "env",
            "MPIR_CVAR_NOLOCAL=1",
            "UCX_TLS=tcp,self",
            "UCX_NET_DEVICES=eth0",
            MPIRUN,
            "-iface",
            "eth0",
            "-launcher",
            "ssh",
            "-launcher-exec",
            os.path.join(HERE, "enter"),
            "-hosts",
            ",".join(self.addresses()),
            "-ppn",
            str(self.per_host),
            "-n",
            str(self.count * self.per_host),
        ]
