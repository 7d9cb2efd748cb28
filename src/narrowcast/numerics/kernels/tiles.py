"""The rotation's passes over memory: g -> A^T g and x -> base + A x, a strip of 4096 parameters at a time.

`subspaces/rotation.py` says what the matrix is. Where its random bits stand, for parameter e = r V + j (row
r, lane j): B[e] is bit r % 32 of word (r // 32) V + j of the column stream, G[r] is bit r % 32 of word
r // 32 of the row stream. A strip of 64 rows needs 128 words of the one and two of the other, whatever n is.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from narrowcast.numerics.kernels.butterfly import LANES, ROWS, STRIP, eight, near8, transform
from narrowcast.numerics.kernels.memory import add_strip, fence, prefetch_row, stream_strip
from narrowcast.numerics.kernels.philox import SIGN, flip, permute_below, stream_block
from narrowcast.numerics.purposes import Purpose

WORDS = 2 * LANES  # column words of a strip
TOGETHER = 8  # vectors that are projected together
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
def row_mask(bits, r):
    return uint32((bits >> uint64(r)) & uint64(1)) << uint32(31)


@njit(inline="always")
def window(t, size, d, rho, tiles, bits, mask, keys):
    """Where the window of tile t starts: (rho + pi(t) size) mod d."""
    p = permute_below(uint64(t), tiles, bits, mask, keys)
    return np.int64((uint64(rho) + p * uint64(size)) % uint64(d))


@njit(inline="always")
def far8_signed(s, words):
    """Levels h = 8, 16, 32 and the signs B of a strip, in place."""
    for i in range(8):
        for j in range(LANES):
            p = i * LANES + j
            v = eight(
                s[p], s[p + 8 * LANES], s[p + 16 * LANES], s[p + 24 * LANES],
                s[p + 32 * LANES], s[p + 40 * LANES], s[p + 48 * LANES], s[p + 56 * LANES],
            )  # fmt: skip
            lo = words[j] << uint32(7 - i)  # the bit of row i + 24 is on top
            hi = words[LANES + j] << uint32(7 - i)
            s[p] = flip(v[0], (lo << uint32(24)) & SIGN)
            s[p + 8 * LANES] = flip(v[1], (lo << uint32(16)) & SIGN)
            s[p + 16 * LANES] = flip(v[2], (lo << uint32(8)) & SIGN)
            s[p + 24 * LANES] = flip(v[3], lo & SIGN)
            s[p + 32 * LANES] = flip(v[4], (hi << uint32(24)) & SIGN)
            s[p + 40 * LANES] = flip(v[5], (hi << uint32(16)) & SIGN)
            s[p + 48 * LANES] = flip(v[6], (hi << uint32(8)) & SIGN)
            s[p + 56 * LANES] = flip(v[7], hi & SIGN)


@njit(nogil=True, cache=True)
def expand_strips(start, stop, out, base, stream, xs, n, d, rhos, k0s, k1s, tiles, bits, mask, keys):
    """out = base + A_1 x_1 + ... + A_K x_K, added in this order, on strips start .. stop; out may be base.

    A base of one strip serves for all of them. xs has x_k / sqrt(n) followed by its own first n V entries, so
    that no window wraps, for every k; rhos, k0s, k1s and keys have a row for each.
    """
    s = np.empty(STRIP, np.float32)
    held = np.empty(STRIP, np.float32)
    words = np.empty(WORDS, np.uint32)
    last = rhos.size - 1
    for t in range(start, stop):
        o = t * STRIP
        b = o if base.size > STRIP else 0
        for k in range(last + 1):
            column_words(t, words, k0s[k], k1s[k])
            rows = row_bits(t, k0s[k], k1s[k])
            for m in range(ROWS // n):
                w = window(t * (ROWS // n) + m, n * LANES, d, rhos[k], tiles, bits, mask, keys[k])
                w += k * (d + n * LANES)
                for i in range(n):
                    g = row_mask(rows, m * n + i)
                    x = xs[w + i * LANES : w + (i + 1) * LANES]
                    q = (m * n + i) * LANES
                    for j in range(LANES):
                        s[q + j] = flip(x[j], g)
            if n == ROWS:
                near8(s)
                far8_signed(s, words)
            else:
                transform(s, n)
                for r in range(ROWS):
                    for j in range(LANES):
                        p = r * LANES + j
                        s[p] = flip(s[p], (words[(r // 32) * LANES + j] << uint32(31 - r % 32)) & SIGN)
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


@njit(inline="always")
def signed_far8(s, y, words):
    """The signs B of a strip y and the levels h = 8, 16, 32, into s."""
    for i in range(8):
        for j in range(LANES):
            p = i * LANES + j
            lo = words[j] << uint32(7 - i)
            hi = words[LANES + j] << uint32(7 - i)
            v = eight(
                flip(y[p], (lo << uint32(24)) & SIGN),
                flip(y[p + 8 * LANES], (lo << uint32(16)) & SIGN),
                flip(y[p + 16 * LANES], (lo << uint32(8)) & SIGN),
                flip(y[p + 24 * LANES], lo & SIGN),
                flip(y[p + 32 * LANES], (hi << uint32(24)) & SIGN),
                flip(y[p + 40 * LANES], (hi << uint32(16)) & SIGN),
                flip(y[p + 48 * LANES], (hi << uint32(8)) & SIGN),
                flip(y[p + 56 * LANES], hi & SIGN),
            )
            s[p] = v[0]
            s[p + 8 * LANES] = v[1]
            s[p + 16 * LANES] = v[2]
            s[p + 24 * LANES] = v[3]
            s[p + 32 * LANES] = v[4]
            s[p + 40 * LANES] = v[5]
            s[p + 48 * LANES] = v[6]
            s[p + 56 * LANES] = v[7]


@njit(nogil=True, cache=True)
def project_shards(start, stop, acc, gs, strips, n, d, rho, k0, k1, tiles, bits, mask, keys):
    """acc[s, w] += sqrt(n) A^T gs[w] over the strips of shard s, for shards start .. stop and all rows w.

    The signs and windows of AHEAD strips are made once for all rows; what is added to acc[s, w], and in which
    order, does not depend on the other rows. acc has d + n V columns: the last n V are the wrapped ends of
    windows, to be folded onto the first.
    """
    s = np.empty(STRIP, np.float32)
    words = np.empty(WORDS, np.uint32)
    signs = np.empty((AHEAD, WORDS), np.uint32)
    places = np.empty((AHEAD, ROWS), np.int64)
    rows = np.empty(AHEAD, np.uint64)
    shards = acc.shape[0]
    for shard in range(start, stop):
        last = strips * (shard + 1) // shards
        for first in range(strips * shard // shards, last, AHEAD):
            count = min(AHEAD, last - first)
            for t in range(count):
                column_words(first + t, words, k0, k1)
                signs[t] = words
                rows[t] = row_bits(first + t, k0, k1)
                for m in range(ROWS // n):
                    tile = (first + t) * (ROWS // n) + m
                    places[t, m] = window(tile, n * LANES, d, rho, tiles, bits, mask, keys)
            for w in range(len(gs)):
                a = acc[shard, w]
                for t in range(count):
                    y = gs[w, (first + t) * STRIP : (first + t + 1) * STRIP]
                    for j in range(WORDS):  # in memory of their own, so that the loops below are vectors
                        words[j] = signs[t, j]
                    if n == ROWS:
                        signed_far8(s, y, words)
                        near8(s)
                    else:
                        for r in range(ROWS):
                            for j in range(LANES):
                                p = r * LANES + j
                                sign = (words[(r // 32) * LANES + j] << uint32(31 - r % 32)) & SIGN
                                s[p] = flip(y[p], sign)
                        transform(s, n)
                    for m in range(ROWS // n):
                        for i in range(n):
                            mask_i = row_mask(rows[t], m * n + i)
                            x = a[places[t, m] + i * LANES : places[t, m] + (i + 1) * LANES]
                            q = (m * n + i) * LANES
                            prefetch_row(y, STRIP + q)  # of the next strip
                            for j in range(LANES):
                                x[j] += flip(s[q + j], mask_i)


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
