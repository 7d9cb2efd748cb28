"""How the numbers of a block are written: f32, f16, int8, int4. Lossy ones carry their scales with them.

f16 keeps eleven bits of each number relative to the block's largest, and never overflows. int8 and int4
round stochastically, so they are unbiased: E[unpack(pack(x))] = x.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire.table import FORMATS, number_of

Floats = NDArray[np.float32]
GROUP = 256  # numbers that share a scale in int8 and int4


class FormatError(ValueError):
    """Numbers that a format cannot carry, or bytes that it did not write."""


class Format(Protocol):
    name: str
    exact: bool

    def size(self, count: int) -> int:
        """Bytes of `count` numbers."""

    def pack(self, x: Floats, key: Key) -> bytes: ...

    def unpack(self, data: bytes, count: int) -> Floats: ...


class Float32:
    name, exact = "f32", True

    def size(self, count: int) -> int:
        return 4 * count

    def pack(self, x: Floats, key: Key) -> bytes:
        return x.astype("<f4", copy=False).tobytes()

    def unpack(self, data: bytes, count: int) -> Floats:
        return np.frombuffer(data, "<f4").astype(np.float32)  # a copy: messages are read-only


class Float16:
    name, exact = "f16", False

    def size(self, count: int) -> int:
        return 4 + 2 * count

    def pack(self, x: Floats, key: Key) -> bytes:
        scale = _scales(x.reshape(1, -1))
        relative: Floats = x / scale[0]
        return scale.astype("<f4").tobytes() + relative.astype("<f2").tobytes()

    def unpack(self, data: bytes, count: int) -> Floats:
        scale = _positive(np.frombuffer(data, "<f4", 1))
        return np.frombuffer(data, "<f2", offset=4).astype(np.float32) * scale.astype(np.float32)


class Integer:
    """Signed integers of 8 or 4 bits, a float32 scale for every GROUP numbers, stochastic rounding."""

    exact = False

    def __init__(self, bits: int) -> None:
        self.name, self.bits, self.top = f"int{bits}", bits, (1 << (bits - 1)) - 1

    def size(self, count: int) -> int:
        return 4 * -(-count // GROUP) + (count * self.bits + 7) // 8

    def pack(self, x: Floats, key: Key) -> bytes:
        padded = np.zeros(-(-x.size // GROUP) * GROUP, np.float32)
        padded[: x.size] = x
        groups = padded.reshape(-1, GROUP)
        scale = _scales(groups)
        noise = keyed.uniforms(key, Purpose.ROUNDING, groups.size).reshape(groups.shape)
        q = np.floor(groups / scale[:, None] * np.float64(self.top) + noise).clip(-self.top, self.top)
        q = q.astype(np.int8).reshape(-1)[: x.size]
        if self.bits == 4:
            nibbles = np.zeros(q.size + q.size % 2, np.uint8)
            nibbles[: q.size] = q.view(np.uint8) & 15
            q = (nibbles[::2] | nibbles[1::2] << 4).view(np.int8)
        return scale.astype("<f4").tobytes() + q.tobytes()

    def unpack(self, data: bytes, count: int) -> Floats:
        groups = -(-count // GROUP)
        scale = _positive(np.frombuffer(data, "<f4", groups))
        q = np.frombuffer(data, np.int8, offset=4 * groups)
        if self.bits == 4:
            q = (np.stack([q << 4, q], axis=1).reshape(-1)[:count]) >> 4
        step = np.repeat(scale / np.float64(self.top), GROUP)[:count]
        return (q * step).astype(np.float32)


def _scales(groups: Floats) -> Floats:
    """The largest magnitude of every row, 1 where a row is zero."""
    largest = np.abs(groups).max(axis=1, initial=0.0)
    if not np.isfinite(largest).all():
        raise FormatError("cannot encode a NaN or an infinity")
    return np.where(largest > 0, largest, np.float32(1.0)).astype(np.float32)


def _positive(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise FormatError("a block's scale is not a positive number")
    return scale


F32, F16, INT8, INT4 = Float32(), Float16(), Integer(8), Integer(4)


def as_format(name: str, found: Any) -> Format:
    """A format that somebody else has brought: an object, or a class that takes no arguments."""
    made: Any = found() if isinstance(found, type) else found
    lacks = [part for part in ("name", "exact", "size", "pack", "unpack") if not hasattr(made, part)]
    if lacks:
        raise ValueError(f"the number format {name!r} lacks {', '.join(lacks)}: see narrowcast.wire.Format")
    for other in FORMATS.loaded:
        if other != name and number_of(other) == number_of(name):
            raise ValueError(f"the number formats {name!r} and {other!r} have the same number: rename one")
    checked: Format = made
    return checked


def by_name(name: str) -> Format:
    """The format of this name in the table."""
    return FORMATS.find(name)
