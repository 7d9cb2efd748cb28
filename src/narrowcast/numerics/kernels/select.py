"""The k largest of many numbers by size, by counting: no sorting, and ties go to the lowest positions.

The size of a float32 orders like its bits without the sign. The bits of the k-th largest are found from the
top down, 11 + 10 + 10 of them, by counting how often each value of them occurs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

SIZE = np.uint32(0x7FFFFFFF)


@njit(inline="always")
def bin_of_kth(counts, k):
    """(the bin of the k-th from the top, how many of that bin are among the k)."""
    b = counts.size - 1
    while counts[b] < k:
        k -= counts[b]
        b -= 1
    return b, k


@njit(nogil=True, cache=True)
def largest(bits, k):
    """The positions of the k largest, rising; bits are those of float32 numbers, 1 <= k <= their count."""
    counts = np.zeros(2048, np.int64)
    for i in range(bits.size):
        counts[(bits[i] & SIZE) >> np.uint32(20)] += 1
    top, left = bin_of_kth(counts, k)
    near = np.empty(counts[top], np.uint32)
    at = 0
    for i in range(bits.size):
        if (bits[i] & SIZE) >> np.uint32(20) == top:
            near[at] = bits[i] & SIZE
            at += 1
    limit = np.uint32(top)
    for shift in (10, 0):
        counts = np.zeros(1024, np.int64)
        for key in near:
            if key >> np.uint32(shift + 10) == limit:
                counts[(key >> np.uint32(shift)) & np.uint32(1023)] += 1
        b, left = bin_of_kth(counts, left)
        limit = (limit << np.uint32(10)) | np.uint32(b)
    found = np.empty(k, np.int64)
    at = 0
    for i in range(bits.size):
        key = bits[i] & SIZE
        if key >= limit and (key > limit or left > 0):
            left -= key == limit
            found[at] = i
            at += 1
    return found
