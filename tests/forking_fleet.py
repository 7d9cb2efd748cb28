"""A fleet of real processes that does not import torch anew for every message.

Flower starts an interpreter for each message to a node: seconds of imports for milliseconds of work. Here the
SuperExec of every node and of the SuperLink, a process as ever, has a child that has imported everything and
starts no thread; that child forks the process of each task. All of them are its descendants, and die with it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose

EXEC = "flower-superexec"
POLL_SECONDS = 0.5  # how often a SuperExec looks for work; Flower's own: 1
IMPORTED = ("flower.client", "flower.server", "runs.runner", "tasks.digits")
COMMANDS = ("flwr-clientapp", "flwr-serverapp")


class ForkingFleet(LocalFleet):
    def environment(self) -> dict[str, str]:
        """In which our SuperExec is found before Flower's."""
        first = self.folder / "bin"
        if not first.exists():
            first.mkdir()
            words = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nimport forking_fleet\n"
            (first / EXEC).write_text(f"#!{sys.executable}\n{words}forking_fleet.superexec()\n")
            (first / EXEC).chmod(0o755)
        usual = super().environment()
        return usual | {
            "PATH": str(first) + os.pathsep + usual["PATH"],
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL_SECONDS),
        }


def superexec() -> None:
    """Flower's own command, but that a task is forked."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    mains = {name: entry_points(group="console_scripts")[name].load() for name in COMMANDS}
    for module in IMPORTED:
        importlib.import_module(f"narrowcast.{module}")
    importlib.import_module("torch._dynamo")  # which torch.optim imports when it is first used
    keyed.derive(1, Purpose.ROUTE)  # numba takes a second for its first kernel
    assert threading.active_count() == 1, f"{threading.enumerate()}: what a fork would leave without a word"
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        if words := _forked(there):
            sys.argv = words
            _leave_after(mains[words[0]])
        return
    there.close()
    forks = SimpleNamespace(Popen=lambda words, **_: here.send("\0".join(words).encode()), DEVNULL=None)
    subprocess_executor.subprocess = forks  # type: ignore[attr-defined]
    flower_superexec()


def _leave_after(main: Callable[[], object]) -> NoReturn:
    """Run it as a script, and end without tidying memory up: what is shared with others would be copied."""
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # threads that are no daemons come to their end
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forked(orders: socket.socket) -> list[str] | None:
    """The words of its task, in a process forked for it; None in the one that forks, once no more come."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    gc.freeze()  # a collection would write to what is shared
    while data := orders.recv(1 << 16):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            return data.decode().split("\0")
    return None
