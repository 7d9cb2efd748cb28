"""Messages: what a byte on the link is. Of fixed widths, counted as encoded, decoded as hostile.

A message is a header of 32 bytes, little-endian, and blocks: of 3 bytes (5 from 64 kB on) and data each.

    format 1 | kind 1 | blocks 3 | run 4 | round 4 | version 4 | weight 3 | stage 4 | check 8
    a block: its format 1 | length 2 | data     or, from 2^16 bytes on:  format + 128 1 | length 4 | data

`run` is the first half of the run's eight bytes: enough to name another run by. `check` is eight bytes over
the rest of the header and what both sides know without being told: the whole of the run's name, the digest of
theta and the route. Two that differ in any of it agree with a chance of 2^-64: then an update on another
theta, or by another route, would be added as if it were right, which the bound on numbers still limits.
Decoding checks every field, and whatever is wrong is a `WireError`.
"""

from __future__ import annotations

import math
import struct
from typing import Annotated

import msgspec
import numpy as np
import torch
import xxhash
from msgspec import Meta
from torch import Tensor

from narrowcast.errors import ConfigError
from narrowcast.numerics.flat import all_finite
from narrowcast.wire.digests import digest as digest
from narrowcast.wire.formats import FormatError, by_name
from narrowcast.wire.table import FORMATS, name_of, number_of

FORMAT_VERSION = 2
RAW = 127  # the format of a block that holds a code of its own (indices, signs), see `codes`
DITHERED, POINTS = 126, 125  # of integers on a lattice, see `codes.lattice`
MAX_BLOCKS = 1 << 18  # an empty block is 3 bytes on the link and 56 in memory: this bounds the difference
MAX_DATA = (1 << 32) - 1  # bytes of a block: its length is said in four
MAX_WEIGHT = (1 << 24) - 1  # that a message can claim
Small = Annotated[int, Meta(ge=0, le=127)]
Bytes8 = Annotated[bytes, Meta(min_length=8, max_length=8)]
_HEAD = struct.Struct("<BB3s4sII3sI8s")
_BODY = struct.Struct("<BI3s")  # a payload by itself: kind, stage, blocks
_SHORT, _LONG, _LONG_BIT = struct.Struct("<BH"), struct.Struct("<BI"), 128
HEADER = _HEAD.size


class WireError(ValueError):
    """A message that must not be used: malformed, foreign, stale, or not finite.

    >>> import narrowcast as nc
    >>> from narrowcast.wire import decode
    >>> try:
    ...     decode(b"whatever came over the link")
    ... except nc.WireError as why:
    ...     print(why)
    not a narrowcast message: 27 bytes are no header
    """


class Block(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
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
        name = name_of(self.format)
        if name is None:
            ours = f"this version knows 0 to {len(FORMATS.own) - 1}"
            raise WireError(f"unknown number format {self.format}: {', '.join((ours, *FORMATS.loaded))}")
        codec = by_name(name)
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


class Payload(msgspec.Struct, frozen=True):
    """What a method sends: its own `kind` of message, the stage of its subspace, blocks of numbers.

    Not on the link are what both sides know of an upload: the client's key of the round, and its route.
    """

    kind: int  # below 128
    stage: int  # below 2^32
    blocks: list[Block]
    route: int = 0  # below 2^32
    key: int = 0


class Message(msgspec.Struct, frozen=True):
    """A payload in its envelope. `weight` is a client's claim; `check` see above."""

    run: bytes  # 4 bytes
    round: int
    version: int
    weight: int
    check: bytes  # 8 bytes
    payload: Payload


def sealed(run: bytes, round: int, version: int, weight: int, digest: bytes, payload: Payload) -> Message:
    """A message of the run of these eight bytes, from a theta of this digest."""
    message = Message(run[:4], round, version, min(weight, MAX_WEIGHT), bytes(8), payload)
    return msgspec.structs.replace(message, check=check(message, run, digest, payload.route))


def check(message: Message, run: bytes, digest: bytes, route: int) -> bytes:
    """What the `check` of this message must be, if it is of this run, theta and route."""
    head = _head(message)[: -len(message.check)]
    return xxhash.xxh3_64_digest(head + run + digest + route.to_bytes(4, "little"))


def block(values: Tensor, format: str = "f32", key: int = 0) -> Block:
    """Encode a tensor of finite float32 numbers; `key` decides how lossy formats round."""
    codec = by_name(format)
    return Block(number_of(format), codec.pack(values.detach().contiguous().cpu().numpy().reshape(-1), key))


def raw(data: bytes) -> Block:
    """A block of bytes that a code of its own has written."""
    return Block(RAW, data)


def blocks_size(data: list[int]) -> int:
    """Bytes of blocks whose data have these sizes."""
    return sum(map(_block_size, data))


def equal_blocks_size(count: int, data: int) -> int:
    """blocks_size([data] * count), without the list."""
    return count * _block_size(data)


def fits(data: int) -> bool:
    """Whether a block can have so many bytes."""
    return data <= MAX_DATA


def whole_size(D: int) -> float:
    """Bytes of a block with all D numbers of a model, as f32; inf: no block can have them."""
    return _block_size(4 * D) if fits(4 * D) else math.inf


def _block_size(data: int) -> int:
    return data + (_SHORT.size if data < 1 << 16 else _LONG.size)


def payload(blocks: list[Block], *, kind: int = 0, stage: int = 0, route: int = 0, key: int = 0) -> Payload:
    return Payload(kind, stage, blocks, route, key)


def encode(message: Message) -> bytes:
    return b"".join([_head(message), *_parts(message.payload.blocks)])


def decode(data: bytes, limit: int = 1 << 34) -> Message:
    """The message in `data`, every field checked. Takes as much memory again, and at most 64 MB."""
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}")
    if len(data) < HEADER:
        raise WireError(f"not a narrowcast message: {len(data)} bytes are no header")
    format, kind, count, run, round, version, weight, stage, check = _HEAD.unpack_from(data)
    if format != FORMAT_VERSION:
        raise WireError(f"message format {format}, this version speaks {FORMAT_VERSION}")
    found = Payload(_small(kind), stage, _blocks(data, HEADER, count))
    return Message(run, round, version, int.from_bytes(weight, "little"), check, found)


def kind_of(data: bytes) -> int:
    """The kind of a message of our own, without reading the rest of it."""
    return data[1]


def encode_payload(payload: Payload) -> bytes:
    """A payload without an envelope: as a model file has it."""
    head = _BODY.pack(payload.kind, payload.stage, len(payload.blocks).to_bytes(3, "little"))
    return b"".join([head, *_parts(payload.blocks)])


def decode_payload(data: bytes) -> Payload:
    if len(data) < _BODY.size:
        raise WireError(f"not a narrowcast payload: {len(data)} bytes are no header")
    kind, stage, count = _BODY.unpack_from(data)
    return Payload(_small(kind), stage, _blocks(data, _BODY.size, count))


def _head(message: Message) -> bytes:
    p = message.payload
    count, weight = len(p.blocks).to_bytes(3, "little"), message.weight.to_bytes(3, "little")
    return _HEAD.pack(
        FORMAT_VERSION,
        p.kind,
        count,
        message.run,
        message.round,
        message.version,
        weight,
        p.stage,
        message.check,
    )


def _parts(blocks: list[Block]) -> list[bytes]:
    parts = []
    for b in blocks:
        size = len(b.data)
        if not fits(size):
            raise ConfigError(
                f"a block of {size} bytes cannot be sent: a message's have at most {MAX_DATA} (4 GiB): train "
                "fewer parameters, or choose a method that sends less"
            )
        parts += [
            _SHORT.pack(b.format, size) if size < 1 << 16 else _LONG.pack(b.format | _LONG_BIT, size),
            b.data,
        ]
    return parts


def _small(kind: int) -> int:
    if kind > 127:
        raise WireError(f"not a narrowcast message: there is no kind {kind}")
    return kind


def _blocks(data: bytes, at: int, count: bytes) -> list[Block]:
    """The blocks from `at` to the end: so many, of lengths that are there, each in its shorter form."""
    blocks: list[Block] = []
    number = int.from_bytes(count, "little")
    if number > MAX_BLOCKS:
        raise WireError(f"not a narrowcast message: {number} blocks, at most {MAX_BLOCKS}")
    for _ in range(number):
        head = _LONG if at < len(data) and data[at] & _LONG_BIT else _SHORT
        if at + head.size > len(data):
            raise WireError("not a narrowcast message: it breaks off before a block")
        format, size = head.unpack_from(data, at)
        at += head.size
        if at + size > len(data) or (head is _LONG and size < 1 << 16):
            raise WireError(f"not a narrowcast message: a block of {size} bytes cannot be here")
        blocks.append(Block(format & ~_LONG_BIT, data[at : at + size]))
        at += size
    if at != len(data):
        raise WireError(f"not a narrowcast message: {len(data) - at} bytes after the last block")
    return blocks
