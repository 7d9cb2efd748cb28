"""A vector cut onto a grid, within a radius, and added to whole numbers: two passes, nothing kept between."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def sum_of_squares(x):
    """In float64; x is float32."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@njit(nogil=True, cache=True)
def add_within(x, scale, radius, sums):
    """sums += k, k = trunc(x scale), if |k| <= radius; whether it is. Whole numbers: the bound is exact."""
    squares = np.int64(0)
    for i in range(x.size):
        k = np.int64(np.float64(x[i]) * scale)
        squares += k * k
    if squares > radius * radius:
        return False
    for i in range(x.size):
        sums[i] += np.int64(np.float64(x[i]) * scale)
    return True
