"""QSGD's rounding: a bucket's numbers as multiples of its norm / s, up or down at random."""

from __future__ import annotations

import numpy as np
from numba import njit

UNIT = 2.0**-32


@njit(nogil=True, cache=True)
def quantise(x, words, s, bucket, norms, levels):
    """levels = sign(x) floor(s |x| / norm + u), u = word / 2^32, for each bucket's 2-norm; 0 if that is 0."""
    top = np.int32(s)
    for b in range(norms.size):
        first, last = b * bucket, min((b + 1) * bucket, x.size)
        total = 0.0
        for i in range(first, last):
            total += np.float64(x[i]) * np.float64(x[i])
        norms[b] = np.float32(np.sqrt(total))
        if norms[b] > 0 and np.isfinite(norms[b]):
            scale = s / np.float64(norms[b])
            for i in range(first, last):
                level = min(top, np.int32(np.abs(np.float64(x[i])) * scale + np.float64(words[i]) * UNIT))
                levels[i] = np.int8(-level if x[i] < 0 else level)


@njit(nogil=True, cache=True)
def dequantise(levels, norms, s, bucket, out):
    """out = levels norm / s; False if a bucket of norm zero has a level."""
    for b in range(norms.size):
        scale = np.float64(norms[b]) / s
        for i in range(b * bucket, min((b + 1) * bucket, out.size)):
            if levels[i] != 0 and scale == 0.0:
                return False
            out[i] = np.float32(levels[i] * scale)
    return True
