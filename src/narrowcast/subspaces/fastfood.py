"""`fastfood`: the paper's matrix, A = Unpad_D B H G Pi H Pad_L / sqrt(d L), L the next power of two from D.

B are signs, G standard normals, Pi a permutation of L indices, H the L-point Hadamard matrix. The paper
writes H Pi G H; moving the independent G past Pi leaves the distribution as it is and lets G be made in
order. H Pad x is the d'-point transform of x (d' the next power of two from d), repeated, so only one
transform of full length is needed; Pi is a keyed bijection evaluated on the fly. Extra memory: L floats.
"""

from __future__ import annotations

import numpy as np
import torch

from narrowcast.numerics import keyed, pool
from narrowcast.numerics.hadamard import fwht_, fwht_plain
from narrowcast.numerics.kernels import diagonals
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.subspaces.base import Floats, Subspace, SubspaceSpec

SHARDS = 8


class Fastfood(Subspace):
    def __init__(self, D: int, d: int, key: Key) -> None:
        super().__init__(D, d, key)
        self.spec = SubspaceSpec("fastfood", D, d, key)
        self.L = 1 << (D - 1).bit_length()
        self.short = 1 << (d - 1).bit_length()
        self.scale = np.float32(1.0 / np.sqrt(float(d) * self.L))
        self._words = keyed.split(key)
        _, bits, mask, keys = keyed.bijection_args(key, self.L)
        self._normals = (keyed.normal_table(), *self._words, bits, mask, keys)

    def _add_expanded(self, base: Floats, x: Floats, out: Floats) -> None:
        y = np.zeros(self.short, np.float32)
        np.multiply(x, self.scale, out=y[: self.d])
        fwht_(y)
        z = np.empty(self.L, np.float32)
        pool.run(diagonals.scatter_normals, max(1, self.L // 4), z, y, *self._normals, grain=1024)
        fwht_(z)
        pool.run(diagonals.add_signed, -(-self.D // 128), out, base, z, *self._words, grain=64)

    def _project(self, g: Floats, out: Floats) -> None:
        z = np.empty(self.L, np.float32)
        pool.run(diagonals.put_signed, -(-self.L // 128), z, g, *self._words, grain=64)
        fwht_(z)
        acc = np.zeros((max(1, min(SHARDS, self.L // (4 * self.short))), self.short), np.float32)
        pool.run(diagonals.gather_normals, len(acc), acc, z, *self._normals)
        y = acc.sum(axis=0)
        fwht_(y)
        np.multiply(y[: self.d], self.scale, out=out)

    def add_expanded_plain(self, base: Floats, x: Floats) -> Floats:
        y = np.zeros(self.short, np.float32)
        y[: self.d] = x * self.scale
        y = fwht_plain(torch.from_numpy(y)).numpy()
        sigma = keyed.scattered(self.key, self.L)
        z = keyed.normals(self.key, Purpose.NORMALS, self.L) * y[sigma % self.short]
        z = fwht_plain(torch.from_numpy(z)).numpy()[: self.D]
        bits = np.unpackbits(
            keyed.words(self.key, Purpose.SIGNS_COLUMN, self.L).view(np.uint8), bitorder="little"
        )
        result: Floats = base + np.where(bits[: self.D], -z, z)
        return result
