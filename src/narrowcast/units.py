"""Bytes, seconds and counts as people write and read them: three significant digits and a decimal unit."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

BYTES = (" B", " kB", " MB", " GB", " TB", " PB")
COUNTS = ("", "k", "M", "B", "T")


def format_bytes(count: float) -> str:
    """65 590 -> "65.6 kB": decimal units, as link speeds have them."""
    return _scaled(count, BYTES)


def format_count(count: float) -> str:
    """124 443 648 -> "124M"; `parse_count` reads it back."""
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


def exact(value: float) -> str:
    """1.0 -> "1", 0.1 -> "0.1", 0.123456789 -> itself: six digits where they are all, else all of them."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def _check(value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"expected a number that is finite and not negative, got {value}")


MAX_COUNT = 10**18
_NUMBER = r"(?P<number>\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d{1,3})?)\s*"
_COUNT = re.compile(_NUMBER + r"(?P<unit>[kKmMgGbBtT]?)")
_BYTES = re.compile(_NUMBER + r"(?P<unit>[kKmMgGtT]?)B?")
_RATE = re.compile(_NUMBER + r"(?P<unit>[kKmMgG]?)(?P<per>bps|bit/s|b/s|B/s)")
_SECONDS = re.compile(_NUMBER + r"(?P<unit>s|min|h|d)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


def parse_count(text: str) -> int:
    """The number in "124M": digits, with underscores, a point or an exponent, then k, M, G or B, or T."""
    found = _COUNT.fullmatch(text.strip())
    value = _value(found) if found else None
    if value is None or value != value.to_integral_value() or not 1 <= value <= MAX_COUNT:
        raise ValueError(
            f"expected a whole number from 1 to 1e18, such as 124M, 1.5B, 124_443_648 or 1e6, got {text!r}"
        )
    return int(value)


def parse_rate(text: str) -> float:
    """Bits a second in "10Mbps": bps, bit/s or b/s with k, M, G before it, or bytes, as in "1.25MB/s"."""
    found = _RATE.fullmatch(text.strip())
    value = _value(found) if found else None
    if found is None or value is None or not 0 < value <= MAX_COUNT:
        raise ValueError(
            f"expected a positive rate with its unit, such as 10Mbps, 512kbps or 1.25MB/s, got {text!r}"
        )
    return float(value * (8 if found["per"] == "B/s" else 1))


def _value(found: re.Match[str]) -> Decimal | None:
    try:
        return Decimal(found["number"]) * _SCALE[found["unit"].lower()]
    except InvalidOperation:
        return None


def parse_bytes(text: str) -> int:
    """ "2MB", "500kB", "1.5G" -> bytes, decimal units."""
    found = _BYTES.fullmatch(text.strip())
    value = _value(found) if found else None
    if value is None or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"expected bytes such as 2MB, 500kB or 1.5GB, got {text!r}")
    return int(value)


def parse_seconds(text: str) -> float:
    """ "2.5h", "90min", "45s", "1d" -> seconds; `format_seconds` writes them."""
    found = _SECONDS.fullmatch(text.strip())
    value = (
        float(found["number"]) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[found["unit"]] if found else 0.0
    )
    if not 0 < value <= MAX_COUNT:
        raise ValueError(f"expected a positive time with its unit, such as 2.5h, 90min or 45s, got {text!r}")
    return value
