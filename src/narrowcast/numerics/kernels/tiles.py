"""The rotation's passes over memory: g -> A^T g and x -> base + A x, a strip of 4096 parameters at a time.

`subspaces/rotation.py` says what the matrix is. Where its random bits stand, for parameter e = r V + j (row
r, lane j): B[e] is bit r % 32 of word (r // 32) V + j of the column stream, G[r] is bit r % 32 of word
r // 32 of the row stream. A strip of 64 rows needs 128 words of the one and two of the other, whatever n is.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from narrowcast.numerics.kernels.butterfly import (
    column_in,
    column_in_row_added,
    column_out,
    row_added,
    row_in,
    row_in_column_out,
)
from narrowcast.numerics.kernels.memory import add_strip, address, fence, stream_strip
from narrowcast.numerics.kernels.philox import permute_below, stream_block
from narrowcast.numerics.kernels.strip import LANES, ROWS, STRIP
from narrowcast.numerics.purposes import Purpose

WORDS = 2 * LANES  # column words of a strip
TOGETHER = 8  # vectors that are projected together
ROW_BYTES = 4 * LANES
AHEAD = 16  # strips whose signs are made at once for them
COLUMN = np.uint32(Purpose.SIGNS_COLUMN)
ROW = np.uint32(Purpose.SIGNS_ROW)


@njit(inline="always")
def column_words(t, words, k0, k1):
    """The 128 column words of strip t."""
    for b in range(WORDS // 4):
        w = stream_block(t * (WORDS // 4) + b, COLUMN, k0, k1)
        words[4 * b] = w[0]
        words[4 * b + 1] = w[1]
        words[4 * b + 2] = w[2]
        words[4 * b + 3] = w[3]


@njit(inline="always")
def row_bits(t, k0, k1):
    """The 64 row bits of strip t: half a block of the row stream."""
    w = stream_block(t // 2, ROW, k0, k1)
    if t % 2:
        return uint64(w[2]) | uint64(w[3]) << uint64(32)
    return uint64(w[0]) | uint64(w[1]) << uint64(32)


@njit(inline="always")
def window(t, size, d, rho, tiles, bits, mask, keys):
    """Where the window of tile t starts: (rho + pi(t) size) mod d."""
    p = permute_below(uint64(t), tiles, bits, mask, keys)
    return np.int64((uint64(rho) + p * uint64(size)) % uint64(d))


@njit(inline="always")
def rotate_out(s, n, m, x, w, bits, words, next):
    """Tile m of the strip s = B H_n G x[w : w + 64 n]: eight rows at a time, then every eighth row. The
    strip at the address `next` is fetched meanwhile."""
    first = m * n
    if n <= 8:
        at = next + ROW_BYTES * first
        row_in_column_out(n, s, first * LANES, x, w, 1, first, bits, words, 0, at)
        return
    for i in range(0, n, 8):
        row_in(8, s, (first + i) * LANES, x, w + i * LANES, 1, first + i, bits, words, 0, 0)
    for r in range(first, first + 8):
        column_out(n // 8, s, r * LANES, s, r * LANES, 8, r, bits, words, 0, next + ROW_BYTES * r)


@njit(inline="always")
def rotate_in(a, w, n, m, y, o, s, bits, words, at):
    """a[w : w + 64 n] += G H_n B y of tile m of the strip y[o : o + 4096]; s is for what lies between.

    The levels run in the order 8, 16, 32, 1, 2, 4 for n = 64, else 1, 2, 4, ...: uploads have these bits.
    """
    first, next = m * n, y + 4 * (o + STRIP)
    if n <= 8:
        next += ROW_BYTES * first
        column_in_row_added(n, a, w, y, o + first * LANES, 1, first, bits, words, at, next)
    elif n == ROWS:
        for r in range(8):
            column_in(8, s, r * LANES, y, o + r * LANES, 8, r, bits, words, at, next + ROW_BYTES * r)
        for i in range(0, n, 8):
            row_added(8, a, w + i * LANES, s, i * LANES, 1, i, bits, words, at, 0)
    else:
        for r in range(first, first + n, 8):
            column_in(8, s, r * LANES, y, o + r * LANES, 1, r, bits, words, at, next + ROW_BYTES * r)
        for i in range(8):
            row_added(n // 8, a, w + i * LANES, s, (first + i) * LANES, 8, first + i, bits, words, at, 0)


@njit(nogil=True, cache=True)
def expand_strips(start, stop, out, base, stream, xs, n, d, rhos, k0s, k1s, tiles, bits, mask, keys):
    """out = base + A_1 x_1 + ... + A_K x_K, added in this order, on strips start .. stop; out may be base.

    A base of one strip serves for all of them. xs has x_k / sqrt(n) followed by its own first n V entries, so
    that no window wraps, for every k; rhos, k0s, k1s and keys have a row for each.
    """
    s = np.empty(STRIP, np.float32)
    held = np.empty(STRIP, np.float32)
    words = np.empty(WORDS, np.uint32)
    strip, x, signs, start_of_base = address(s), address(xs), address(words), address(base)
    last = rhos.size - 1
    for t in range(start, stop):
        o = t * STRIP
        b = o if base.size > STRIP else 0
        for k in range(last + 1):
            column_words(t, words, k0s[k], k1s[k])
            rows = row_bits(t, k0s[k], k1s[k])
            for m in range(ROWS // n):
                w = window(t * (ROWS // n) + m, n * LANES, d, rhos[k], tiles, bits, mask, keys[k])
                rotate_out(strip, n, m, x, w + k * (d + n * LANES), rows, signs, start_of_base + 4 * b)
            if k < last:
                if k == 0:
                    add_strip(held, 0, base, b, s)
                else:
                    add_strip(held, 0, held, 0, s)
            elif stream:
                if k == 0:
                    stream_strip(out, o, base, b, s)
                else:
                    stream_strip(out, o, held, 0, s)
            elif k == 0:
                add_strip(out, o, base, b, s)
            else:
                add_strip(out, o, held, 0, s)
    if stream:
        fence()


@njit(nogil=True, cache=True)
def project_shards(start, stop, acc, gs, strips, n, d, rho, k0, k1, tiles, bits, mask, keys):
    """acc[s, w] += sqrt(n) A^T gs[w] over the strips of shard s, for shards start .. stop and all rows w.

    The signs and windows of AHEAD strips are made once for all rows; what is added to acc[s, w], and in which
    order, does not depend on the other rows. acc has d + n V columns: the last n V are the wrapped ends of
    windows, to be folded onto the first.
    """
    s = np.empty(STRIP, np.float32)
    signs = np.empty(AHEAD * WORDS, np.uint32)
    places = np.empty((AHEAD, ROWS), np.int64)
    rows = np.empty(AHEAD, np.uint64)
    shards = acc.shape[0]
    for shard in range(start, stop):
        last = strips * (shard + 1) // shards
        for first in range(strips * shard // shards, last, AHEAD):
            count = min(AHEAD, last - first)
            for t in range(count):
                column_words(first + t, signs[t * WORDS : (t + 1) * WORDS], k0, k1)
                rows[t] = row_bits(first + t, k0, k1)
                for m in range(ROWS // n):
                    tile = (first + t) * (ROWS // n) + m
                    places[t, m] = window(tile, n * LANES, d, rho, tiles, bits, mask, keys)
            for w in range(len(gs)):
                a, y, strip, words = address(acc[shard, w]), address(gs[w]), address(s), address(signs)
                for t in range(count):
                    o = (first + t) * STRIP
                    for m in range(ROWS // n):
                        rotate_in(a, places[t, m], n, m, y, o, strip, rows[t], words, t * WORDS)


@njit(nogil=True, cache=True)
def add_shards(start, stop, out, acc, wrap, scale):
    """out[w] += scale * (sum of acc[:, w], its last `wrap` columns folded onto the first), by STRIP."""
    d = out.shape[1]
    parts = (d + STRIP - 1) // STRIP
    total = np.empty(STRIP, np.float32)
    for unit in range(start, stop):
        w, t = unit // parts, unit % parts
        first, last = t * STRIP, min((t + 1) * STRIP, d)
        s = total[: last - first]
        s[:] = 0.0
        for shard in range(acc.shape[0]):
            row = acc[shard, w, first:last]
            for j in range(s.size):
                s[j] += row[j]
            end = acc[shard, w, d + first : d + min(last, wrap)]
            for j in range(end.size):
                s[j] += end[j]
        y = out[w, first:last]
        for j in range(s.size):
            y[j] += s[j] * scale
