"""How a client's numbers go up: in a format, or in few bits each, dithered on a lattice."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from narrowcast.numerics.keyed import Key
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import lattice
from narrowcast.wire.codes.lattice import PLAIN_BITS
from narrowcast.wire.messages import Block

FAITHFUL = 3  # bits a number from which dithered uploads can be compared one by one


def check_format(way: str, format: str, bits: float) -> None:
    """Numbers go up or down in a format or in so many bits, and not in both."""
    lattice.check_bits(f"{way}_bits", bits)
    if bits != PLAIN_BITS and format != "f32":
        raise ValueError(f"{way}link {format} and {way}_bits {bits:g} are two formats: choose one")


@dataclass(frozen=True)
class Uplink:
    """`bits` a number; PLAIN_BITS: `format`."""

    format: str
    bits: float

    @property
    def exact(self) -> bool:
        """Whether what is read is what was written, so that a sum of uploads is the upload of a sum."""
        return self.bits == PLAIN_BITS and formats.by_name(self.format).exact

    @property
    def incomparable(self) -> str:
        """Why one upload by itself says too little of what was written; empty: it does not."""
        if self.bits >= FAITHFUL:
            return ""
        return (
            f"with --up-bits {self.bits:g} those are true in the mean alone, which such a rule does not "
            f"take: {FAITHFUL} bits or more"
        )

    def block(self, x: Tensor, key: Key) -> Block:
        """(d,) as bytes; the step of the lattice depends on x alone."""
        if self.bits == PLAIN_BITS:
            return wire.block(x, self.format, key)
        return lattice.dithered(x, key, lattice.step_of(x, self.bits))

    def read(self, block: Block, count: int, key: Key) -> Tensor:
        """(count,) from such bytes."""
        if self.bits == PLAIN_BITS:
            return block.numbers(count)
        return lattice.read_dithered(block, count, key)
