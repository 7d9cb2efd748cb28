"""The fast Walsh-Hadamard transform of one long vector, in place, a strip of 4096 numbers at a time.

The first twelve levels (h = 1 .. 2048) stay inside a strip. Every later pass takes up to six levels: it
gathers 64 rows at stride h into a strip, transforms it down the rows and puts it back, so a vector of 2^27
numbers crosses memory four times instead of twenty-seven.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from narrowcast.numerics.kernels.butterfly import LANES, STRIP, eight, far8, near8, transform
from narrowcast.numerics.kernels.memory import rows2, rows4, rows8


@njit(inline="always")
def lanes64(s):
    """Levels h = 1 .. 32: H_64 along the lanes of every row of a strip, in place."""
    for p in range(0, STRIP, 8):
        v = eight(s[p], s[p + 1], s[p + 2], s[p + 3], s[p + 4], s[p + 5], s[p + 6], s[p + 7])
        s[p], s[p + 1], s[p + 2], s[p + 3] = v[0], v[1], v[2], v[3]
        s[p + 4], s[p + 5], s[p + 6], s[p + 7] = v[4], v[5], v[6], v[7]
    for r in range(0, STRIP, LANES):
        for p in range(r, r + 8):
            v = eight(s[p], s[p + 8], s[p + 16], s[p + 24], s[p + 32], s[p + 40], s[p + 48], s[p + 56])
            s[p], s[p + 8], s[p + 16], s[p + 24] = v[0], v[1], v[2], v[3]
            s[p + 32], s[p + 40], s[p + 48], s[p + 56] = v[4], v[5], v[6], v[7]


@njit(nogil=True, cache=True)
def near(start, stop, x):
    """Levels h = 1 .. 2048 of strips start .. stop."""
    for t in range(start, stop):
        s = x[t * STRIP : (t + 1) * STRIP]
        lanes64(s)
        near8(s)
        far8(s)


@njit(nogil=True, cache=True)
def far(start, stop, x, h, n):
    """Levels h .. h n / 2 (h >= 4096, n <= 64 a power of two), in units of 4096 numbers."""
    s = np.empty(STRIP, np.float32)
    lanes = STRIP // n
    units = h // lanes
    for u in range(start, stop):
        o = (u // units) * h * n + (u % units) * lanes
        for m in range(STRIP // (n * LANES)):
            for i in range(n):
                row = x[o + i * h + m * LANES : o + i * h + (m + 1) * LANES]
                q = (m * n + i) * LANES
                for j in range(LANES):
                    s[q + j] = row[j]
        transform(s, n)
        for m in range(STRIP // (n * LANES)):
            for i in range(n):
                row = x[o + i * h + m * LANES : o + i * h + (m + 1) * LANES]
                q = (m * n + i) * LANES
                for j in range(LANES):
                    row[j] = s[q + j]


@njit(nogil=True, cache=True)
def rows(start, stop, x, h, n):
    """Levels h .. h n / 2 for n = 2, 4 or 8, where the rows lie: in units of 4096 numbers."""
    lanes = STRIP // n
    units = h // lanes
    for u in range(start, stop):
        o = (u // units) * h * n + (u % units) * lanes
        if n == 8:
            for p in range(o, o + lanes, 8):
                rows8(x, p, h)
        elif n == 4:
            for p in range(o, o + lanes, 8):
                rows4(x, p, h)
        else:
            for p in range(o, o + lanes, 8):
                rows2(x, p, h)


@njit(nogil=True, cache=True)
def short(start, stop, x, size):
    """All levels of vectors start .. stop of `size` < 4096 numbers each."""
    for t in range(start, stop):
        h = 1
        while h < size:
            for i in range(t * size, (t + 1) * size, 2 * h):
                for j in range(i, i + h):
                    a, b = x[j], x[j + h]
                    x[j], x[j + h] = a + b, a - b
            h *= 2
