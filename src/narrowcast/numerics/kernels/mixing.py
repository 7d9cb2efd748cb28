"""A digest that is free of the order in which a vector is read: for any number of threads, any device."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

BLOCK = 1 << 15  # pairs
P1, P2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
KEY = np.uint64(5)


@njit(nogil=True, cache=True)
def sum_mixed(start, stop, sums, pairs, first):
    """sums[b] = sum over the pairs i of block b of mix(pair_i, first + i), mod 2^64, blocks start .. stop.

    mix is a bijection of the pair for every place: xor, odd multiplications, xor-shifts.
    """
    for b in range(start, stop):
        part = pairs[b * BLOCK : (b + 1) * BLOCK]  # indices from 0: they can be vectorised
        place = uint64(first + b * BLOCK)
        total = uint64(0)
        for i in range(part.size):
            x = (part[i] ^ ((place + uint64(i)) * P1 + KEY)) * P2
            x = (x ^ (x >> uint64(32))) * P1
            total += x ^ (x >> uint64(29))
        sums[b] = total
