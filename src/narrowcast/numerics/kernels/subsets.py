"""A fair random set of k positions below D: Floyd's algorithm over a bitmap."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64


@njit(nogil=True, cache=True)
def subset(D, words):
    """k rising positions below D from 2 k random words; every set of k is equally likely (up to D / 2^64).

    Floyd: for j = D-k .. D-1 take a random t <= j, or j itself where t is taken already. By induction the set
    is then uniform among those of its size below j + 1.
    """
    k = words.size // 2
    taken = np.zeros(D, np.bool_)
    for i in range(k):
        j = D - k + i
        t = np.int64((uint64(words[2 * i]) | uint64(words[2 * i + 1]) << uint64(32)) % uint64(j + 1))
        taken[j if taken[t] else t] = True
    return np.flatnonzero(taken)
