"""A SuperLink and SuperNodes of this machine, as processes of their own: for the demo, and for tests.

Everything they write is below one folder, and every process that was started ends with the `with` block,
whatever ends that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

CONNECTION = "local"  # the name of the SuperLink in Flower's own configuration
START_SECONDS = 60.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class Tls:
    """Files of a certificate for 127.0.0.1."""

    ca: Path
    certificate: Path
    key: Path


class LocalFleet:
    def __init__(self, folder: Path, tls: Tls | None = None, authenticate: bool = False) -> None:
        self.folder, self.tls, self.authenticate = folder, tls, authenticate
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.home = folder / "flwr"
        self.home.mkdir(exist_ok=True)
        trust = f'root-certificates = "{tls.ca}"' if tls else "insecure = true"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    def __enter__(self) -> LocalFleet:
        try:
            self.superlink = self.start_superlink()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """A SuperLink that answers; its registrations outlive it in a database."""
        secure = ["--insecure"]
        if self.tls:
            secure = ["--ssl-ca-certfile", str(self.tls.ca), "--ssl-certfile", str(self.tls.certificate)]
            secure += ["--ssl-keyfile", str(self.tls.key)]
        if self.authenticate:
            secure += ["--enable-supernode-auth", "--database", str(self.folder / "superlink.db")]
        process = self.start(
            "superlink", "flower-superlink", *secure, "--host", "127.0.0.1", "--port", str(self.port)
        )
        end = time.monotonic() + START_SECONDS
        while not listens(self.port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the SuperLink did not start:\n{self.log('superlink')[-2000:]}")
            time.sleep(0.1)
        return process

    def start_node(
        self, part: int, parts: int, *, through: int | None = None, key: Path | None = None, **config: Any
    ) -> subprocess.Popen[bytes]:
        """Node `part` of `parts`, connected to the SuperLink or `through` another port."""
        secure = ["--root-certificates", str(self.tls.ca)] if self.tls else ["--insecure"]
        secure += ["--auth-supernode-private-key", str(key)] if key else []
        values = {"partition-id": part, "num-partitions": parts, **config}
        words = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in values.items())
        address = f"127.0.0.1:{through or self.port}"
        return self.start(
            f"node-{part}", "flower-supernode", *secure, "--superlink", address, "--host", "127.0.0.1",
            "--port", str(free_port()), "--node-config", words,
        )  # fmt: skip

    def register(self, key: Path) -> None:
        """Let the node with this key in."""
        process = self.start("register", "flwr", "supernode", "register", f"{key}.pub", CONNECTION)
        if process.wait(START_SECONDS):
            raise RuntimeError(f"the node's key was not registered:\n{self.log('register')[-2000:]}")

    def run(self, app: Path, **config: Any) -> subprocess.Popen[bytes]:
        """Submit the app, and stream its log; the process ends with the run."""
        words = " ".join(
            f'narrowcast.{k.replace("_", "-")}="{v}"'
            if isinstance(v, str)
            else f"narrowcast.{k.replace('_', '-')}={str(v).lower()}"
            for k, v in config.items()
        )
        more = ["--run-config", words] if words else []
        return self.start("run", "flwr", "run", str(app), CONNECTION, "--stream", *more)

    def start(self, name: str, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A process in a session of its own, so that all of its children can be ended with it."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [Path(sys.executable).parent / command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def environment(self) -> dict[str, str]:
        own = str(Path(sys.executable).parent)  # the SuperLink finds Flower's other commands there
        return os.environ | {
            "PATH": own + os.pathsep + os.environ.get("PATH", ""),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def log(self, name: str) -> str:
        """What the process of this name has said so far."""
        with contextlib.suppress(OSError):
            return (self.folder / f"{name}.log").read_text(errors="replace")
        return ""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As a power cut would: the process and all that it has started, at once."""
        gone = {process.pid, *_descendants(process.pid)}
        _signal(process, signal.SIGKILL)
        _kill(gone)
        process.wait()

    def end(self) -> None:
        """End every process that was started, gently and then not."""
        for process in reversed(self.processes):
            _signal(process, signal.SIGTERM)
        end = time.monotonic() + END_SECONDS
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in self.processes:
            _signal(process, signal.SIGKILL)
            process.wait()
        _kill(self._left())
        self.processes.clear()

    def _left(self) -> set[int]:
        """Processes that Flower has started in sessions of their own: they too have our FLWR_HOME."""
        mark = f"FLWR_HOME={self.home}".encode()
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.add(int(path.parent.name))
        return found


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the whole session: also to children whose parent has ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> set[int]:
    """Of a process, children of children and all (Linux)."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found, todo = set[int](), [pid]
    while todo:
        new = children.get(todo.pop(), [])
        found.update(new)
        todo += new
    return found


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with socket.socket() as s:
        s.settimeout(1.0)
        return s.connect_ex(("127.0.0.1", port)) == 0
