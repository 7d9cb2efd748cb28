"""A small thread pool for kernels that release the GIL.

numba's own parallel layer aborts when it is entered from two threads and hangs after a fork. Plain threads
over block ranges do neither: the pool belongs to one process (a forked child makes its own), any number of
threads may use it at once, and a kernel's result never depends on how many workers there are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any

_lock = threading.RLock()
_pool: ThreadPoolExecutor | None = None
_threads: int | None = None
_here = threading.local()  # .ours: whether this thread is of a pool


def threads() -> int:
    """How many threads kernels use: `set_threads`, else NARROWCAST_THREADS, else this process's cores."""
    return default_threads() if _threads is None else _threads


def default_threads() -> int:
    """What `set_threads` has not changed: NARROWCAST_THREADS, else this process's cores."""
    configured = os.environ.get("NARROWCAST_THREADS", "")
    if configured.isdigit() and int(configured) > 0:
        return int(configured)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def set_threads(count: int | None) -> None:
    """Use `count` threads in kernels from now on (None: back to the default)."""
    global _threads, _pool
    if count is not None and count < 1:
        raise ValueError(f"threads must be at least 1, got {count}")
    with _lock:
        _threads = count
        _pool = None  # running calls keep the pool they started with; it ends with its last reference


class Meanwhile:
    """A number of this process that contexts change for a while, in several threads and ending in any order.

    After its last a thread finds the number that was there before the first of any: one that it found when it
    began may have been another's.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self._read, self._write = read, write
        self._before: Any = None
        self._open: list[tuple[object, int, int]] = []  # (whose, its thread, its number), in order

    @contextmanager
    def be(self, number: int) -> Iterator[None]:
        """The number, until the end."""
        mine = (object(), threading.get_ident(), number)
        with _lock:
            before = self._before if self._open else self._read()
            self._write(number)  # which may refuse it
            self._before = before
            self._open.append(mine)
        try:
            yield
        finally:
            with _lock:
                self._open.remove(mine)
                own = [n for _, thread, n in self._open if thread == threading.get_ident()]
                self._write(own[-1] if own else self._before)


_used = Meanwhile(lambda: _threads, set_threads)


def using(count: int) -> AbstractContextManager[None]:
    """Use `count` threads in kernels meanwhile."""
    return _used.be(count)


def _forget_pool() -> None:
    global _lock, _pool
    _lock, _pool = threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _begin() -> None:
    """A thread flushes denormals where the one that began it did: kernels are to be the same in all."""
    import torch  # here: reading how many threads there are must stay cheap

    torch.set_flush_denormal(False)
    _here.ours = True


def _executor(workers: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(workers, thread_name_prefix="narrowcast", initializer=_begin)
        return _pool


def run(kernel: Callable[..., Any], blocks: int, *args: Any, grain: int = 1) -> None:
    """kernel(start, stop, *args) over 0 .. blocks, in at most threads() ranges of at least `grain` blocks.

    A thread of the pool does all of it: were it to wait for others of the pool, all of them might wait.
    """
    workers = 1 if hasattr(_here, "ours") else min(threads(), max(1, blocks // max(1, grain)))
    if workers == 1:
        if blocks:
            kernel(0, blocks, *args)
        return
    edges = [blocks * i // workers for i in range(workers + 1)]
    pool = _executor(threads())
    # The caller works too: with W threads, W - 1 tasks are queued.
    pending = [pool.submit(kernel, a, b, *args) for a, b in pairwise(edges[1:])]
    kernel(edges[0], edges[1], *args)
    for task in pending:
        task.result()
