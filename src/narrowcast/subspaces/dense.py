"""`dense`: A has independent normal entries of variance 1/d. O(D d) time: the truth for tests and toys."""

from __future__ import annotations

import numpy as np

from narrowcast.numerics import keyed, pool
from narrowcast.numerics.kernels import diagonals
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.subspaces.base import Floats, Subspace, SubspaceSpec

CHUNK = 1 << 22  # entries of A in memory at once


class Dense(Subspace):
    def __init__(self, D: int, d: int, key: Key) -> None:
        super().__init__(D, d, key)
        self.spec = SubspaceSpec("dense", D, d, key)
        self.scale = np.float32(1.0 / np.sqrt(float(d)))
        self.rows = max(1, CHUNK // d)

    def _chunk(self, first: int) -> Floats:
        rows = np.empty((min(self.rows, self.D - first), self.d), np.float32)
        table, words = keyed.normal_table(), keyed.split(self.key)
        pool.run(diagonals.dense_rows, len(rows), rows, first, self.d, self.scale, table, *words, grain=64)
        return rows

    def _add_expanded(self, base: Floats, x: Floats, out: Floats) -> None:
        for first in range(0, self.D, self.rows):
            chunk = self._chunk(first)
            part = out[first : first + len(chunk)]
            pool.run(
                diagonals.dot_rows, len(chunk), part, base[first : first + len(chunk)], chunk, x, grain=64
            )

    def _project(self, g: Floats, out: Floats) -> None:
        total = np.zeros(self.d)
        for first in range(0, self.D, self.rows):
            chunk = self._chunk(first)
            total += g[first : first + len(chunk)].astype(np.float64) @ chunk
        out[:] = total

    def add_expanded_plain(self, base: Floats, x: Floats) -> Floats:
        count = self.D * self.d
        A = keyed.normals(self.key, Purpose.NORMALS, count).reshape(self.D, self.d) * self.scale
        terms = A.astype(np.float64) * x.astype(np.float64)  # products of float32 are exact in float64
        result: Floats = base + np.add.accumulate(terms, axis=1)[:, -1].astype(np.float32)
        return result
