"""Streams of bits as bytes: what the codes of variable length share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels import bitstream
from narrowcast.wire.formats import FormatError

Words = NDArray[np.uint64]


def blank(bits: int) -> Words:
    """Words to write so many bits into."""
    return np.zeros(bits // 64 + 1, np.uint64)


def to_bytes(words: Words, bits: int) -> bytes:
    """The first `bits` bits, in whole bytes."""
    return words[: bits // 64 + 1].astype("<u8", copy=False).tobytes()[: (bits + 7) // 8]


def to_words(data: bytes) -> Words:
    """The words of a stream, with zeros to spare."""
    padded = data + bytes(8 * bitstream.SPARE + -len(data) % 8)
    return np.frombuffer(padded, "<u8").astype(np.uint64, copy=False)


def check_end(data: bytes, bits: int) -> None:
    """A stream of so many bits (-1: it broke) ends in the last byte, and the rest of that is zero."""
    if bits < 0:
        raise FormatError("a stream of bits breaks off, or has a number out of range")
    if len(data) != (bits + 7) // 8:
        raise FormatError(f"a stream of {bits} bits has {len(data)} bytes")
    if bits % 8 and data[-1] >> bits % 8:
        raise FormatError("the bits after the end of a stream are not zero")
