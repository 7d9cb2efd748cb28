"""Random signs on a vector: bit i of a stream decides the sign of number i."""

from __future__ import annotations

import numpy as np
from numba import njit, uint32

from narrowcast.numerics.kernels.philox import SIGN, flip, stream_block
from narrowcast.numerics.purposes import Purpose

COLUMN = np.uint32(Purpose.SIGNS_COLUMN)


@njit(inline="always")
def flip_block(out, x, b, k0, k1):
    """out = B x on block b alone, of up to 128 numbers; out may be x."""
    words = stream_block(b, COLUMN, k0, k1)
    for k in range(4):
        part, to, word = x[32 * k : 32 * k + 32], out[32 * k : 32 * k + 32], words[k]
        if part.size == 32:
            for j in range(32):  # a constant count, from 0: the compiler makes vectors of it
                to[j] = flip(part[j], (word << uint32(31 - j)) & SIGN)
        else:
            for j in range(part.size):
                to[j] = flip(part[j], (word << uint32(31 - j)) & SIGN)


@njit(nogil=True, cache=True)
def flip_signs(start, stop, out, x, k0, k1):
    """out = B x on blocks of 128, B random signs; out may be x."""
    for b in range(start, stop):
        flip_block(out[128 * b : 128 * b + 128], x[128 * b : 128 * b + 128], b, k0, k1)
