"""Directions of random signs, made on the fly a strip of 4096 coordinates at a time.

Where the sign bits stand, for direction j and coordinate e = 4096 t + 128 i + l: bit i of word l of the
strip, which is word l // 32 of block 32 t + l % 32 of stream j. Neighbours in memory are neighbours in l, so
every pass is a plain vector operation.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from narrowcast.numerics.kernels.philox import SIGN, flip, stream_block

LANES = 128  # words of a strip
STRIP = 32 * LANES  # coordinates
BLOCKS = LANES // 4


@njit(inline="always")
def sign_words(t, j, words, k0, k1):
    """The 128 words of strip t of direction j."""
    for b in range(BLOCKS):
        w = stream_block(uint64(t * BLOCKS + b), uint32(j), k0, k1)
        words[b], words[b + BLOCKS], words[b + 2 * BLOCKS], words[b + 3 * BLOCKS] = w[0], w[1], w[2], w[3]


@njit(inline="always")
def bit(word, i):
    """Bit i of a word as the mask of a sign."""
    return (word << uint32(31 - i)) & SIGN


@njit(nogil=True, cache=True)
def expand_strips(start, stop, out, base, seeds, scales, k0, k1):
    """out = base + (... (s_0 z_0 + s_1 z_1) + ...) on strips start .. stop, summed in the order of `seeds`.

    s z is s with its sign flipped, so nothing is multiplied. Directions are taken four at a time, one after
    the other, to cross memory less often.
    """
    total, words = np.empty(STRIP, np.float32), np.empty((4, LANES), np.uint32)
    for t in range(start, stop):
        total[:] = 0.0
        whole = len(seeds) - len(seeds) % 4
        for first in range(0, whole, 4):
            for m in range(4):
                sign_words(t, seeds[first + m], words[m], k0, k1)
            w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
            s0, s1, s2, s3 = scales[first], scales[first + 1], scales[first + 2], scales[first + 3]
            for i in range(32):
                y = total[i * LANES : (i + 1) * LANES]
                for l in range(LANES):  # noqa: E741
                    x = y[l] + flip(s0, bit(w0[l], i))
                    x = x + flip(s1, bit(w1[l], i))
                    x = x + flip(s2, bit(w2[l], i))
                    y[l] = x + flip(s3, bit(w3[l], i))
        for m in range(whole, len(seeds)):
            sign_words(t, seeds[m], words[0], k0, k1)
            add_signs(total, words[0], scales[m])
        y = out[t * STRIP : (t + 1) * STRIP]
        for e in range(y.size):
            y[e] = base[t * STRIP + e] + total[e]


@njit(inline="always")
def add_signs(y, words, scale):
    """y += scale z for a whole strip whose words these are."""
    for i in range(32):
        x = y[i * LANES : (i + 1) * LANES]
        for l in range(LANES):  # noqa: E741
            x[l] += flip(scale, bit(words[l], i))


@njit(nogil=True, cache=True)
def add_strips(start, stop, theta, j, scale, k0, k1):
    """theta += scale z_j in place, on strips start .. stop."""
    words = np.empty(LANES, np.uint32)
    for t in range(start, stop):
        sign_words(t, j, words, k0, k1)
        y = theta[t * STRIP : (t + 1) * STRIP]
        if y.size == STRIP:
            add_signs(y, words, scale)
        else:
            for e in range(y.size):
                y[e] += flip(scale, bit(words[e % LANES], e // LANES))
