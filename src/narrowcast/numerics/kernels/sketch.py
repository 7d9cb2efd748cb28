"""The count sketch's passes over memory, in chunks of 256 coordinates.

Where its random bits stand, for row i and coordinate e = 256 t + 64 w + b: word w of block 64 t + b of stream
i. The lowest bit of the word is the sign, the 31 others choose the column.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from narrowcast.numerics.kernels.philox import flip, stream_block

BLOCKS = 64  # of Philox in a chunk
CHUNK = 4 * BLOCKS  # coordinates: a word each


@njit(inline="always")
def places(t, row, columns, column, sign, k0, k1):
    """The column and the sign (a mask) of a row in each coordinate of chunk t."""
    for b in range(BLOCKS):
        w = stream_block(uint64(t * BLOCKS + b), uint32(row), k0, k1)
        sign[b], sign[b + BLOCKS], sign[b + 2 * BLOCKS], sign[b + 3 * BLOCKS] = w[0], w[1], w[2], w[3]
    for e in range(CHUNK):
        column[e] = uint32((uint64(sign[e] >> uint32(1)) * uint64(columns)) >> uint64(31))
        sign[e] = sign[e] << uint32(31)


@njit(nogil=True, cache=True)
def sketch_rows(start, stop, table, v, k0, k1):
    """table[i, column(i, e)] += sign(i, e) v[e] over rising e, for rows start .. stop."""
    column, sign = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    for i in range(start, stop):
        row = table[i]
        for t in range((v.size + CHUNK - 1) // CHUNK):
            places(t, i, row.size, column, sign, k0, k1)
            x = v[t * CHUNK : (t + 1) * CHUNK]
            for e in range(x.size):
                row[column[e]] += flip(x[e], sign[e])


@njit(inline="always")
def order(seen):
    """Sort every column of seen (rows, CHUNK), lane by lane: neighbours are exchanged in `rows` passes."""
    rows = seen.shape[0]
    for step in range(rows):
        for i in range(step % 2, rows - 1, 2):
            a, b = seen[i], seen[i + 1]
            for e in range(CHUNK):
                low, high = min(a[e], b[e]), max(a[e], b[e])
                a[e] = low
                b[e] = high


@njit(nogil=True, cache=True)
def estimate_chunks(start, stop, out, table, k0, k1):
    """out[e] = the median over rows i of sign(i, e) table[i, column(i, e)], for chunks start .. stop."""
    rows, columns = table.shape
    column, sign = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    seen = np.empty((rows, CHUNK), np.float32)
    half = np.float32(0.5)
    for t in range(start, stop):
        for i in range(rows):
            places(t, i, columns, column, sign, k0, k1)
            for e in range(CHUNK):
                seen[i, e] = flip(table[i, column[e]], sign[e])
        order(seen)
        y = out[t * CHUNK : (t + 1) * CHUNK]
        for e in range(y.size):
            y[e] = seen[(rows - 1) // 2, e] * half + seen[rows // 2, e] * half
