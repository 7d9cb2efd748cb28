"""What the strips leave over: the last tiles, the power-of-two remainder, and every tile when d < 64.

Plain loops over single blocks, with runtime sizes. The arithmetic is that of `tiles.py`, element by element.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32

from narrowcast.numerics.kernels.philox import SIGN, flip, stream_block
from narrowcast.numerics.kernels.strip import ROWS, STRIP
from narrowcast.numerics.kernels.tiles import COLUMN, ROW, window


@njit(inline="always")
def place(b, D, d, n, V, rho, tiles, bits, mask, keys):
    """(first parameter, rows, lanes, window start) of block b: a tile, or beyond them a remainder block."""
    size = n * V
    if b < tiles:
        return b * size, n, V, window(b, size, d, rho, tiles, bits, mask, keys)
    offset = tiles * size
    rest = D - offset
    skip = b - tiles
    while True:  # the binary expansion of what is left, largest block first
        block = 1
        while 2 * block <= rest:
            block *= 2
        if skip == 0:
            lanes = min(V, block)
            return offset, block // lanes, lanes, (rho + offset) % d
        offset += block
        rest -= block
        skip -= 1


@njit(inline="always")
def column_sign(e, V, cache, k0, k1):
    """The sign bit B[e]; cache holds the last Philox block and its number."""
    r = e // V
    word = (r // 32) * V + e % V
    if cache[4] != word // 4:
        w = stream_block(word // 4, COLUMN, k0, k1)
        for c in range(4):
            cache[c] = np.int64(w[c])
        cache[4] = word // 4
    return (uint32(cache[word % 4]) << uint32(31 - r % 32)) & SIGN


@njit(inline="always")
def row_sign(r, k0, k1):
    w = stream_block(r // 128, ROW, k0, k1)
    return (w[(r // 32) % 4] << uint32(31 - r % 32)) & SIGN


@njit(inline="always")
def block_transform(s, rows, lanes):
    h = 1
    while h < rows:
        for i in range(0, rows, 2 * h):
            x, y = s[i * lanes : (i + h) * lanes], s[(i + h) * lanes : (i + 2 * h) * lanes]
            for q in range(x.size):
                x[q], y[q] = x[q] + y[q], x[q] - y[q]
        h *= 2


@njit(nogil=True, cache=True)
def expand_blocks(start, stop, first, out, base, x, scales, D, n, V, rho, k0, k1, tiles, bits, mask, keys):
    """out = base + A x on blocks first + start .. first + stop; scales[k] is 1 / sqrt(2^k)."""
    s = np.empty(STRIP, np.float32)
    cache = np.full(5, -1, np.int64)
    d = x.size
    for b in range(first + start, first + stop):
        o, rows, lanes, w = place(b, D, d, n, V, rho, tiles, bits, mask, keys)
        level = 0
        while (1 << level) < rows:
            level += 1
        for i in range(rows):
            g = row_sign(o // V + i, k0, k1)
            for q in range(i * lanes, (i + 1) * lanes):
                s[q] = flip(x[(w + q) % d] * scales[level], g)
        block_transform(s, rows, lanes)
        for q in range(rows * lanes):
            y = flip(s[q], column_sign(o + q, V, cache, k0, k1))
            out[o + q] = (base[o + q] if base.size else np.float32(0.0)) + y


@njit(nogil=True, cache=True)
def project_blocks(start, stop, first, count, acc, gs, scales, D, n, V, rho, k0, k1, tiles, bits, mask, keys):
    """acc[s, w] += A^T gs[w] over the blocks of shard s, of `count` from `first` on, for all rows w."""
    buffer = np.empty(STRIP, np.float32)
    signs = np.empty(STRIP, np.uint32)
    row_signs = np.empty(ROWS, np.uint32)
    cache = np.full(5, -1, np.int64)
    shards, _, d = acc.shape
    for shard in range(start, stop):
        for b in range(first + count * shard // shards, first + count * (shard + 1) // shards):
            o, rows, lanes, w = place(b, D, d, n, V, rho, tiles, bits, mask, keys)
            level = 0
            while (1 << level) < rows:
                level += 1
            s = buffer[: rows * lanes]
            for q in range(s.size):
                signs[q] = column_sign(o + q, V, cache, k0, k1)
            for i in range(rows):
                row_signs[i] = row_sign(o // V + i, k0, k1)
            whole = min(s.size, d - w)  # the rest of the window is at the beginning
            for c in range(len(gs)):
                y = gs[c, o : o + s.size]
                for q in range(s.size):
                    s[q] = flip(y[q], signs[q])
                block_transform(s, rows, lanes)
                for i in range(rows):
                    x = s[i * lanes : (i + 1) * lanes]
                    for j in range(x.size):
                        x[j] = flip(x[j], row_signs[i]) * scales[level]
                there = acc[shard, c, w : w + whole]
                for q in range(whole):
                    there[q] += s[q]
                rest, there = s[whole:], acc[shard, c, : s.size - whole]
                for q in range(rest.size):
                    there[q] += rest[q]
