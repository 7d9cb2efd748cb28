"""How many finished stages a client lacks when it comes: expected counts over a training run.

An epoch has R rounds, and A is new every N rounds: round t belongs to stage t // N. A client comes in a round
of the epoch that is uniform, so its visit in epoch e is of stage s with the share of e's rounds that are s's.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]


def lags(epochs: int, participation: float, rounds: int = 1, refresh: int | None = None) -> list[float]:
    """Entry m: how many downloads a client is expected to get while it lacks m finished stages.

    p <= 1: the gap since the last visit is geometric, so epoch e sees p * p (1-p)^(g-1) of gap g <= e, and a
    newcomer, who lacks all that is finished, with p (1-p)^e: altogether p E. With a stage an epoch,
        p (1-p)^m + (E-m) p^2 (1-p)^(m-1)    (the second term for m >= 1).
    p > 1: p E visits at equal distances; the first lacks nothing.
    `rounds` is R; `refresh` is N, by default an epoch.
    """
    return list(_lags(epochs, participation, rounds, refresh or rounds))


@lru_cache(maxsize=64)
def _lags(E: int, p: float, R: int, N: int) -> tuple[float, ...]:
    found = np.zeros(stages(E, R, N))
    if p > 1:
        between, finished = p * E - 1, len(found) - 1
        each = min(finished, math.floor(finished / between))
        further = finished - each * between  # visits that lack one more than the others
        found[0] += 1
        found[each] += between - further
        if further > 0:
            found[min(finished, each + 1)] += further
        return tuple(found.tolist())
    for e in range(E):
        begun, share = _shares(e, R, N)
        found[begun : begun + len(share)] += p * (1 - p) ** e * share
    period = N // math.gcd(N, R)  # epochs after which stages begin at the same rounds of an epoch again
    for first in range(min(period, E)):
        for gap in range(1, E - first):
            pairs = (E - first - gap + period - 1) // period
            weight = pairs * p * p * (1 - p) ** (gap - 1)
            (before, share), (now, also) = _shares(first, R, N), _shares(first + gap, R, N)
            apart = _convolved(share[::-1], also)
            least = now - (
                before + len(share) - 1
            )  # from the last stage of the one to the first of the other
            found[least : least + len(apart)] += weight * apart
    return tuple(found.tolist())


def stages(epochs: int, rounds: int, refresh: int) -> int:
    """How many stages a run has."""
    return -(-epochs * rounds // refresh)


@lru_cache(maxsize=256)
def _shares(epoch: int, R: int, N: int) -> tuple[int, Shares]:
    """(the first stage of an epoch, the share of its rounds in each stage from there on)."""
    begin, end = epoch * R, (epoch + 1) * R
    stage = np.arange(begin // N, (end - 1) // N + 1)
    return begin // N, (np.minimum(end, (stage + 1) * N) - np.maximum(begin, stage * N)) / R


def _convolved(x: Shares, y: Shares) -> Shares:
    """x * y, where all of y but its ends is one number: running sums of x, in the time of their lengths."""
    n, long = len(y), len(x) + len(y) - 1
    inner = y[1] if n > 2 else 0.0
    at, sums = np.arange(long), np.concatenate([[0.0], np.cumsum(x)])
    made: Shares = inner * (sums[np.minimum(at + 1, len(x))] - sums[np.maximum(at + 1 - n, 0)])
    made[: len(x)] += (y[0] - inner) * x
    if n > 1:
        made[n - 1 :] += (y[-1] - inner) * x
    return made
