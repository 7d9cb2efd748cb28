"""Whose signals they are."""

import signal
from collections.abc import Iterator

import pytest

from narrowcast.runs.interrupts import interrupts


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    yield
    for s, handler in before.items():
        signal.signal(s, handler)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN])
def test_ctrl_c_asks_to_stop_and_then_interrupts(before) -> None:
    signal.signal(signal.SIGINT, before)
    with interrupts() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_the_innermost_is_asked() -> None:
    with interrupts() as outer, interrupts() as inner:
        signal.raise_signal(signal.SIGTERM)
        assert (outer.is_set(), inner.is_set()) == (False, True)


def test_a_hosts_handler_stays_in_place() -> None:
    """Flower ends a ServerApp whose SuperLink has died by a signal to itself."""
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with interrupts() as stop:
        signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]
    assert not stop.is_set()
