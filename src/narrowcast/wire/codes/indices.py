"""A set of positions below D: gaps as varints, or a bitmap, whichever is smaller.

The first byte says which. Varints are little-endian groups of seven bits; a gap is the distance to the
position before it, less one, so that a set has one form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels import varints
from narrowcast.wire.formats import FormatError

Indices = NDArray[np.int64]
GAPS, BITMAP = 0, 1


def pack(indices: Indices, D: int) -> bytes:
    """The positions, which must rise and lie below D."""
    bitmap = (D + 7) // 8
    fine, gaps = varints.write(indices, D, bitmap)
    if not fine:
        raise FormatError(f"positions must rise and lie in 0 .. {D - 1}")
    if len(gaps) <= bitmap:
        return bytes([GAPS]) + bytes(gaps)
    marks = np.zeros(D, np.bool_)
    marks[indices] = True
    return bytes([BITMAP]) + np.packbits(marks, bitorder="little").tobytes()


def unpack(data: bytes, D: int) -> Indices:
    """The positions, rising, all below D."""
    if not data:
        raise FormatError("a list of positions has no bytes")
    body, bitmap = np.frombuffer(data, np.uint8, offset=1), (D + 7) // 8
    if data[0] == GAPS and len(body) <= bitmap:
        fine, positions = varints.read(body, D)
    elif data[0] == BITMAP and len(body) == bitmap:
        positions = np.flatnonzero(np.unpackbits(body, bitorder="little"))
        short = not len(positions) or positions[-1] >= D or pack(positions, D)[0] == GAPS
        fine = not short
    else:
        raise FormatError(f"positions below {D} cannot be {len(body)} bytes of code {data[0]}")
    if not fine:
        raise FormatError(f"positions are not below {D}, or not in their shortest form")
    found: Indices = positions
    return found
