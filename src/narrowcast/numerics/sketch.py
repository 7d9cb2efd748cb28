"""The count sketch (Charikar, Chen, Farach-Colton 2002): D numbers in a table of r rows and c columns.

In row i, coordinate e belongs to one cell, h_i(e), with a sign s_i(e) = +-1, both from the key alone:
table[i, h_i(e)] = sum_e s_i(e) v[e]. It is linear. Each row gives an unbiased estimate of every coordinate,
v[e] ~ s_i(e) table[i, h_i(e)], with variance |v|^2 / c; the median over the rows is rarely far off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import keyed, pool
from narrowcast.numerics.kernels import sketch as kernels
from narrowcast.numerics.keyed import Key

MAX_ROWS, MAX_COLUMNS = 64, 1 << 31


class CountSketch:
    """A linear map R^D -> R^(r c) and its estimate back. Holds settings only; the same for any threads."""

    def __init__(self, D: int, rows: int, columns: int, key: Key) -> None:
        if D < 1 or not 1 <= rows <= MAX_ROWS or not 1 <= columns <= MAX_COLUMNS:
            raise ValueError(
                f"a sketch has 1 to {MAX_ROWS} rows and 1 to {MAX_COLUMNS} columns of D >= 1 numbers, "
                f"got {rows}, {columns} and {D}"
            )
        self.D, self.rows, self.columns = D, rows, columns
        self.key, self._key = key, keyed.split(key)

    @property
    def size(self) -> int:
        """Numbers of a table."""
        return self.rows * self.columns

    def cells(self, row: int) -> tuple[Tensor, Tensor]:
        """h_i and s_i of every coordinate, (D,) each: the bits that the kernels read, in plain NumPy."""
        chunks = -(-self.D // kernels.CHUNK)
        stream: Any = row  # the rows of a sketch are streams of their own
        words = keyed.words(self.key, stream, chunks * kernels.CHUNK).reshape(chunks, kernels.BLOCKS, 4)
        bits = words.transpose(0, 2, 1).reshape(-1)[: self.D].astype(np.uint64)
        column = ((bits >> np.uint64(1)) * np.uint64(self.columns)) >> np.uint64(31)
        sign = 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float32)
        return torch.from_numpy(column.astype(np.int64)), torch.from_numpy(sign)

    def sketch(self, v: Tensor) -> Tensor:
        """S v, (D,) -> (r c,)."""
        if v.shape != (self.D,) or v.dtype != torch.float32:
            raise ValueError(f"expected {self.D} numbers of float32, got {v.dtype} {tuple(v.shape)}")
        table = np.zeros((self.rows, self.columns), np.float32)
        pool.run(kernels.sketch_rows, self.rows, table, v.detach().contiguous().numpy(), *self._key)
        return torch.from_numpy(table.reshape(-1))

    def estimate(self, table: Tensor) -> Tensor:
        """The median over the rows of what each says of a coordinate, (r c,) -> (D,)."""
        if table.shape != (self.size,) or table.dtype != torch.float32:
            raise ValueError(
                f"expected a table of {self.size} float32, got {table.dtype} {tuple(table.shape)}"
            )
        out = np.empty(self.D, np.float32)
        rows = table.detach().contiguous().numpy().reshape(self.rows, self.columns)
        pool.run(kernels.estimate_chunks, -(-self.D // kernels.CHUNK), out, rows, *self._key, grain=64)
        return torch.from_numpy(out)
