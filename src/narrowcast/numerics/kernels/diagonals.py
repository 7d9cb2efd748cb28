"""Fastfood's and dense A's random diagonals, made on the fly: signs, normals and a keyed permutation."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from narrowcast.numerics.kernels.flips import flip_block
from narrowcast.numerics.kernels.philox import SIGN, flip, permute, stream_block
from narrowcast.numerics.purposes import TABLE_BITS, Purpose

NORMALS = np.uint32(Purpose.NORMALS)
SHIFT = np.uint32(31 - TABLE_BITS)
INDEX = np.uint32((1 << TABLE_BITS) - 1)
BLOCKS = 64  # Philox blocks made at once


@njit(inline="always")
def normal(word, table):
    """A standard normal from 13 bits of a word: sign and quantile."""
    return flip(table[(word >> SHIFT) & INDEX], word & SIGN)


@njit(inline="always")
def normal_words(b, words, k0, k1):
    """The words of BLOCKS blocks from b on: a loop of its own, so that the compiler vectorises it."""
    for i in range(BLOCKS):
        w = stream_block(b + i, NORMALS, k0, k1)
        words[4 * i] = w[0]
        words[4 * i + 1] = w[1]
        words[4 * i + 2] = w[2]
        words[4 * i + 3] = w[3]


@njit(nogil=True, cache=True)
def scatter_normals(start, stop, z, y, table, k0, k1, bits, mask, keys):
    """z[q] = G[q] y[sigma(q) mod y.size] on blocks of four, sigma a keyed bijection of z's indices."""
    words = np.empty(4 * BLOCKS, np.uint32)
    last = uint64(y.size - 1)
    for b in range(start, stop, BLOCKS):
        normal_words(b, words, k0, k1)
        for q in range(4 * b, min(4 * (b + BLOCKS), 4 * stop, z.size)):
            m = np.int64(permute(uint64(q), bits, mask, keys) & last)
            z[q] = normal(words[q - 4 * b], table) * y[m]


@njit(nogil=True, cache=True)
def gather_normals(start, stop, acc, z, table, k0, k1, bits, mask, keys):
    """acc[s, sigma(q) mod size] += G[q] z[q] over shard s of z: the adjoint of `scatter_normals`."""
    words = np.empty(4 * BLOCKS, np.uint32)
    shards, size = acc.shape
    last = uint64(size - 1)
    blocks = (z.size + 3) // 4
    for shard in range(start, stop):
        end = blocks * (shard + 1) // shards
        for b in range(blocks * shard // shards, end, BLOCKS):
            normal_words(b, words, k0, k1)
            for q in range(4 * b, min(4 * (b + BLOCKS), 4 * end, z.size)):
                m = np.int64(permute(uint64(q), bits, mask, keys) & last)
                acc[shard, m] += normal(words[q - 4 * b], table) * z[q]


@njit(nogil=True, cache=True)
def add_signed(start, stop, out, base, z, k0, k1):
    """out = base + B z on blocks of 128; an empty base is zero."""
    signed = np.empty(128, np.float32)
    for b in range(start, stop):
        to, add = out[128 * b : 128 * b + 128], base[128 * b : 128 * b + 128]
        flip_block(signed, z[128 * b : 128 * b + to.size], b, k0, k1)
        for i in range(to.size):
            to[i] = (add[i] if add.size else np.float32(0.0)) + signed[i]


@njit(nogil=True, cache=True)
def put_signed(start, stop, z, g, k0, k1):
    """z = B g on blocks of 128, zero beyond the end of g."""
    for b in range(start, stop):
        to, part = z[128 * b : 128 * b + 128], g[128 * b : 128 * b + 128]
        flip_block(to, part, b, k0, k1)
        for i in range(part.size, to.size):
            to[i] = np.float32(0.0)


@njit(nogil=True, cache=True)
def dense_rows(start, stop, rows, first, d, scale, table, k0, k1):
    """rows[i, j] = A[first + i, j] of the Gaussian A: word (first + i) d + j of the stream of normals."""
    for i in range(start, stop):
        for j in range(d):
            e = uint64(first + i) * uint64(d) + uint64(j)
            w = stream_block(e // uint64(4), NORMALS, k0, k1)
            rows[i, j] = normal(w[np.int64(e % uint64(4))], table) * scale


@njit(nogil=True, cache=True)
def dot_rows(start, stop, out, base, rows, x):
    """out[i] = base[i] + <rows[i], x>, summed in float64 from left to right; an empty base is zero."""
    for i in range(start, stop):
        total = 0.0
        for j in range(x.size):
            total += np.float64(rows[i, j]) * np.float64(x[j])
        out[i] = (base[i] if base.size else np.float32(0.0)) + np.float32(total)
