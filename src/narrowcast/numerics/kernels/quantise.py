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
        first, last = b * bucket, (b + 1) * bucket
        part, word, out = x[first:last], words[first:last], levels[first:last]
        total = 0.0
        for i in range(part.size):
            total += np.float64(part[i]) * np.float64(part[i])
        norms[b] = np.float32(np.sqrt(total))
        if norms[b] > 0 and np.isfinite(norms[b]):
            scale = s / np.float64(norms[b])
            for i in range(part.size):
                up = np.float64(word[i]) * UNIT
                level = min(top, np.int32(np.abs(np.float64(part[i])) * scale + up))
                out[i] = np.int8(-level if part[i] < 0 else level)


@njit(nogil=True, cache=True)
def dequantise(levels, norms, s, bucket, out):
    """out = levels norm / s; False if a bucket of norm zero has a level."""
    for b in range(norms.size):
        scale = np.float64(norms[b]) / s
        part, to = levels[b * bucket : (b + 1) * bucket], out[b * bucket : (b + 1) * bucket]
        if scale == 0.0:
            for i in range(part.size):
                if part[i] != 0:
                    return False
        for i in range(part.size):
            to[i] = np.float32(part[i] * scale)
    return True
