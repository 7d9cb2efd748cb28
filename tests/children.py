"""Processes of their own, to be killed: each begins with everything imported.

A server of this process's imports it once, starts no thread, and forks every child: milliseconds, where a new
interpreter with torch takes seconds. Tests that ask for one share an xdist group, and so the server.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

GROUP = pytest.mark.xdist_group("processes")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([
    "narrowcast.ddp.hook", "narrowcast.runs.runner", "narrowcast.tasks.digits", "torch._dynamo",
    "torch.nn.parallel",
])  # fmt: skip  # torch.optim imports _dynamo when it is first used


def start(target: Callable[..., None], *arguments: Any, log: Path | None = None) -> BaseProcess:
    """A process that calls a function of a module; what it says goes to a file."""
    process = _SERVER.Process(target=_run, args=(log, target, *arguments))
    process.start()
    return process


def telling(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Iterator[Any]]:
    """A process whose function is given, first, a way to tell; and what it tells, until it ends."""
    reader, writer = _SERVER.Pipe(duplex=False)
    process = start(_tell, writer, target, *arguments)
    writer.close()  # here: the child has its own
    return process, _told(reader)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _run(log: Path | None, target: Callable[..., None], *arguments: Any) -> None:
    if log is not None:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    target(*arguments)


def _tell(writer: Connection, target: Callable[..., None], *arguments: Any) -> None:
    target(writer.send, *arguments)


def _told(reader: Connection) -> Iterator[Any]:
    with reader:
        while True:
            try:
                yield reader.recv()
            except (EOFError, ConnectionResetError):
                return


def codes(started: list[BaseProcess], patience: float) -> list[int | None]:
    """The exit codes of processes, once all have ended or this many seconds are over; none is left."""
    try:
        deadline = time.monotonic() + patience
        for process in started:
            process.join(max(0.1, deadline - time.monotonic()))
        return [process.exitcode for process in started]
    finally:
        for process in started:
            kill(process)
