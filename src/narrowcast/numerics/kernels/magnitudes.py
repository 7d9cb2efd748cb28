"""The largest magnitude of float32 numbers, by their bits: one pass, and NaN is not lost in it.

Without its sign bit a float's word grows with its magnitude, and those of infinity and of NaN are above those
of all finite numbers.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32

BLOCK = 1 << 17  # numbers
SIGN = np.uint32(1)  # bits that are shifted out


@njit(nogil=True, cache=True)
def largest(start, stop, tops, words):
    """tops[b] = max_i 2 |x_i| over block b, as words of 32 bits, as `words` are the numbers."""
    for b in range(start, stop):
        part = words[b * BLOCK : (b + 1) * BLOCK]  # indices from 0: they can be vectorised
        top = uint32(0)
        for i in range(part.size):
            word = uint32(part[i] << SIGN)
            if word > top:  # quicker than max()
                top = word
        tops[b] = top
