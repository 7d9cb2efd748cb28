"""A set of positions below D whose size both sides know: gaps as Golomb codes, the shortest for such gaps.

k of D positions at random have gaps g (zeros between them) with P(g) = p (1 - p)^g, p = k / D. The best
Golomb code with a power of two for such gaps is the Rice code with b = max(0, 1 + floor(log2(log(phi - 1) /
log(1 - p)))), phi the golden ratio: the smallest b with (1 - p)^(2^b) < phi - 1. That costs about log2(D/k) +
1.5 bits a position.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from narrowcast.numerics.kernels import bitstream
from narrowcast.wire.codes import bits
from narrowcast.wire.codes.indices import Indices
from narrowcast.wire.formats import FormatError

ONE = 1 << 64
GOLDEN = 11400714819323198485  # (phi - 1) 2^64


@lru_cache(maxsize=256)
def rice(count: int, D: int) -> int:
    """b for `count` positions below D; in integers, for both sides must find the same."""
    power, b = ONE * (D - count) // D, 0  # (1 - p)^(2^b)
    while power >= GOLDEN and b < 62:
        power, b = power * power // ONE, b + 1
    return b


def pack(indices: Indices, D: int) -> bytes:
    """The positions, which must rise and lie below D."""
    if not len(indices):
        return b""
    if indices[0] < 0 or indices[-1] >= D or (np.diff(indices) < 1).any():
        raise FormatError(f"positions must rise and lie in 0 .. {D - 1}")
    b = rice(len(indices), D)
    gaps = np.diff(indices, prepend=-1) - 1
    words = bits.blank(int((gaps >> b).sum()) + len(gaps) * (b + 1))
    return bits.to_bytes(words, bitstream.write_gaps(words, gaps, b))


def unpack(data: bytes, D: int, count: int) -> Indices:
    """The `count` positions, rising, all below D."""
    found: Indices = np.empty(count, np.int64)
    if count:
        end = 8 * len(data)
        bits.check_end(data, bitstream.read_gaps(bits.to_words(data), end, rice(count, D), D, found))
    elif data:
        raise FormatError("no positions take no bytes")
    return found
