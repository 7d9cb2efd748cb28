"""Messages: what a byte on the link is. Encoded with msgspec, counted as encoded, decoded as hostile.

A message is a header (run, round, version, digest, ...) and a payload: blocks of numbers. Everything in a
header has a fixed width, so messages of equal shapes have equal sizes: at most 64 bytes a message and 8 a
block beside the numbers themselves. Decoding checks every field, and whatever is wrong is a `WireError`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import torch
import xxhash
from msgspec import Meta
from torch import Tensor

from narrowcast.numerics.flat import all_finite
from narrowcast.wire.formats import FormatError, by_name
from narrowcast.wire.table import FORMATS

FORMAT_VERSION = 1
_NAMES = list(FORMATS)  # by their number on the wire
RAW = 127  # the format of a block that holds a code of its own (indices, signs), see `codes`
DITHERED, POINTS = 126, 125  # of integers on a lattice, see `codes.lattice`
MAX_BLOCKS = 1 << 20  # an empty block is 4 bytes on the link and 56 in memory: this bounds the difference
Small = Annotated[int, Meta(ge=0, le=127)]  # one byte in msgpack
Bytes4 = Annotated[bytes, Meta(min_length=4, max_length=4)]
Bytes8 = Annotated[bytes, Meta(min_length=8, max_length=8)]


class WireError(ValueError):
    """A message that must not be used: malformed, foreign, stale, or not finite."""


class Block(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Numbers in one of the FORMATS. How many there must be is the receiver's knowledge, not the sender's."""

    format: Small
    data: bytes

    def raw(self) -> bytes:
        """The bytes of a block that is no list of numbers."""
        if self.format != RAW:
            raise WireError(f"expected a coded block (format {RAW}), got one of format {self.format}")
        return self.data

    def numbers(self, count: int) -> Tensor:
        """The `count` numbers of this block, float32; anything but `count` finite numbers is refused."""
        if self.format >= len(_NAMES):
            raise WireError(f"unknown number format {self.format}: this version knows 0 to {len(_NAMES) - 1}")
        codec = by_name(_NAMES[self.format])
        if len(self.data) != codec.size(count):
            raise WireError(
                f"expected {count} numbers as {codec.name} ({codec.size(count)} bytes), got {len(self.data)}"
            )
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what a hostile scale does is refused below
                values = codec.unpack(self.data, count)
        except FormatError as error:
            raise WireError(str(error)) from None
        numbers = torch.from_numpy(values)
        if not all_finite(numbers):
            raise WireError("a block has a NaN or an infinity")
        return numbers


class Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a method sends: its own `kind` of message, the stage of its subspace, the route k, numbers."""

    kind: Small
    stage: Bytes4
    route: Bytes4
    blocks: Annotated[list[Block], Meta(max_length=MAX_BLOCKS)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload in its envelope. `digest` is that of the sender's theta, `weight` a client's examples."""

    format: Small
    run: Bytes8
    round: Bytes4
    version: Bytes4
    weight: Bytes4
    digest: Bytes8
    payload: Payload


def u32(number: int) -> bytes:
    """A number below 2^32 in its fixed width."""
    return number.to_bytes(4, "little")


def number(field: bytes) -> int:
    return int.from_bytes(field, "little")


def block(values: Tensor, format: str = "f32", key: int = 0) -> Block:
    """Encode a tensor of finite float32 numbers; `key` decides how lossy formats round."""
    codec = by_name(format)
    return Block(_NAMES.index(format), codec.pack(values.detach().contiguous().numpy().reshape(-1), key))


def raw(data: bytes) -> Block:
    """A block of bytes that a code of its own has written."""
    return Block(RAW, data)


def blocks_size(data: list[int]) -> int:
    """Bytes of a list of blocks whose data have these sizes, as msgpack writes it."""
    return _list_head(len(data)) + sum(map(_block_size, data))


def equal_blocks_size(count: int, data: int) -> int:
    """blocks_size([data] * count), without the list."""
    return _list_head(count) + count * _block_size(data)


def _list_head(count: int) -> int:
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _block_size(data: int) -> int:
    return data + (4 if data < 1 << 8 else 5 if data < 1 << 16 else 7)


def payload(blocks: list[Block], *, kind: int = 0, stage: int = 0, route: int = 0) -> Payload:
    return Payload(kind, u32(stage), u32(route), blocks)


_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, limit: int = 1 << 34) -> Message:
    """The message in `data`, checked against the schema. Takes as much memory again, and at most 64 MB."""
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}")
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"not a narrowcast message: {error}") from None
    if message.format != FORMAT_VERSION:
        raise WireError(f"message format {message.format}, this version speaks {FORMAT_VERSION}")
    return message


def digest(theta: Tensor) -> bytes:
    """Eight bytes that two equal vectors share: XXH3 over the float32 bits."""
    return xxhash.xxh3_64_digest(theta.detach().contiguous().numpy().data.cast("B"))
