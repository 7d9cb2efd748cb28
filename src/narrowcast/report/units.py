"""Bytes, seconds and counts as people read them: three significant digits and a decimal unit."""

from __future__ import annotations

import math

BYTES = (" B", " kB", " MB", " GB", " TB", " PB")
COUNTS = ("", "k", "M", "B", "T")


def format_bytes(count: float) -> str:
    """65 590 -> "65.6 kB": decimal units, as link speeds have them."""
    return _scaled(count, BYTES)


def format_count(count: float) -> str:
    """124 443 648 -> "124M"; `planner.parse_count` reads it back."""
    return _scaled(count, COUNTS)


def format_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms", 12.3 -> "12.3 s", 312 -> "5.2 min", 7500 -> "2.08 h", 3e5 -> "3.47 d"."""
    _check(seconds)
    if float(f"{seconds:.3g}") < 1:
        return f"{digits(seconds * 1e3)} ms"
    for unit, step in ((" s", 60), (" min", 60), (" h", 24)):
        if float(f"{seconds:.3g}") < step:
            return digits(seconds) + unit
        seconds /= step
    return f"{digits(seconds)} d"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """The value in the first unit that needs at most three digits before the point (999.6 B: 1 kB)."""
    _check(value)
    for unit in units[:-1]:
        if float(f"{value:.3g}") < 1000:
            return digits(value) + unit
        value /= 1000
    return digits(value) + units[-1]


def digits(value: float) -> str:
    """Three significant digits, never in powers of ten for the sizes that units leave."""
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e+" in text else text


def _check(value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a number that is finite and not negative, got {value}")
