"""Integers to words of 16 bits and back by range asymmetric numeral systems (Duda 2013), and the dither.

A symbol of frequency f, of 2^12, c of which lie before it, takes a state x to (x // f) 2^12 + x % f + c,
which is larger by log2(2^12 / f) bits; its low word goes out before x would leave 2^16 .. 2^32 - 1. Reading
undoes this in the other order, so that the writer begins with the last number and the reader ends where the
writer began: at START, with no word left. There is nothing but integers in it. A number that its table has no
symbol for is the last symbol, the escape, and two words of its own.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

PRECISION = 12
SLOTS = 1 << PRECISION
START = np.uint32(1 << 16)
MOST = (1 << 30) - 1  # the largest size of a number
BINS = 16  # of |u|
GREATEST = float(np.finfo(np.float32).max)
_HALF = uint32(1 << 31)
_TO_BIN = np.uint32(27)  # the four bits after the first


@njit(nogil=True, cache=True)
def write(numbers, bins, middle, frequency, below, words):
    """Codes of numbers[i] by the table of bins[i], at the end of `words`; where they begin, -1: no room.

    frequency and below (bins, symbols); symbol n + middle is the number n, the last is the escape.
    """
    at, x = words.size, START
    escape = frequency.shape[1] - 1
    for i in range(numbers.size - 1, -1, -1):
        n, b = np.int64(numbers[i]), bins[i]
        symbol = n + middle
        if symbol < 0 or symbol >= escape or frequency[b, symbol] == 0:
            symbol = escape
            if at < 5:
                return -1
            at -= 2
            words[at] = np.uint16(uint32(n) & uint32(0xFFFF))
            words[at + 1] = np.uint16(uint32(n) >> uint32(16))
        f = uint32(frequency[b, symbol])
        if uint64(x) >= uint64(f) << uint64(32 - PRECISION):
            if at < 3:
                return -1
            at -= 1
            words[at] = np.uint16(x & uint32(0xFFFF))
            x = x >> uint32(16)
        q = x // f
        x = uint32((q << uint32(PRECISION)) + (x - q * f) + uint32(below[b, symbol]))
    words[at - 2] = np.uint16(x & uint32(0xFFFF))
    words[at - 1] = np.uint16(x >> uint32(16))
    return at - 2


@njit(nogil=True, cache=True)
def read(words, bins, middle, symbols, frequency, below, numbers):
    """Fill `numbers`; False where the words are none that `write` gives. symbols (bins, 2^12): by slot."""
    if words.size < 2:
        return False
    escape, at = frequency.shape[1] - 1, 2
    x = uint32(words[0]) | uint32(words[1]) << uint32(16)
    if x < START:
        return False
    for i in range(numbers.size):
        b, slot = bins[i], x & uint32(SLOTS - 1)
        symbol = symbols[b, slot]
        x = uint32(uint32(frequency[b, symbol]) * (x >> uint32(PRECISION)) + slot - uint32(below[b, symbol]))
        if x < START:
            if at >= words.size:
                return False
            x = x << uint32(16) | uint32(words[at])
            at += 1
        n = np.int64(symbol) - middle
        if symbol == escape:
            if at + 2 > words.size:
                return False
            n = np.int64(np.int32(uint32(words[at]) | uint32(words[at + 1]) << uint32(16)))
            at += 2
            known = -middle <= n < escape - middle and frequency[b, n + middle] != 0
            if known or abs(n) > MOST:
                return False
        numbers[i] = n
    return x == START and at == words.size


@njit(nogil=True, cache=True)
def count(numbers, bins, counts):
    """counts[b, n + 127] of numbers n by bin; the last column, 255, is of all that lie beyond +-127."""
    for i in range(numbers.size):
        n = np.int64(numbers[i])
        counts[bins[i], n + 127 if -127 <= n <= 127 else 255] += 1


@njit(inline="always")
def _dither(word):
    """u in (-1/2, 1/2): the middle of the word's place among 2^32."""
    return (np.float64(word) + 0.5) * 2.0**-32 - 0.5


@njit(nogil=True, cache=True)
def quantise(x, step, words, numbers, bins):
    """k = floor(x / step + u + 1/2), as k where u > 0 and -k elsewhere, and the bin of |u|; False: too large.

    The density of k given u is that of -k given -u: one table serves both.
    """
    for i in range(x.size):
        w = words[i]
        k = np.floor(np.float64(x[i]) / step + _dither(w) + 0.5)
        if not (abs(k) <= MOST and abs(np.float64(x[i])) + step <= GREATEST):
            return False
        up = w >= _HALF
        numbers[i] = np.int32(k) if up else -np.int32(k)
        bins[i] = (w if up else ~w) >> _TO_BIN & uint32(BINS - 1)
    return True


@njit(nogil=True, cache=True)
def fill_bins(words, bins):
    """The bin of every |u|."""
    for i in range(words.size):
        w = words[i]
        bins[i] = (w if w >= _HALF else ~w) >> _TO_BIN & uint32(BINS - 1)


@njit(nogil=True, cache=True)
def dequantise(numbers, step, words, out):
    """out = step (k - u): the difference is exact, the product rounds once, and once more to float32."""
    for i in range(numbers.size):
        w = words[i]
        k = np.float64(numbers[i]) if w >= _HALF else -np.float64(numbers[i])
        out[i] = np.float32(step * (k - _dither(w)))


@njit(nogil=True, cache=True)
def pack_bits(numbers, width, words):
    """The low `width` bits of each, 0 to 31, one after the other, into words that are zero."""
    at, mask = 0, (uint64(1) << uint64(width)) - uint64(1)
    for i in range(numbers.size):
        value, w, s = uint64(np.int64(numbers[i])) & mask, at >> 6, at & 63
        words[w] |= value << uint64(s)
        if s + width > 64:
            words[w + 1] |= value >> uint64(64 - s)
        at += width


@njit(nogil=True, cache=True)
def unpack_bits(words, width, numbers):
    """The values of `width` bits, 0 to 31; words end with one to spare."""
    at, mask = 0, (uint64(1) << uint64(width)) - uint64(1)
    for i in range(numbers.size):
        w, s = at >> 6, at & 63
        value = words[w] >> uint64(s)
        if s + width > 64:
            value |= words[w + 1] << uint64(64 - s)
        numbers[i] = np.int32(value & mask)
        at += width


@njit(nogil=True, cache=True)
def sum_of_squares(x):
    """In float64, in one order on every machine."""
    a = b = c = d = 0.0
    whole = x.size // 4 * 4
    for i in range(0, whole, 4):
        a += np.float64(x[i]) * np.float64(x[i])
        b += np.float64(x[i + 1]) * np.float64(x[i + 1])
        c += np.float64(x[i + 2]) * np.float64(x[i + 2])
        d += np.float64(x[i + 3]) * np.float64(x[i + 3])
    for i in range(whole, x.size):
        a += np.float64(x[i]) * np.float64(x[i])
    return (a + b) + (c + d)
