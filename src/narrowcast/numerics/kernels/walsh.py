"""The fast Walsh-Hadamard transform of one long vector, in place.

A strip of 4096 numbers takes its twelve levels (h = 1 .. 2048) in the first-level cache: six along its rows
of 64, six down them. A block of eight strips, which the second-level cache holds, takes three more right
after. Every later pass takes up to six levels: of 64 rows at stride h it gathers eight at a time into a strip
and puts eight at a time back, so that a vector of 2^27 numbers crosses memory three times, not twenty-seven.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from narrowcast.numerics.kernels.butterfly import WIDE, row64, rows2, rows4, rows8
from narrowcast.numerics.kernels.memory import address
from narrowcast.numerics.kernels.strip import LANES, STRIP

BLOCK = 8 * STRIP


@njit(inline="always")
def rows(y, q, k, x, p, h, n):
    """y[q + i k + j] = H_n down the rows x[p + i h + j], i < n, j < 16; n = 1, 2, 4 or 8."""
    if n == 8:
        rows8(y, q, k, x, p, h)
    elif n == 4:
        rows4(y, q, k, x, p, h)
    elif n == 2:
        rows2(y, q, k, x, p, h)


@njit(inline="always")
def strip(x, o):
    """Levels h = 1 .. 2048 of the strip x[o : o + 4096]."""
    for r in range(o, o + STRIP, LANES):
        row64(x, r)
    for r in range(o, o + STRIP, 8 * LANES):
        for p in range(r, r + LANES, WIDE):
            rows8(x, p, LANES, x, p, LANES)
    for p in range(o, o + 8 * LANES, WIDE):
        rows8(x, p, 8 * LANES, x, p, 8 * LANES)


@njit(inline="always")
def gathered(x, o, h, n, lanes, s):
    """H_n down the rows x[o + i h + j], i < n, j < lanes: eight rows at a time into s and back from it."""
    near, far = min(n, 8), n // min(n, 8)
    for j in range(0, lanes, LANES):
        if far == 1:
            for p in range(o + j, o + j + LANES, WIDE):
                rows(x, p, h, x, p, h, near)
        else:
            for i in range(0, n, 8):
                for p in range(0, LANES, WIDE):
                    rows8(s, i * LANES + p, LANES, x, o + i * h + j + p, h)
            for i in range(8):
                for p in range(0, LANES, WIDE):
                    rows(x, o + i * h + j + p, 8 * h, s, i * LANES + p, 8 * LANES, far)


@njit(nogil=True, cache=True)
def blocks(start, stop, x, size):
    """All levels of vectors start .. stop of `size` numbers each, 4096 <= size <= BLOCK."""
    s = np.empty(STRIP, np.float32)
    vector, between = address(x), address(s)
    for b in range(start, stop):
        for o in range(b * size, (b + 1) * size, STRIP):
            strip(vector, o)
        if size > STRIP:
            gathered(vector, b * size, STRIP, size // STRIP, STRIP, between)


@njit(nogil=True, cache=True)
def far(start, stop, x, h, n):
    """Levels h .. h n / 2 (h >= 4096, n <= 64 a power of two), in units of 4096 numbers."""
    s = np.empty(STRIP, np.float32)
    vector, between = address(x), address(s)
    lanes = STRIP // n
    units = h // lanes
    for u in range(start, stop):
        gathered(vector, (u // units) * h * n + (u % units) * lanes, h, n, lanes, between)


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
