"""DRIVE: rotate the update at random, send the signs and a scale; the server rotates back.

y = R v,  send sign(y) and S = |v|^2 / |y|_1;  the server adds S R^T sign(y)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where, blocks, own_route
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.uncompressed import Uncompressed
from narrowcast.numerics import keyed, pool
from narrowcast.numerics.hadamard import fwht_
from narrowcast.numerics.kernels import flips
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import signs
from narrowcast.wire.messages import Payload, WireError

LARGEST = 1 << 16  # of the blocks that are rotated: the transform stays in the cache
SMALLEST = 1 << 5  # what is left is sent whole: signs of a few numbers cannot be unbiased

ABOUT = About(
    up="D bits, a scale for every 65 536 of them",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="y = R v;  send sign(y) and S = |v|^2 / |y|_1;  theta <- theta - lr mean(S R^T sign(y))",
    source="DRIVE: Vargaftik et al. 2021; EDEN 2022 at one bit",
    text="""
A random rotation `R = H B / sqrt(n)` (Hadamard transform and random signs, new for every client and round,
from a key that both sides know) makes all coordinates of `y = R v` alike, nearly normal. The client sends
their signs and the scale `S = |v|^2 / |y|_1`; the server adds `S R^T sign(y)`. With this scale the estimate
has exactly the right length along v, `<S R^T sign(y), v> = |v|^2`, and the rest averages out over rotations:
unbiased, with the error `E|S R^T sign(y) - v|^2 = (pi/2 - 1) |v|^2`. At one bit EDEN is the same. The mean
over W clients is off by `0.57 / W` in square, so it trains nearly like no compression. D is cut by its binary
expansion into blocks of at most 65 536, each with its scale, and nothing is padded; the last few, below 32,
are sent as they are. That the rest averages out is exact for uniform rotations; for `H B` it is as good as
exact on gradients, and wrong where two or three coordinates hold nearly all of v.
""",
)


@dataclass(frozen=True)
class Drive(Uncompressed):
    name: ClassVar[str] = "drive"
    key: Key = 0

    @property
    def linear(self) -> bool:
        return False

    def route(self, key: Key) -> int:
        return own_route(key)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        route, sizes = self.route(key), cut(v.numel())
        rotated = sum(sizes)
        head = v[:rotated].contiguous()
        y = torch.from_numpy(self._flipped(head.numpy(), route))
        scales = []
        for x, part in zip(torch.split(head, sizes), torch.split(y, sizes), strict=True):
            fwht_(part.numpy())
            scales.append(_scale(x, part))
        numbers = torch.cat([torch.tensor(scales, dtype=torch.float32), v[rotated:]])
        coded = [signs.block(y)] if sizes else []
        return private, wire.payload([*coded, wire.block(numbers)], route=route)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        D = acc.total.shape[1]
        sizes = cut(D)
        rotated = sum(sizes)
        *coded, numbers = blocks(up, 2 if sizes else 1)
        y = signs.read(coded[0], rotated) if coded else torch.zeros(0)
        found = numbers.numbers(len(sizes) + D - rotated)
        scales, rest = found[: len(sizes)], found[len(sizes) :]
        if (scales < 0).any():
            raise WireError("a scale is negative")
        for part, scale in zip(torch.split(y, sizes), scales.tolist(), strict=True):
            part *= scale / math.sqrt(len(part))
            fwht_(part.numpy())
        back = torch.from_numpy(self._flipped(y.numpy(), up.route))
        return 0, torch.cat([back, rest])

    def _flipped(self, x: NDArray[np.float32], route: int) -> NDArray[np.float32]:
        """B x: random signs, their own inverse."""
        key = keyed.derive(self.key, Purpose.SUBSPACE, route)
        out = np.empty_like(x)
        pool.run(flips.flip_signs, -(-x.size // 128), out, x, *keyed.split(key), grain=1024)
        return out


def cut(D: int) -> list[int]:
    """Powers of two from LARGEST to SMALLEST that fill D but for its last few, the largest first."""
    sizes = [LARGEST] * (D // LARGEST)
    rest = D % LARGEST
    return sizes + [
        1 << b for b in range(LARGEST.bit_length(), -1, -1) if rest >> b & 1 and 1 << b >= SMALLEST
    ]


def _scale(x: Tensor, y: Tensor) -> float:
    """S = |x|^2 / |R x|_1 where y = sqrt(n) R x, and 0 for nothing."""
    size = float(torch.linalg.vector_norm(y, 1)) / math.sqrt(len(y))
    return float(torch.linalg.vector_norm(x)) ** 2 / size if size else 0.0


ENTRY = Entry(Drive, ABOUT)
