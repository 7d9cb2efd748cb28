"""Discrete Gaussians from random words, in whole numbers alone: no logarithm, no rounding, no low bits.

P(y) ~ exp(-y^2 / (2 s^2)) on the integers. A two-sided geometric y of scale s is drawn, and kept with
probability exp(-(|y| - s)^2 / (2 s^2)): the product is exp(-y^2 / (2 s^2)) times a constant (Canonne, Kamath
and Steinke 2020). A coin of probability exp(-a/b), a <= b, is tossed by asking whether the first k at which
a uniform number in [0, k b) is not below a is odd. |y| of 31 s and more, kept with a probability below
2^-649, is not, so that squares stay below 2^63 for s up to 2^26.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FARTHEST = 31  # in s: nothing is as far


@njit(inline="always")
def _below(words, at, bound):
    """(a uniform number in [0, bound), where the next word is); at the end of words: at > words.size."""
    bound = np.uint64(bound)
    while at < words.size:
        word = words[at]
        at += 1
        rest = word % bound
        # the last words, fewer than bound, would make small numbers likelier
        if word - rest <= np.uint64(0) - bound:
            return np.int64(rest), at
    return np.int64(0), words.size + 1


@njit(inline="always")
def _coin(words, at, a, b):
    """(heads, with probability exp(-a/b), 0 <= a <= b < 2^57; where the next word is)."""
    k = np.int64(2 if a == b else 1)  # in [0, b) every number is below b: no word is asked
    while True:
        u, at = _below(words, at, k * b)
        if at > words.size:
            return False, at
        if u >= a:
            return k % 2 == 1, at
        k += 1


@njit(inline="always")
def _kept(words, at, y, s):
    """Heads with probability exp(-(|y| - s)^2 / (2 s^2)): whole powers of 1/e first."""
    a, b = (abs(y) - s) * (abs(y) - s), 2 * s * s
    while a > b:
        heads, at = _coin(words, at, np.int64(1), np.int64(1))
        if at > words.size or not heads:
            return False, at
        a -= b
    return _coin(words, at, a, b)


@njit(inline="always")
def _one(words, at, s):
    """(one of them, where the next word is)."""
    while True:
        u, at = _below(words, at, s)
        if at > words.size:
            return np.int64(0), at
        heads, at = _coin(words, at, u, s)
        if at > words.size:
            return np.int64(0), at
        if not heads:
            continue
        v = np.int64(0)
        while True:
            heads, at = _coin(words, at, np.int64(1), np.int64(1))
            if at > words.size:
                return np.int64(0), at
            if not heads:
                break
            v += 1
        sign, at = _below(words, at, np.int64(2))
        if at > words.size:
            return np.int64(0), at
        y = u + s * v
        if v >= FARTHEST or (sign == 1 and y == 0):  # zero would be drawn twice
            continue
        heads, at = _kept(words, at, y, s)
        if at > words.size:
            return np.int64(0), at
        if heads:
            return -y if sign == 1 else y, at


@njit(nogil=True, cache=True)
def gaussian(words, s, out, done):
    """Fill out (int64) from index `done` on; (how many are done, words used) when it is full or words end.

    A number that the words end in the middle of has used none: it must be drawn from the same words and more.
    With others in their place, numbers that take many words would be drawn less often than they should.
    """
    at = used = 0
    while done < out.size:
        y, at = _one(words, at, s)
        if at > words.size:
            break
        out[done] = y
        done += 1
        used = at
    return done, used
