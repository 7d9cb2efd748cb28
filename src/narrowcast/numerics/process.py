"""What is exchanged does not depend on how the user's process is set up.

Autocast, fast matrix products, the number of threads and flushed denormals are the user's to choose for the
model. What two machines must agree on, or what must come out the same again, is computed without them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_products: Any = getattr(torch.backends.mkldnn, "matmul", None)
BY_BACKEND = hasattr(_products, "fp32_precision")
WHOLE = ("ieee", "none") if BY_BACKEND else ("highest",)  # names of float32 products that are whole
_SMALL = 2.0**-1022  # the smallest normal float64: half of it is denormal


def flushes_denormals() -> bool:
    """Whether this thread takes denormal numbers for zero (torch.set_flush_denormal)."""
    return _SMALL * 0.5 == 0.0


def machine_memory() -> int:
    """Bytes of this machine's memory; 4 GB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 32


@contextmanager
def own_settings(threads: int | None = None) -> Iterator[None]:
    """No autocast, whole float32 products, denormals as they are, and with `threads` so many of torch's.

    Sums in torch depend on the number of threads. Those that it has begun already flush for good where they
    do, so that a thread that flushes computes alone.
    """
    with ExitStack() as back:
        if flushes_denormals():
            torch.set_flush_denormal(False)
            back.callback(torch.set_flush_denormal, True)
            threads = 1
        if torch.is_autocast_enabled("cpu"):
            back.enter_context(torch.autocast("cpu", enabled=False))
        back.enter_context(_whole.products())
        before = torch.get_num_threads()
        if threads is not None and threads != before:
            torch.set_num_threads(threads)
            back.callback(torch.set_num_threads, before)
        yield


class _Whole:
    """Float32 products are whole while any thread is inside: how precise they are is the process's setting.

    What is not whole was set by the user, between two of ours; the last that leaves sets it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: list[int] = []  # threads, once for every time that they entered
        self._theirs: str | None = None

    @contextmanager
    def products(self) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            self._inside.append(thread)
            if (found := _precision()) not in WHOLE:
                self._theirs = found
                _set_precision(WHOLE[0])
        try:
            yield
        finally:
            with self._lock:
                self._inside.remove(thread)
                self._leave()

    def _leave(self) -> None:
        if not self._inside and self._theirs is not None:
            _set_precision(self._theirs)
            self._theirs = None

    def forked(self) -> None:
        """In a child: of the threads that were inside, there is none but the one that forked."""
        self._lock = threading.Lock()
        self._inside = [thread for thread in self._inside if thread == threading.get_ident()]
        self._leave()


_whole = _Whole()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_whole.forked)


def _precision() -> str:
    """Of float32 products on the CPU; torch before 2.9 has one setting for all devices."""
    return str(_products.fp32_precision if BY_BACKEND else torch.get_float32_matmul_precision())


def _set_precision(precision: str) -> None:
    if BY_BACKEND:
        _products.fp32_precision = precision
    else:
        torch.set_float32_matmul_precision(precision)
