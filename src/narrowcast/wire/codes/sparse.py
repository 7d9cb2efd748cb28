"""A sparse vector in two blocks: where (a code of positions) and what (numbers in a format)."""

from __future__ import annotations

import torch
from torch import Tensor

from narrowcast.numerics.keyed import Key
from narrowcast.numerics.largest import largest
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import indices
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import Block, WireError


def positions(where: Tensor, D: int) -> Block:
    """The block of rising positions below D; one of numbers follows."""
    return wire.raw(indices.pack(where.numpy(), D))


def pack_largest(x: Tensor, k: int, format: str, key: Key) -> tuple[list[Block], Tensor, Tensor]:
    """(the blocks of the k largest of x, their positions, the numbers as they will be read)."""
    where = largest(x, k)
    values = wire.block(x[where], format, key)
    return [positions(where, x.numel()), values], where, values.numbers(k)


def read(where: Block, values: Block, D: int, count: int | None = None) -> tuple[Tensor, Tensor]:
    """(where, values); `count`: how many there must be, if that is known."""
    try:
        places = torch.from_numpy(indices.unpack(where.raw(), D))
    except FormatError as error:
        raise WireError(str(error)) from None
    if count is not None and len(places) != count:
        raise WireError(f"expected {count} positions, got {len(places)}")
    return places, values.numbers(len(places))
