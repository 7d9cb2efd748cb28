"""A set of positions below D: gaps as varints, or a bitmap, whichever is smaller.

The first byte says which. Varints are little-endian groups of seven bits; a gap is the distance to the
position before it, less one, so that a set has one form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narrowcast.formats import FormatError
from narrowcast.kernels import varints

Indices = NDArray[np.int64]
GAPS, BITMAP = 0, 1


def pack(indices: Indices, D: int) -> bytes:
    """The positions, which must rise and lie below D."""
    if len(indices) and (indices[0] < 0 or indices[-1] >= D or (np.diff(indices) < 1).any()):
        raise FormatError(f"positions must rise and lie in 0 .. {D - 1}")
    gaps = np.diff(indices, prepend=-1) - 1
    size = len(gaps) + sum(int((gaps >> shift > 0).sum()) for shift in range(7, 63, 7))
    if size <= (D + 7) // 8:
        return bytes([GAPS]) + bytes(varints.write(gaps, size))
    marks = np.zeros(D, np.bool_)
    marks[indices] = True
    return bytes([BITMAP]) + np.packbits(marks, bitorder="little").tobytes()


def unpack(data: bytes, D: int) -> Indices:
    """The positions, rising, all below D."""
    if not data:
        raise FormatError("a list of positions has no bytes")
    body = np.frombuffer(data, np.uint8, offset=1)
    if data[0] == BITMAP and len(body) == (D + 7) // 8:
        found: Indices = np.flatnonzero(np.unpackbits(body, bitorder="little"))
        if len(found) and found[-1] >= D:
            raise FormatError(f"a bitmap has a position beyond {D - 1}")
    elif data[0] == GAPS and len(body) <= (D + 7) // 8:
        found = varints.read(body, D)
    else:
        raise FormatError(f"positions below {D} cannot be {len(body)} bytes of code {data[0]}")
    if pack(found, D) != data:
        raise FormatError("positions are not in their shortest form")
    return found
