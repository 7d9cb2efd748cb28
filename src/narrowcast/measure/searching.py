"""The smallest d that reaches: brackets by a factor, then bisection on log d. Pure: it is given `reaches`.

`reaches(d)` need not be monotone: a probe is a training run, and near the answer it is a coin. The search
trusts every probe, asks for no d twice, and ends between a d that failed and a larger one that reached, which
is a crossing, not the only one there may be. Noise is seen in the spread over seeds (`interval`), not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from narrowcast.intervals import student

Reaches = Callable[[int], bool]


@dataclass(frozen=True)
class Found:
    """What a search knows. No d: even `most` failed. failed = 0: the smallest d there is, 1, reached."""

    d: int | None  # reached, and is the smallest that did
    failed: int  # the largest below it that did not
    probes: dict[int, bool]  # every d asked for, in order


def search(reaches: Reaches, start: int, most: int, *, factor: float = 4.0, tolerance: float = 1.1) -> Found:
    """The crossing between 1 and `most`, to d <= tolerance * failed (or d = failed + 1)."""
    if not 1 <= start <= most:
        raise ValueError(f"the search starts at a d of 1 to {most} (the parameters), got {start}")
    if not (factor > 1 and tolerance > 1 and math.isfinite(factor) and math.isfinite(tolerance)):
        raise ValueError(f"factor and tolerance must be above 1, got {factor} and {tolerance}")
    probes: dict[int, bool] = {}

    def ask(d: int) -> bool:
        probes[d] = reaches(d)
        return probes[d]

    failed, reached = _bracket(ask, start, most, factor)
    while reached is not None and reached > max(failed + 1, tolerance * failed):
        middle = _middle(failed, reached)
        if ask(middle):
            reached = middle
        else:
            failed = middle
    return Found(reached, failed, probes)


def _bracket(ask: Reaches, start: int, most: int, factor: float) -> tuple[int, int | None]:
    """(a d that failed, a larger one that reached): 0 if 1 reaches, None if `most` fails."""
    d = start
    if ask(d):
        while d > 1:
            lower = min(d - 1, max(1, round(d / factor)))
            if not ask(lower):
                return lower, d
            d = lower
        return 0, d
    while d < most:
        upper = max(d + 1, min(most, round(d * factor)))
        if ask(upper):
            return d, upper
        d = upper
    return d, None


def _middle(low: int, high: int) -> int:
    """The geometric middle, strictly between."""
    return min(high - 1, max(low + 1, round(math.sqrt(low * high))))


@dataclass(frozen=True)
class Interval:
    """d over seeds: the geometric mean, a t-interval on log d, and the range."""

    d: float
    low: float
    high: float
    least: int
    most: int


def interval(dims: Sequence[int], confidence: float = 0.95) -> Interval:
    """exp(mean(log d) +- t s / sqrt(n)); with one seed nothing is known of the spread: 0 to infinity."""
    if not dims:
        raise ValueError("an interval needs at least one d")
    middle, half = student([math.log(d) for d in dims], confidence)
    mean, low, high = map(math.exp, (middle, middle - half, middle + half))
    return Interval(mean, low, high, min(dims), max(dims))
