"""What is left of D after whole tiles, alone: fewer than n V numbers, which the host computes for a device.

The arithmetic is that of `edges.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from narrowcast.numerics.kernels.edges import block_transform, column_sign, place, row_sign
from narrowcast.numerics.kernels.philox import flip
from narrowcast.numerics.kernels.strip import STRIP


@njit(inline="always")
def level_of(rows):
    level = 0
    while (1 << level) < rows:
        level += 1
    return level


@njit(nogil=True, cache=True)
def expand_rest(out, x, scales, D, n, V, rho, k0, k1, tiles, bits, mask, keys):
    """out = A x on the remainder, out (D - tiles n V,)."""
    s = np.empty(STRIP, np.float32)
    cache = np.full(5, -1, np.int64)
    d, start, b = x.size, tiles * n * V, tiles
    o = start
    while o < D:
        o, rows, lanes, w = place(b, D, d, n, V, rho, tiles, bits, mask, keys)
        scale = scales[level_of(rows)]
        for i in range(rows):
            g = row_sign(o // V + i, k0, k1)
            for q in range(i * lanes, (i + 1) * lanes):
                s[q] = flip(x[(w + q) % d] * scale, g)
        block_transform(s, rows, lanes)
        for q in range(rows * lanes):
            out[o + q - start] = flip(s[q], column_sign(o + q, V, cache, k0, k1))
        o += rows * lanes
        b += 1


@njit(nogil=True, cache=True)
def project_rest(y, g, scales, D, n, V, rho, k0, k1, tiles, bits, mask, keys):
    """y += A^T g of the remainder, g (D - tiles n V,)."""
    s = np.empty(STRIP, np.float32)
    cache = np.full(5, -1, np.int64)
    d, start, b = y.size, tiles * n * V, tiles
    o = start
    while o < D:
        o, rows, lanes, w = place(b, D, d, n, V, rho, tiles, bits, mask, keys)
        scale = scales[level_of(rows)]
        for q in range(rows * lanes):
            s[q] = flip(g[o + q - start], column_sign(o + q, V, cache, k0, k1))
        block_transform(s, rows, lanes)
        for i in range(rows):
            sign = row_sign(o // V + i, k0, k1)
            for q in range(i * lanes, (i + 1) * lanes):
                y[(w + q) % d] += flip(s[q], sign) * scale
        o += rows * lanes
        b += 1
