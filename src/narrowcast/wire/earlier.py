"""What the first version of the format wrote: for its model files, and the identity of runs begun with it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import xxhash
from msgspec import Meta
from torch import Tensor

from narrowcast.wire.messages import MAX_BLOCKS, Block, Payload, Small

Bytes4 = Annotated[bytes, Meta(min_length=4, max_length=4)]


class Payload1(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload as msgpack."""

    kind: Small
    stage: Bytes4
    route: Bytes4
    blocks: Annotated[list[Block], Meta(max_length=MAX_BLOCKS)]

    def now(self) -> Payload:
        """As it is today."""
        stage, route = (int.from_bytes(field, "little") for field in (self.stage, self.route))
        return Payload(self.kind, stage, self.blocks, route)


def digest1(theta: Tensor) -> bytes:
    """Eight bytes that two equal vectors share: XXH3 over the float32 bits."""
    return xxhash.xxh3_64_digest(theta.detach().contiguous().cpu().numpy().data.cast("B"))
