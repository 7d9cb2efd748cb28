"""Hadamard butterflies down the rows of a strip, so that every butterfly is a plain vector addition.

A strip is ROWS = 64 rows of LANES = 64 consecutive floats (16 KiB: it fits the first-level cache). Both
numbers are compile-time constants: the compiler then proves that the rows do not overlap and vectorises the
loops over lanes. Butterflies run in the order h = 1, 2, 4, ...; three levels at a time stay in registers.
"""

from __future__ import annotations

from numba import njit

ROWS = 64
LANES = 64
STRIP = ROWS * LANES


@njit(inline="always")
def eight(a, b, c, d, e, f, g, h):
    """H_8 on eight values: three levels of butterflies, in the order 1, 2, 4."""
    a, b, c, d, e, f, g, h = a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h
    a, b, c, d, e, f, g, h = a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h
    return a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h


@njit(inline="always")
def level(s, h):
    """One level of butterflies between rows i and i + h of a strip, in place."""
    for block in range(0, ROWS, 2 * h):
        for i in range(block * LANES, (block + h) * LANES):
            a, b = s[i], s[i + h * LANES]
            s[i], s[i + h * LANES] = a + b, a - b


@njit(inline="always")
def near8(s):
    """Levels h = 1, 2, 4 of a strip, in place."""
    for r in range(0, STRIP, 8 * LANES):
        for j in range(r, r + LANES):
            v = eight(
                s[j], s[j + LANES], s[j + 2 * LANES], s[j + 3 * LANES],
                s[j + 4 * LANES], s[j + 5 * LANES], s[j + 6 * LANES], s[j + 7 * LANES],
            )  # fmt: skip
            for i in range(8):
                s[j + i * LANES] = v[i]


@njit(inline="always")
def far8(s):
    """Levels h = 8, 16, 32 of a strip, in place."""
    for j in range(8 * LANES):
        v = eight(
            s[j], s[j + 8 * LANES], s[j + 16 * LANES], s[j + 24 * LANES],
            s[j + 32 * LANES], s[j + 40 * LANES], s[j + 48 * LANES], s[j + 56 * LANES],
        )  # fmt: skip
        for i in range(8):
            s[j + 8 * i * LANES] = v[i]


@njit(inline="always")
def transform(s, n):
    """H_n on each group of n rows of a strip (n a power of two up to ROWS), in place."""
    if n >= 8:
        near8(s)
        if n == 64:
            far8(s)
        else:
            h = 8
            while h < n:
                level(s, h)
                h *= 2
    else:
        h = 1
        while h < n:
            level(s, h)
            h *= 2
