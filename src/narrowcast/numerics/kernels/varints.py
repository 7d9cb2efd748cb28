"""Gaps between rising positions as varints: seven bits a byte, lowest first, the top bit says "more"."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def write(positions, D, most):
    """The bytes of the gaps before each position, less one.

    (True, what was written): the positions rise and lie below D. No more than `most` bytes are written, and
    then one more shows that they were not enough.
    """
    out = np.empty(most + 1, np.uint8)
    at, before = 0, -1
    for position in positions:
        gap = position - before - 1
        if gap < 0 or position >= D:
            return False, out[:0]
        before = position
        while at <= most:
            more = gap >= 128
            out[at] = (gap & 127) | (128 if more else 0)
            gap >>= 7
            at += 1
            if not more:
                break
    return True, out[:at]


@njit(cache=True, nogil=True)
def read(data, D):
    """(True, the positions), if the bytes are what `write` makes of positions below D."""
    out = np.empty(len(data), np.int64)
    count, position, gap, shift = 0, -1, 0, 0
    for byte in data:
        if shift > 42:  # beyond any D
            return False, out[:0]
        gap |= np.int64(byte & 127) << shift
        if byte < 128:
            position += gap + 1
            if position >= D or (byte == 0 and shift > 0):  # the second: a longer form than needed
                return False, out[:0]
            out[count] = position
            count += 1
            gap, shift = 0, 0
        else:
            shift += 7
    return shift == 0, out[:count]
