"""Stopping when asked to: a round is finished and a checkpoint written before the process ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a TERM signal sets; a second Ctrl-C interrupts at once.

    Where somebody else handles signals, as Flower does in a ServerApp, they stay theirs: a process whose
    engine has gone must not wait for it to finish the round, but end, and leave the run to the next one.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread() or _taken():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _taken() -> bool:
    """Whether Ctrl-C has a handler that is neither Python's own nor ours."""
    handler = signal.getsignal(signal.SIGINT)
    ours = getattr(handler, "__module__", None) == __name__
    return not ours and handler not in (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN)
