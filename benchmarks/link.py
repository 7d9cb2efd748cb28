"""A link of limited rate between two processes, without root: two network namespaces and a veth pair.

The program starts itself anew as root of a user and network namespace (`enter`). There worker 0 stays;
worker 1 gets a network namespace of its own with the other end of the link (`start_workers`). `tc` limits
what leaves each end. All of it ends with the processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INSIDE = "NARROWCAST_BENCH_NAMESPACE"
DEVICE = ("narrow0", "narrow1")
BURST = {10: "4kb", 100: "16kb", 1000: "128kb"}  # by Mbit/s: small beside a message


def inside() -> bool:
    """Whether this process, or the one that started it, has entered its namespace."""
    return INSIDE in os.environ


def enter() -> None:
    """Start this program anew as root of its own user and network namespace."""
    lacking = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if lacking:
        sys.exit(f"this benchmark limits a link by {', '.join(lacking)}, which is missing: install iproute2")
    os.environ[INSIDE] = "1"
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, *sys.argv]
    os.execvp(command[0], command)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def start_workers(arguments: list[str]) -> None:
    """Worker 0 here, worker 1 in a network namespace of its own that holds the other end of the link."""
    ip("link", "add", DEVICE[0], "type", "veth", "peer", "name", DEVICE[1])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *arguments, "--store", f"{folder}/store", "--worker"]
        other = subprocess.Popen(["unshare", "--net", *command, "1"])
        try:
            while os.readlink(f"/proc/{other.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
                time.sleep(0.01)
            ip("link", "set", DEVICE[1], "netns", str(other.pid))
            subprocess.run([*command, "0"], check=True)
            other.wait(60)
        finally:
            other.kill()


def come_up(worker: int) -> None:
    device = DEVICE[worker]
    while device not in Path("/proc/net/dev").read_text():
        time.sleep(0.01)
    ip("addr", "add", f"10.9.9.{worker + 1}/24", "dev", device)
    ip("link", "set", device, "up")
    os.environ["GLOO_SOCKET_IFNAME"] = device


def limit(worker: int, rate: int | None) -> None:
    """Let at most `rate` Mbit/s out of this worker's end; None: all the machine can."""
    kind = ["tbf", "rate", f"{rate}mbit", "burst", BURST[rate], "latency", "500ms"] if rate else ["pfifo"]
    subprocess.run(["tc", "qdisc", "replace", "dev", DEVICE[worker], "root", *kind], check=True)


def sent(worker: int) -> int:
    """Bytes that have left this worker's interface."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = next(line.split(":", 1)[1].split() for line in lines if line.strip().startswith(DEVICE[worker]))
    return int(fields[8])
