"""What a method's messages take before any is made: numbers and bytes, for a model of D parameters.

With few bits a number, bytes are those asked for: uploads come within five per cent of them, and downloads of
a client that comes once an epoch within fifteen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from narrowcast.methods.base import Method, RoundInfo
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.methods.uncompressed import Uncompressed
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import lattice
from narrowcast.wire.codes.lattice import PLAIN_BITS


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


def shape_of(made: Method[Any], D: int, stages: int, local_steps: int) -> Shape:
    """What a method sends for a model of D parameters; A is drawn so many times, where it varies."""
    whole = Size(D, _message([formats.by_name("f32").size(D)]))
    if not isinstance(made, Intrinsic):
        sent = (whole, whole) if type(made).compress is Uncompressed.compress else _tried(made, D)
        return Shape(sent[0], lambda m: sent[1], D, local_steps if made.local_steps > 1 else 1)
    d, K = made.dim, made.subspaces
    up = Size(d, _message([_data(made.uplink, made.up_bits, d)]))
    stage, base = _data(made.downlink, made.down_bits, K * d), formats.by_name("f32").size(D)
    now, dense = Size(K * d, _message([stage])), Size(D + K * d, _message([base, stage]))

    def down(m: int) -> Size:
        if base_is_smaller(D, m, stage):
            return dense
        return Size((m + 1) * K * d, wire.HEADER + wire.equal_blocks_size(m + 1, stage))

    varies = made.refresh != 0
    of = (lambda m: whole) if stage > base else down if varies else lambda m: now
    return Shape(up, of, min(D, d * K * (stages if varies else 1)), 1)


def _tried(made: Method[Any], D: int) -> tuple[Size, Size]:
    """(an upload, a newcomer's download after one step) of any method, as they are encoded for noise."""
    noise = torch.from_numpy(keyed.normals(0, keyed.Purpose.DATA, D))
    layout = Layout(("theta",), ((D,),))
    server = made.server(noise, layout)
    model = made.newcomer(noise, layout)
    v = noise if made.probes is None else noise[:1]
    up = made.compress(None, v, model, 0)[1]
    server = made.step(server, made.add(made.zero(server), up, 1.0), RoundInfo(0, 0, False, 1e-3))
    sizes = [_message([len(block.data) for block in p.blocks]) for p in (up, made.download(server, None))]
    return Size(sizes[0] // 4, sizes[0]), Size(sizes[1] // 4, sizes[1])


def base_is_smaller(D: int, lag: int, sigma: int) -> bool:
    """Whether base and the current Sigma (of so many bytes) take less than the lag + 1 Sigmas of the log."""
    return wire.equal_blocks_size(lag + 1, sigma) > wire.blocks_size([4 * D, sigma])


def _data(format: str, bits: float, count: int) -> int:
    """Bytes of so many numbers."""
    return formats.by_name(format).size(count) if bits == PLAIN_BITS else lattice.expected_size(count, bits)


def _message(data: list[int]) -> int:
    """Bytes of a message whose blocks have data of these sizes."""
    return wire.HEADER + wire.blocks_size(data)
