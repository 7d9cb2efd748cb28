"""Random signs on a vector: bit i of a stream decides the sign of number i."""

from __future__ import annotations

import numpy as np
from numba import njit, uint32

from narrowcast.numerics.kernels.philox import SIGN, flip, stream_block
from narrowcast.numerics.purposes import Purpose

COLUMN = np.uint32(Purpose.SIGNS_COLUMN)


@njit(nogil=True, cache=True)
def flip_signs(start, stop, out, x, k0, k1):
    """out = B x on blocks of 128, B random signs; out may be x."""
    for b in range(start, stop):
        words = stream_block(b, COLUMN, k0, k1)
        o = 128 * b
        for w in words:
            if o + 32 <= x.size:
                for j in range(32):  # a constant count: the compiler makes vectors of it
                    out[o + j] = flip(x[o + j], (w << uint32(31 - j)) & SIGN)
            else:
                for j in range(max(0, x.size - o)):
                    out[o + j] = flip(x[o + j], (w << uint32(31 - j)) & SIGN)
            o += 32
