"""Dithered numbers as digits of words that can be added: the sum of the words has the sums for its digits.

Worker w of W writes n of its numbers as one word sum_j (k_j + L) M^j with |k_j| <= L and M = 2 W L + 1. The
digits of the sum of all words are sum_w k_w + W L, at most 2 W L < M: nothing is carried, and with
M^n <= 2^64 nothing overflows. Words are unsigned; adding them as signed ones gives the same bits.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

TURN = 1 << 32  # places that a dither can have


@njit(inline="always")
def _dither(place):
    """u in (-1/2, 1/2): the middle of the place among 2^32."""
    return (np.float64(place) + 0.5) * 2.0**-32 - 0.5


@njit(nogil=True, cache=True)
def write(x, step, places, shift, levels, radix, digits, words, sent):
    """words <- k = floor(x / step + u + 1/2) as digits k + levels; sent <- step (k - u), what will be read.

    u is the dither at places + shift, around the circle of 2^32. |k| <= levels: where |x| is more than levels
    steps it may have to be cut.
    """
    for at in range(words.size):
        word, first = uint64(0), at * digits
        for i in range(min(first + digits, x.size) - 1, first - 1, -1):
            u = _dither(uint32(places[i] + shift))
            k = min(max(np.floor(np.float64(x[i]) / step + u + 0.5), -levels), levels)
            sent[i] = np.float32(step * (k - u))
            word = word * radix + uint64(np.int64(k) + levels)
        words[at] = word


@njit(nogil=True, cache=True)
def read_mean(words, step, places, workers, levels, radix, digits, mean):
    """mean <- (step / W) (sum_w k_w - sum_w u_w), from the sum of W workers' words.

    Worker w's dither is at places + floor(w 2^32 / W). Around the circle, those with
    w >= (2^32 - place) W / 2^32 have passed its end, so the sum of all W takes no loop; it is exact.
    """
    shifts = uint64(0)
    for w in range(workers):
        shifts += (uint64(w) << uint64(32)) // uint64(workers)
    W = uint64(workers)
    for at in range(words.size):
        word, first = words[at], at * digits
        for i in range(first, min(first + digits, mean.size)):
            rest = word // radix
            total = np.int64(word - rest * radix) - np.int64(workers) * levels
            word = rest
            place = uint64(places[i])
            passed = W - (((uint64(TURN) - place) * W + uint64(TURN - 1)) >> uint64(32))
            around = W * place + shifts - (passed << uint64(32))
            u = (np.float64(around) + 0.5 * workers) * 2.0**-32 - 0.5 * workers
            mean[i] = np.float32(step * (np.float64(total) - u) / workers)
