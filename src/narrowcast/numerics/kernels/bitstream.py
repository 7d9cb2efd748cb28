"""Codes of variable length in a stream of bits, the lowest bit of each 64-bit word first.

A Rice code of n with parameter b is n >> b zeros, a one, and the b low bits of n. An Elias gamma code of
n >= 1 is m = floor(log2 n) zeros, a one, and the m low bits of n. Each number has one code. Writers fill
words that are zero at first; readers take words that end with SPARE zero words, so that no read leaves them.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types, uint64
from numba.extending import intrinsic

SPARE = 3  # words: a code that starts before the end reads at most 64 bits beyond it
LONGEST = 31  # zeros of a gamma code, so that 64 bits hold it: numbers below 2^32


@intrinsic
def lowest(typingctx, word):
    """The place of the lowest one in a word that is not zero."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def highest(typingctx, word):
    """The place of the highest one in a word that is not zero."""

    def codegen(context, builder, signature, args):
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(ir.IntType(64), 63), zeros)

    return types.int64(types.uint64), codegen


@njit(inline="always")
def put(words, at, value, bits):
    """Write a value of so many bits, 1 to 64."""
    w, s = at >> 6, at & 63
    words[w] |= uint64(value) << uint64(s)
    if s + bits > 64:
        words[w + 1] |= uint64(value) >> uint64(64 - s)


@njit(inline="always")
def peek(words, at):
    """The 64 bits from `at` on."""
    w, s = at >> 6, at & 63
    word = words[w] >> uint64(s)
    if s:
        word |= words[w + 1] << uint64(64 - s)
    return word


@njit(inline="always")
def low(words, at, bits):
    """The value of `bits` bits from `at` on, fewer than 64."""
    return np.int64(peek(words, at) & ((uint64(1) << uint64(bits)) - uint64(1)))


@njit(inline="always")
def next_one(words, at, end):
    """The place of the first one from `at` on; `end` if there is none before it."""
    while at < end:
        word = peek(words, at)
        if word != uint64(0):
            at += np.int64(lowest(word))
            break
        at += 64
    return min(at, end)


@njit(inline="always")
def put_gamma(words, at, n):
    """Write n; where it ends."""
    m = highest(uint64(n))
    put(words, at + m, ((n - (1 << m)) << 1) | 1, m + 1)
    return at + 2 * m + 1


@njit(inline="always")
def gamma(word):
    """(the number at the low end of 64 bits, how many it takes); (0, 0) if there is none."""
    m = np.int64(lowest(word)) if word != uint64(0) else 64
    if m > LONGEST:
        return 0, 0
    word >>= uint64(m + 1)
    return np.int64(word & ((uint64(1) << uint64(m)) - uint64(1))) | (1 << m), 2 * m + 1


@njit(nogil=True, cache=True)
def write_gaps(words, gaps, b):
    """Rice codes of the gaps; where they end."""
    at = 0
    for gap in gaps:
        at += gap >> b
        put(words, at, ((gap & ((1 << b) - 1)) << 1) | 1, b + 1)
        at += b + 1
    return at


@njit(nogil=True, cache=True)
def read_gaps(words, end, b, D, places):
    """As many rising positions below D as `places` holds; where their codes end, -1 if they are not codes."""
    at, place = 0, -1
    for i in range(places.size):
        one = next_one(words, at, end)
        if one == end or one - at > (D >> b):
            return -1
        place += (((one - at) << b) | low(words, one + 1, b)) + 1
        at = one + 1 + b
        if at > end or place >= D:
            return -1
        places[i] = place
    return at


@njit(nogil=True, cache=True)
def write_levels(words, levels):
    """gamma(zeros + 1), sign, gamma(size) of every level that is not zero; a run of zeros at the end last."""
    at, last = 0, -1
    for i in range(levels.size):
        level = np.int64(levels[i])
        if level != 0:
            at = put_gamma(words, at, i - last)
            size, m = abs(level), highest(uint64(abs(level)))
            put(words, at, ((((size - (1 << m)) << 1) | 1) << (m + 1)) | (level < 0), 2 * m + 2)
            at += 2 * m + 2
            last = i
    return put_gamma(words, at, levels.size - last) if last < levels.size - 1 else at


@njit(nogil=True, cache=True)
def read_levels(words, end, most, levels):
    """Fill `levels`, zero at first, with sizes up to `most`; where the codes end, -1 if they are none."""
    at, i = 0, -1
    while i < levels.size - 1:
        step, bits = gamma(peek(words, at))
        at += bits
        i += step
        if bits == 0 or at > end or i > levels.size:
            return -1
        if i == levels.size:
            break
        word = peek(words, at)
        size, bits = gamma(word >> uint64(1))
        at += bits + 1
        if bits == 0 or at > end or size > most:
            return -1
        levels[i] = -size if word & uint64(1) else size
    return at
