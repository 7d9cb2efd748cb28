"""The whole tiles of a rotation, as passes on a device take them: a shape, and a row of integers a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose


class Tiling(NamedTuple):
    """`tiles` tiles of n rows by V lanes, windows on a circle of d coordinates."""

    d: int
    n: int
    V: int
    tiles: int

    @property
    def size(self) -> int:
        return self.n * self.V

    @property
    def whole(self) -> int:
        """Parameters in tiles."""
        return self.tiles * self.size

    @property
    def bits(self) -> int:
        """Of the numbers that the bijection of tiles permutes."""
        return max(1, (self.tiles - 1).bit_length())

    @property
    def half(self) -> int:
        return (self.bits + 1) // 2

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


class Passes(Protocol):
    """The same mathematics by different means; tensors of one device throughout."""

    def add_tiles(self, tiling: Tiling, metas: Tensor, base: Tensor, xs: Tensor, out: Tensor) -> None:
        """out = base + A_1 x_1 + ... + A_K x_K on the whole tiles, xs (K, d) already over sqrt(n)."""

    def project_tiles(self, tiling: Tiling, meta: Tensor, rho: int, g: Tensor, scale: float) -> Tensor:
        """A^T g of the whole tiles, (d,), scale being 1 / sqrt(n)."""

    def sum_mixed(self, pairs: Tensor, first: int) -> int:
        """The sum of mix(pair_i, first + i), mod 2^64: see `kernels.mixing`."""


def meta_of(keys: Sequence[Key], d: int) -> Tensor:
    """(K, 12) int64: rho, the key's two words, three (multiplier, addend), the multipliers' inverses."""
    rows = []
    for key in keys:
        rounds = [int(k) for k in keyed.bijection_keys(key)]
        inverses = [pow(multiplier, -1, 1 << 64) for multiplier in rounds[::2]]
        rho = keyed.below(keyed.derive(key, Purpose.OFFSET), d)
        k0, k1 = (int(word) for word in keyed.split(key))
        rows.append([rho, k0, k1, *map(signed, rounds), *map(signed, inverses)])
    return torch.tensor(rows, dtype=torch.int64)


def signed(word: int) -> int:
    """64 bits as an int64 has them."""
    return word - (1 << 64) if word >> 63 else word
