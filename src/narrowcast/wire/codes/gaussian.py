"""Tables for integers that come of rounding a Gaussian: whole numbers of 2^12, fixed in the format.

Table j is for the step 2^(8 - j/8) times the deviation, j = 0 .. 95. The dithered family is for k = round(x/s
+ u) given u, in 16 bins of |u|; the plain one for the same k with u unknown, which is also how the difference
of two rounded numbers lies. No frequency lies so near to where its rounding tips that the mathematics library
of another machine could tip it (the tests say how near), so every machine has the same tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels.rans import BINS, SLOTS

TABLES = 96
AN_OCTAVE = 8  # tables
RARE = 0.25  # slots below which a number has no symbol
_POINTS = 4  # of u that a bin's frequencies are the mean of


@dataclass(frozen=True)
class Table:
    """frequency (bins, symbols): symbol n + middle is the number n, the last is the escape."""

    middle: int
    frequency: NDArray[np.uint16]

    @cached_property
    def below(self) -> NDArray[np.uint16]:
        """The frequencies of all symbols before each."""
        total = np.cumsum(self.frequency, axis=1, dtype=np.int64)
        return (total - self.frequency).astype(np.uint16)

    @cached_property
    def symbols(self) -> NDArray[np.uint8]:
        """(bins, 2^12) the symbol of each slot."""
        names = np.arange(self.frequency.shape[1], dtype=np.uint8)
        return np.stack([np.repeat(names, row) for row in self.frequency])

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """(bins, 256) bits of the number n at n + 127; at 255, of one that lies beyond +-127."""
        rare = math.log2(SLOTS) + 32
        bits = np.full((len(self.frequency), 256), rare)
        f = self.frequency[:, :-1].astype(np.float64)
        first = 127 - self.middle
        bits[:, first : first + f.shape[1]] = np.where(
            f > 0, math.log2(SLOTS) - np.log2(np.maximum(f, 1)), rare
        )
        return bits


def width(j: float) -> float:
    """The step of table j over the deviation."""
    return float(2.0 ** (8 - j / AN_OCTAVE))


def density(step: float, u: float, most: int) -> NDArray[np.float64]:
    """P(k = -most .. most) of k = round(x / step + u), x of deviation 1."""
    edges = [0.5 * math.erfc((u - k + 0.5) * step / math.sqrt(2)) for k in range(-most, most + 2)]
    return np.diff(edges)


@cache
def table(j: int, dithered: bool) -> Table:
    """Table j of a family."""
    middle = math.ceil(4.5 / width(j) + 1)
    shares = expected(j, dithered, middle) * SLOTS
    f = np.where(shares >= RARE, np.maximum(1, np.floor(shares + 0.5)), 0).astype(np.int64)
    escape = np.ones((len(f), 1), np.int64)
    f[np.arange(len(f)), f.argmax(axis=1)] += SLOTS - 1 - f.sum(axis=1)
    return Table(middle, np.concatenate([f, escape], axis=1).astype(np.uint16))


def expected(j: int, dithered: bool, most: int) -> NDArray[np.float64]:
    """(bins, 2 most + 1) the share of every number, by bin of u > 0."""
    count = _POINTS * BINS
    each = np.stack([density(width(j), (i + 0.5) / (2 * count), most) for i in range(count)])
    if dithered:
        shares: NDArray[np.float64] = each.reshape(BINS, _POINTS, -1).mean(axis=1)
        return shares
    marginal: NDArray[np.float64] = (each + each[:, ::-1]).mean(axis=0, keepdims=True) / 2
    return marginal


@cache
def _entropies(dithered: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(bits, log2(step / deviation)) of every second table, bits rising."""
    js = range(0, TABLES, 2)
    bits = []
    for j in js:
        p = expected(j, dithered, math.ceil(6 / width(j) + 2))
        bits.append(float(-(p * np.log2(np.maximum(p, 1e-300))).sum(axis=1).mean()))
    return np.array(bits), np.array([math.log2(width(j)) for j in js])


@lru_cache(maxsize=256)
def step_for(bits: float, dithered: bool) -> float:
    """The step over the deviation at which a number takes so many bits."""
    rates, steps = _entropies(dithered)
    if bits >= rates[-1]:  # log2(deviation / step) + log2(2 pi e) / 2
        return float(2.0 ** (steps[-1] - (bits - rates[-1])))
    if bits <= rates[0]:  # where a number is zero but for u near the middle of two: proportional
        return float(2.0 ** steps[0] * rates[0] / max(bits, 1e-3))
    return float(2.0 ** np.interp(bits, rates, steps))
