"""Small integers, most of them zero: runs of zeros and sizes as Elias codes, signs as bits (QSGD's code).

Every integer that is not zero is gamma(zeros before it + 1), a sign, gamma(its size); zeros at the end are
one more run. QSGD proposes Elias' recursive code, which is shorter than gamma only from 128 on; runs and
sizes are nearly always below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels import bitstream
from narrowcast.wire.codes import bits

MOST = 127  # the largest size
Levels = NDArray[np.int8]


def pack(levels: Levels) -> bytes:
    """The integers, of sizes up to 127."""
    words = bits.blank(15 * len(levels) + 1)  # at worst; memory that is not written to costs nothing
    return bits.to_bytes(words, bitstream.write_levels(words, levels))


def unpack(data: bytes, count: int, most: int) -> Levels:
    """`count` integers in -most .. most."""
    levels: Levels = np.zeros(count, np.int8)
    bits.check_end(data, bitstream.read_levels(bits.to_words(data), 8 * len(data), most, levels))
    return levels
