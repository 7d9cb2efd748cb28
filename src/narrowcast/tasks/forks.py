"""Clients' work in forked processes: what small modules need to keep all cores busy.

A step of a small module is hundreds of short operations with Python between them, and threads take turns at
Python: two of them are hardly quicker than one. A forked process has a Python and a copy of the module of its
own, and the data as they are. Theta goes to it, and updates come back, through memory that all share; jobs go
through a pipe. Every client is computed as one process alone would, so no bit depends on their number.

A process ends when its task does, or when whoever forked it is gone. One that fails at a job says so, and the
job is done here, where its error belongs; where one has died, or waits for a lock that some thread here held
when it was forked, this process goes on alone. What is changed in the module or the data after the fork,
theta apart, is not seen by it.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor

from narrowcast.numerics import pool

End = tuple[BaseProcess, Connection]
Rows = tuple[list[float], Tensor]  # (losses, an update a row (C, D))
Answer = tuple[int, int, list[float] | None]  # (round, job, its losses; None: it failed)
Work = Callable[[Tensor, Any], Rows]  # (theta, job)
MEMORY = 1 << 29  # bytes that all may share
SLOTS = 2  # of rows a process: it fills one while the other is read
PIECE = 1 << 13  # bytes of a message, of which a job is one or several
LAST, MORE = b"\0", b"\1"  # before a piece: whether others follow
LISTENING = 5.0  # seconds after which a process that has nothing to do looks whether it is an orphan
STUCK = 60.0  # seconds after which one that has a job, and did not compute for a moment, is given up


def possible() -> bool:
    """Whether this process may fork others: elsewhere than on Linux that is not safe beside threads."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class Forks:
    """`count` processes that do `work` on vectors of D numbers, at most `most` rows a job."""

    def __init__(self, work: Work, D: int, most: int, count: int) -> None:
        self._asked, self._owner, self._round = (most, count), os.getpid(), 0
        self.count = count = max(1, min(count, MEMORY // (4 * D * most * SLOTS)))
        self._theta = _shared(1, D)[0]
        self._rows = _shared(count * SLOTS * most, D).view(count, SLOTS, most, D)
        self.useless = False  # they fail at what this process can do
        self._ends: list[End] = []
        self.close = weakref.finalize(self, _end, self._ends, self._owner)
        try:
            for rows in self._rows:
                self._ends.append(_begin(work, self._theta, rows, [end for _, end in self._ends]))
        except OSError:
            self.close()
            raise

    def __reduce__(self) -> Any:
        """A copy of a task has none, and forks its own."""
        return type(None), ()

    @property
    def there(self) -> bool:
        """Whether the processes are, and are this one's: one that was forked by somebody else has none."""
        return self.close.alive and self._owner == os.getpid()

    def fit(self, most: int, count: int) -> bool:
        """Whether they do for jobs of so many rows, and are as many as are asked for."""
        return self.there and self._asked[0] >= most and self._asked[1] == count

    def results(self, theta: Tensor, jobs: Sequence[Any], here: Callable[[Any], Rows]) -> Iterator[Rows]:
        """What `work` makes of each job, in order, valid until the next; `here` does one in this process."""
        self._theta.copy_(theta)
        self._round += 1
        mine, asked = self._round, 0
        for j, job in enumerate(jobs):
            while asked < min(len(jobs), j + SLOTS * self.count) and self._round == mine:
                self._ask(asked, jobs[asked])
                asked += 1
            losses = self._answer(j) if self._round == mine else None  # else another began meanwhile
            if losses is not None:
                yield losses, self._rows[*self._place(j)][: len(losses)]
                continue
            failed, done = self.there and self._round == mine, here(job)
            if failed:  # there, but not here
                self._give_up()
            yield done

    def _give_up(self) -> None:
        self.useless = True
        self.close()

    def _place(self, j: int) -> tuple[int, int]:
        """The process that does job j, and its slot for it."""
        return j % self.count, j // self.count % SLOTS

    def _ask(self, j: int, job: Any) -> None:
        number, slot = self._place(j)
        with self._whole():
            if self.there and not _sent(*self._ends[number], _packed((self._round, j, slot, job))):
                self._give_up()

    def _answer(self, j: int) -> list[float] | None:
        """The losses of job j; None: it failed, or its process is gone."""
        with self._whole():
            while self.there:  # an earlier round, of which nobody wanted the rest, may have left answers
                process, end = self._ends[j % self.count]
                if not _comes(process, end.poll):
                    self._give_up()
                    break
                answer: Answer = pickle.loads(end.recv_bytes())
                if answer[:2] == (self._round, j):
                    return answer[2]
        return None

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A message is sent or read whole, or was the last: after Ctrl-C in its middle nobody could go on."""
        try:
            yield
        except (EOFError, OSError):
            self.close()
        except BaseException:
            self.close()
            raise


class _Pickler(pickle.Pickler):
    """Small tensors as arrays: torch's own way takes a file or a hundred times as long."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().cpu().numpy(),)
        return NotImplemented


def _packed(message: Any) -> bytes:
    _Pickler(file := io.BytesIO()).dump(message)
    return file.getvalue()


def _sent(process: BaseProcess, end: Connection, message: bytes) -> bool:
    """Whether it took the message, in pieces that never fill the pipe; False: it does not read any more."""
    writable = select.poll()
    writable.register(end, select.POLLOUT)  # three quarters of the pipe are free then, or it is broken
    for start in range(0, len(message), PIECE):
        piece = message[start : start + PIECE]
        if not _comes(process, lambda seconds: bool(writable.poll(1000 * seconds))):
            return False
        end.send_bytes((LAST if start + PIECE >= len(message) else MORE) + piece)
    return True


def _received(end: Connection) -> bytes:
    pieces = [end.recv_bytes()]
    while pieces[-1].startswith(MORE):
        pieces.append(end.recv_bytes())
    return b"".join(piece[1:] for piece in pieces)


def _comes(process: BaseProcess, ready: Callable[[float], bool]) -> bool:
    """Whether it is ready, sooner or later; False: it waits for what nobody does."""
    if ready(0):  # mostly: then nothing else is looked at
        return True
    computed = _ticks(process)
    while not ready(STUCK):
        before, computed = computed, _ticks(process)
        if computed == before:
            return False
    return True


def _ticks(process: BaseProcess) -> tuple[str, ...]:
    """What the system has counted of its time on a core."""
    with open(f"/proc/{process.pid}/stat", encoding="utf-8", errors="replace") as f:
        return tuple(f.read().rsplit(")", 1)[1].split()[11:13])


def _shared(rows: int, D: int) -> Tensor:
    """(rows, D) zeros that forked processes have in common."""
    return torch.frombuffer(mmap.mmap(-1, 4 * rows * D), dtype=torch.float32).view(rows, D)


def _begin(work: Work, theta: Tensor, rows: Tensor, others: list[Connection]) -> End:
    """A process, and our end of the pipe to it; it closes what is the parent's, so that it hears the end."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    given = (work, theta, rows, theirs, [ours, *others], os.getpid())
    process = fork.Process(target=_serve, args=given, daemon=True)
    with warnings.catch_warnings():  # of other threads: what is used here holds no lock of theirs
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    return process, ours


def _serve(
    work: Work, theta: Tensor, rows: Tensor, end: Connection, others: list[Connection], parent: int
) -> None:
    """Do jobs until the pipe is closed, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever forked this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's own handler would finish a round first
    torch.set_num_threads(1)
    pool.set_threads(1)
    try:
        for other in others:
            other.close()
        while os.getppid() == parent:
            if not end.poll(LISTENING):
                continue
            round, j, slot, job = pickle.loads(_received(end))
            losses: list[float] | None = None
            with suppress(Exception):  # it is done again there, and raises there
                found, made = work(theta, job)
                rows[slot, : len(found)] = made
                losses = found
            end.send_bytes(pickle.dumps((round, j, losses)))
    except (EOFError, OSError):
        pass
    finally:
        os._exit(0)  # nothing of the parent's is to be flushed or ended here


def _end(ends: list[End], owner: int) -> None:
    for process, end in ends:
        end.close()
        if os.getpid() == owner:
            process.kill()  # there is nothing for it to finish
            process.join()
