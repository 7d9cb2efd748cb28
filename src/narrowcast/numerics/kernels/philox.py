"""Philox4x32-10 (Salmon et al. 2011) and what is built on its bits, compiled.

A key is a Python int of 64 bits; kernels take it as two uint32 words. A counter is four uint32 words, so
any block of 128 bits can be made anywhere, in any order, on any number of threads.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types, uint32, uint64
from numba.extending import intrinsic

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
SIGN = np.uint32(0x80000000)
STREAM = np.uint32(0x80000000)  # the fourth counter word of a stream; derived keys have less there


@intrinsic
def flip(typingctx, x, mask):
    """x with its bits XORed by mask: mask 0x80000000 negates a float32 exactly."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], ir.IntType(32))
        return builder.bitcast(builder.xor(bits, args[1]), ir.FloatType())

    return types.float32(types.float32, types.uint32), codegen


@njit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):
    """One block: counter (4 words) and key (2 words) -> 4 random uint32 words."""
    for _ in range(10):
        p0 = uint64(c0) * M0
        p1 = uint64(c2) * M1
        c0, c1, c2, c3 = (
            uint32(uint32(p1 >> uint64(32)) ^ c1 ^ k0),
            uint32(p1),
            uint32(uint32(p0 >> uint64(32)) ^ c3 ^ k1),
            uint32(p0),
        )
        k0 = uint32(k0 + W0)
        k1 = uint32(k1 + W1)
    return c0, c1, c2, c3


@njit(inline="always")
def stream_block(n, stream, k0, k1):
    """Block n of a stream: 128 bits."""
    return philox(uint32(n), uint32(uint64(n) >> uint64(32)), stream, STREAM, k0, k1)


@njit(nogil=True, cache=True)
def fill_words(start, stop, out, first, stream, k0, k1):
    """Blocks first+start .. first+stop of a stream: word c of block b goes to out[4*b + c]."""
    for b in range(start, stop):
        w = stream_block(uint64(first + b), stream, k0, k1)
        for c in range(4):
            out[4 * b + c] = w[c]


@njit(nogil=True, cache=True)
def derived(purpose, a0, a1, b, k0, k1):
    """The key derived for (purpose, a, b)."""
    w = philox(uint32(purpose), uint32(a0), uint32(a1), uint32(b), uint32(k0), uint32(k1))
    return uint64(w[0]) | uint64(w[1]) << uint64(32)


@njit(nogil=True, cache=True)
def fill_derived(start, stop, out, purpose, a0, a1, b, k0, k1):
    """out[i] = the key derived for (purpose, a, b[i]): `keyed.derive` for many b."""
    for i in range(start, stop):
        w = philox(purpose, a0, a1, uint32(b[i]), k0, k1)
        out[i] = uint64(w[0]) | uint64(w[1]) << uint64(32)


@njit(inline="always")
def permute(x, bits, mask, keys):
    """A keyed bijection of {0 .. mask} (mask = 2^bits - 1): odd multiplications and xor-shifts."""
    half = uint64((bits + 1) // 2)
    for r in range(3):
        x = (x * keys[2 * r] + keys[2 * r + 1]) & mask
        x ^= x >> half
    return x


@njit(inline="always")
def permute_below(x, n, bits, mask, keys):
    """The bijection walked until it lands below n: a bijection of {0 .. n-1}."""
    x = permute(uint64(x), bits, mask, keys)
    while x >= uint64(n):
        x = permute(x, bits, mask, keys)
    return x


@njit(inline="always")
def coin(x, key):
    """One bit from 64 bits and a key: the finaliser of SplitMix64."""
    x = (x + key) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x >> uint64(63)


@njit(nogil=True, cache=True)
def fill_permuted(start, stop, out, first, n, pivots, keys):
    """out[i] = pi(first + i) for a fair keyed permutation pi of {0 .. n-1}: swap or not.

    A round pairs x with pivot - x (mod n) and swaps each pair by a coin; the coin is tossed for the larger.
    """
    for i in range(start, stop):
        x = first + i
        for r in range(pivots.size):
            other = (pivots[r] - x) % n
            if coin(uint64(max(x, other)), keys[r]):
                x = other
        out[i] = x


@njit(nogil=True, cache=True)
def swap_or_not(pivots, keys, n, purpose, k0, k1):
    """The pivot and the coin's key of every round, from the keys derived for (purpose, 0 and 1, round)."""
    for r in range(pivots.size):
        w = philox(purpose, uint32(0), uint32(0), uint32(r), k0, k1)
        pivots[r] = np.int64((uint64(w[0]) | uint64(w[1]) << uint64(32)) % uint64(n))
        w = philox(purpose, uint32(1), uint32(0), uint32(r), k0, k1)
        keys[r] = uint64(w[0]) | uint64(w[1]) << uint64(32)


@njit(nogil=True, cache=True)
def fill_scattered(start, stop, out, first, n, bits, mask, keys):
    """out[i] = pi(first + i) for the quick keyed bijection pi of {0 .. n-1}."""
    for i in range(start, stop):
        out[i] = permute_below(uint64(first + i), n, bits, mask, keys)
