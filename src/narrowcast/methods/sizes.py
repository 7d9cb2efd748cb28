"""What a method's messages take before any is made: numbers and bytes, for a model of D parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from narrowcast.methods.base import Method
from narrowcast.methods.intrinsic import Intrinsic, base_is_smaller
from narrowcast.wire import formats
from narrowcast.wire import messages as wire


class Size(NamedTuple):
    """A message: the numbers in it, and its bytes with everything around them."""

    numbers: int
    bytes: int


class Shape(NamedTuple):
    """What a method sends: an upload, the download of a client that lacks m finished stages, how often."""

    up: Size
    down: Callable[[int], Size]
    dimensions: int
    fewer: int  # visits than those of the uncompressed run, by this factor


def shape_of(made: Method[Any], D: int, epochs: int, local_steps: int) -> Shape:
    """What a method sends for a model of D parameters."""
    whole = Size(D, _message([formats.by_name("f32").size(D)]))
    if not isinstance(made, Intrinsic):
        return Shape(whole, lambda m: whole, D, local_steps if made.local_steps > 1 else 1)
    d, K = made.dim, made.subspaces
    up = Size(d, _message([formats.by_name(made.uplink).size(d)]))
    stage, base = formats.by_name(made.downlink).size(K * d), formats.by_name("f32").size(D)
    now, dense = Size(K * d, _message([stage])), Size(D + K * d, _message([base, stage]))

    def down(m: int) -> Size:
        if base_is_smaller(D, m, stage):
            return dense
        return Size((m + 1) * K * d, wire.HEADER + wire.equal_blocks_size(m + 1, stage))

    varies = made.refresh != 0
    return Shape(up, down if varies else lambda m: now, min(D, d * K * (epochs if varies else 1)), 1)


def _message(data: list[int]) -> int:
    """Bytes of a message whose blocks have data of these sizes."""
    return wire.HEADER + wire.blocks_size(data)
