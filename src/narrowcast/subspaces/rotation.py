"""`rotation`: A is a pile of random orthogonal blocks whose windows tile the d coordinates round and round.

A tile is n rows of V lanes of consecutive parameters. Lane j of tile t is one block B H_n G / sqrt(n): G
flips the signs of the rows (shared by the lanes of a tile), the n-point Hadamard transform runs down the
rows, B flips the sign of every parameter. Tile t reads the circular window of n V coordinates that starts at
(rho + pi(t) n V) mod d, element (i, j) at offset i V + j; pi is a keyed bijection. What is left of D after
whole tiles is cut by its binary expansion into smaller blocks whose windows follow on.

Each block is orthogonal on its window and the windows cover the circle evenly, so for every D >= d >= 1:
every row of A has norm 1, A^T A is diagonal with entries floor(D/d) or ceil(D/d), and d = D gives an
orthogonal A. E[A A^T] = I because the signs B are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import keyed, pool
from narrowcast.numerics.hadamard import fwht_plain
from narrowcast.numerics.kernels import edges, tiles
from narrowcast.numerics.kernels.memory import ALIGNED
from narrowcast.numerics.kernels.strip import LANES, ROWS, STRIP
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.subspaces import on_device
from narrowcast.subspaces.base import Floats, Subspace, SubspaceSpec

SCALES = np.array([1.0 / np.sqrt(2.0**k) for k in range(7)], np.float32)
MOST_SHARDS = 32
STREAM = 1 << 22  # numbers from which a result is written past the caches: it would not stay in them


def _zeros(memory: Floats, *shape: int) -> Floats:
    """In the beginning of the memory."""
    found = memory[: math.prod(shape)].reshape(shape)
    found[:] = 0
    return found


def floor_power_of_two(x: int) -> int:
    return 1 << (x.bit_length() - 1)


class Rotation(Subspace):
    kind = "rotation"
    on_device = True
    most_rows = ROWS

    def __init__(self, D: int, d: int, key: Key, n: int | None = None, V: int | None = None) -> None:
        super().__init__(D, d, key)
        if V is not None and V < 1:
            raise ValueError(f"n and V must be powers of two up to 64, got n={n}, V={V}")
        self.V = min(LANES, floor_power_of_two(d)) if V is None else V
        self.n = min(self.most_rows, floor_power_of_two(max(1, d // self.V))) if n is None else n
        if self.n * self.V > d or any(not 1 <= v <= 64 or v & (v - 1) for v in (self.n, self.V)):
            raise ValueError(f"n and V must be powers of two up to 64 with n V <= d, got n={n}, V={V}, d={d}")
        self.spec = SubspaceSpec(self.kind, D, d, key, self.n, self.V)
        self.tiles = D // (self.n * self.V)
        self.strips = D // STRIP if self.V == LANES else 0
        first = self.strips * (STRIP // (self.n * self.V))  # blocks before this one are in strips
        self.edge = first, self.tiles - first + (D - self.tiles * self.n * self.V).bit_count()
        # Shards of a projection: fixed by (D, d), so that the sum does not depend on the number of threads.
        self.shards = max(1, min(MOST_SHARDS, D // (8 * d)))
        rho = keyed.below(keyed.derive(key, Purpose.OFFSET), d)
        k0, k1 = keyed.split(key)
        self._bits = (rho, k0, k1, *keyed.bijection_args(key, self.tiles))
        self._rows = (np.array([rho]), np.array([k0]), np.array([k1]), self._bits[-1][None])

    def _add_expanded(self, base: Floats, x: Floats, out: Floats) -> None:
        self._add_family([self], base, x[None], out)

    def _add_family(self, family: Sequence[Self], base: Floats, xs: Floats, out: Floats) -> None:
        """All K in one pass over memory."""
        if self.strips:
            scaled = xs * SCALES[self.n.bit_length() - 1]
            scaled = np.concatenate([scaled, scaled[:, : self.n * self.V]], axis=1)
            rhos, k0s, k1s, keys = (
                np.concatenate(rows) for rows in zip(*(A._rows for A in family), strict=True)
            )
            away = out.size >= STREAM and out.ctypes.data % ALIGNED == 0
            stream = away and base.ctypes.data != out.ctypes.data
            start = base if base.size else np.zeros(STRIP, np.float32)
            shape = (scaled.ravel(), self.n, self.d, rhos, k0s, k1s, *self._bits[3:6], keys)
            pool.run(tiles.expand_strips, self.strips, out, start, stream, *shape, grain=16)
        first, count = self.edge
        for A, x in zip(family, xs, strict=True):
            rest = (first, out, base, x, SCALES, self.D, self.n, self.V, *A._bits)
            pool.run(edges.expand_blocks, count, *rest, grain=4096)
            base = out

    def _project(self, g: Floats, out: Floats) -> None:
        self._project_many(g[None], out[None])

    def _project_many(self, gs: Floats, out: Floats) -> None:
        """A few rows in one pass over memory: signs and windows are made once for them."""
        few = -(-len(gs) // max(1, -(-len(gs) // tiles.TOGETHER)))  # of groups of about one size
        memory = np.empty(self.shards * few * (self.d + self.n * self.V), np.float32)
        for first in range(0, len(gs), max(1, few)):
            self._project_few(gs[first : first + few], out[first : first + few], memory)

    def _project_few(self, gs: Floats, out: Floats, memory: Floats) -> None:
        acc = _zeros(memory, 1 if self.strips else self.shards, len(gs), self.d)
        rest = (*self.edge, acc, gs, SCALES, self.D, self.n, self.V, *self._bits)
        pool.run(edges.project_blocks, len(acc), *rest)
        for w, y in enumerate(out):  # row by row: how NumPy adds depends on the shape
            acc[:, w].sum(axis=0, out=y)
        if self.strips:
            window = self.n * self.V
            acc = _zeros(memory, self.shards, len(gs), self.d + window)
            shape = (gs, self.strips, self.n, self.d, *self._bits)
            pool.run(tiles.project_shards, self.shards, acc, *shape)
            parts, scale = len(gs) * -(-self.d // STRIP), SCALES[self.n.bit_length() - 1]
            pool.run(tiles.add_shards, parts, out, acc, window, scale, grain=16)

    def _project_there(self, g: Tensor) -> Tensor:
        return on_device.project(self, g, SCALES)

    def _add_family_there(self, family: Sequence[Self], base: Tensor | None, xs: Tensor, out: Tensor) -> None:
        on_device.add_family(family, base, xs, out, SCALES)

    def blocks(self) -> Iterator[tuple[int, int, int, int]]:
        """(first parameter, rows, lanes, window start) of every block: whole tiles, then the remainder."""
        size = self.n * self.V
        rho = self._bits[0]
        for t, p in enumerate(keyed.scattered(self.key, self.tiles)):
            yield t * size, self.n, self.V, (rho + int(p) * size) % self.d
        first = self.tiles * size
        while first < self.D:
            block = floor_power_of_two(self.D - first)
            lanes = min(self.V, block)
            yield first, block // lanes, lanes, (rho + first) % self.d
            first += block

    def add_expanded_plain(self, base: Floats, x: Floats) -> Floats:
        count = -(-self.D // self.V)
        rows = keyed.words(self.key, Purpose.SIGNS_ROW, -(-count // 32))
        columns = keyed.words(self.key, Purpose.SIGNS_COLUMN, -(-count // 32) * self.V)
        r, j = np.divmod(np.arange(self.D), self.V)
        B = (columns[(r // 32) * self.V + j] >> (r % 32).astype(np.uint32)) & np.uint32(1)
        y = np.empty(self.D, np.float32)
        for first, n, lanes, w in self.blocks():
            r0 = first // self.V + np.arange(n)
            G = (rows[r0 // 32] >> (r0 % 32).astype(np.uint32)) & np.uint32(1)
            s = (x * SCALES[n.bit_length() - 1])[(w + np.arange(n * lanes)) % self.d].reshape(n, lanes)
            s = np.where(G[:, None], -s, s)
            y[first : first + n * lanes] = fwht_plain(torch.from_numpy(s.T)).numpy().T.ravel()
        result: Floats = base + np.where(B, -y, y)
        return result


class Grouping(Rotation):
    """One +-1 in every row of A, as in Uni-LoRA, with groups of equal size: the rotation with n = 1."""

    kind = "grouping"
    most_rows = 1
