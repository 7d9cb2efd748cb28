"""Gaps between rising positions as varints: seven bits a byte, lowest first, the top bit says "more"."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def write(gaps, size):
    """The bytes of the gaps, `size` of them."""
    out = np.empty(size, np.uint8)
    at = 0
    for gap in gaps:
        while gap >= 128:
            out[at] = (gap & 127) | 128
            gap >>= 7
            at += 1
        out[at] = gap
        at += 1
    return out


@njit(cache=True, nogil=True)
def read(data, D):
    """Positions up to the first that is not below D; whatever is odd about the rest, writing again shows."""
    out = np.empty(len(data), np.int64)
    count, position, gap, shift = 0, -1, 0, 0
    for byte in data:
        gap |= np.int64(byte & 127) << shift
        shift += 7
        if byte < 128:
            position += gap + 1
            if position >= D:
                break
            out[count] = position
            count += 1
            gap, shift = 0, 0
        elif shift > 42:  # beyond any D
            break
    return out[:count]
