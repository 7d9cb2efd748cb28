"""The kinds of settings, as types: what a flag or a key of a TOML file may hold, and how."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from narrowcast.units import exact, parse_count


def _count(value: Any) -> Any:
    """ "64k", "1M" -> a whole number; what is none is for the next check to refuse."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[+-]?[0-9]+", value.strip()):
        return int(value)
    try:
        return parse_count(value)
    except ValueError:
        raise ValueError(f"must be a whole number, such as 500, 64k or 1M, got {value!r}") from None


def _rate(value: Any) -> float | str:
    if value == "auto":
        return "auto"
    try:
        rate = float(value)
    except (TypeError, ValueError, OverflowError):
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0) or isinstance(value, bool):
        raise ValueError(f'must be a positive number or "auto", got {value!r}')
    return rate


def _refresh(value: Any) -> str:
    text = str(value)
    if text == "epoch":
        return text
    if text.isascii() and text.isdigit() and int(text) > 0:
        return text
    raise ValueError(f'must be "epoch" or a positive number of rounds, got {value!r}')


def _schedule(value: Any) -> Any:
    from narrowcast.rounds import schedules

    if isinstance(value, str):
        schedules.knots(value, epochs=1.0)
    return value


def _clip(value: Any) -> str:
    """A positive number or "adaptive", as it is written: none of its digits is lost."""
    if value == "adaptive":
        return "adaptive"
    try:
        bound = float(value)
    except (TypeError, ValueError, OverflowError):
        bound = math.nan
    if not (math.isfinite(bound) and bound > 0) or isinstance(value, bool):
        raise ValueError(f'must be a positive number or "adaptive", got {value!r}')
    return exact(bound)


def check_bits(way: str, format: str, bits: float | None) -> None:
    """A ValueError, unless numbers that go this way can have this format and so many bits."""
    if bits is not None and 16 < bits < 32:
        raise ValueError(f"--{way}-bits must be 0.25 to 16, or 32 (float32), got {bits:g}")
    if bits not in (None, 32) and format != "f32":
        raise ValueError(f"--{way}link {format} and --{way}-bits {bits:g}: choose one of them")


COUNT, RATE = BeforeValidator(_count), BeforeValidator(_rate)
Positive = Annotated[int, COUNT, Field(ge=1, le=1 << 40)]
Share = Annotated[float, Field(gt=0, le=1)]
Bits = Annotated[float, Field(ge=0.25, le=32)]
Rate = Annotated[float | str, RATE]
Refresh = Annotated[str, BeforeValidator(_refresh)]
Schedule = Annotated[str, BeforeValidator(_schedule)]
Clip = Annotated[str, BeforeValidator(_clip)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
