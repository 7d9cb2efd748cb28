"""Linear maps that torch can differentiate through: an upload as a function of the gradient behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from narrowcast import random
from narrowcast.kernels.sketch import BLOCKS, CHUNK
from narrowcast.random import Key
from narrowcast.sketch import CountSketch
from narrowcast.subspaces import Subspace

Vectors = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearMap:
    """v -> M v, (D,) -> (m,), with t -> M^T t for its derivative."""

    forward: Vectors
    adjoint: Vectors

    def __call__(self, v: Tensor) -> Tensor:
        result: Tensor = _Apply.apply(v, self)  # type: ignore[no-untyped-call]
        return result

    @property
    def transposed(self) -> LinearMap:
        return LinearMap(self.adjoint, self.forward)


class _Apply(torch.autograd.Function):
    """The derivative of a linear map is its adjoint, itself a linear map: any order can be taken."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, through: LinearMap) -> Tensor:
        ctx.through = through
        return through.forward(v.detach())

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor, None]:
        return ctx.through.transposed(t.contiguous()), None


def whole() -> LinearMap:
    """v itself."""
    return LinearMap(torch.clone, torch.clone)


def projection(A: Subspace) -> LinearMap:
    """A^T v."""
    return LinearMap(A.project, A.expand)


def places(where: Tensor, D: int) -> LinearMap:
    """v on the places `where`."""
    return LinearMap(lambda v: v[where], lambda t: torch.zeros(D).index_copy_(0, where, t))


def count_sketch(sketch: CountSketch, key: Key) -> LinearMap:
    """S v, with S^T t[e] = sum_i s_i(e) t[i, h_i(e)]; the key is the sketch's."""
    cells = [_cells(sketch, key, row) for row in range(sketch.rows)]

    def adjoint(t: Tensor) -> Tensor:
        rows = t.view(sketch.rows, sketch.columns)
        parts = [row[column] * sign for row, (column, sign) in zip(rows, cells, strict=True)]
        return torch.stack(parts).sum(0)

    return LinearMap(sketch.sketch, adjoint)


def _cells(sketch: CountSketch, key: Key, row: int) -> tuple[Tensor, Tensor]:
    """h_i and s_i of every coordinate, from the bits that `kernels.sketch` reads, in plain NumPy."""
    chunks = -(-sketch.D // CHUNK)
    stream: Any = row  # the rows of a sketch are streams of their own
    words = random.words(key, stream, chunks * CHUNK).reshape(chunks, BLOCKS, 4)
    bits = words.transpose(0, 2, 1).reshape(-1)[: sketch.D].astype(np.uint64)
    column = ((bits >> np.uint64(1)) * np.uint64(sketch.columns)) >> np.uint64(31)
    sign = 1.0 - 2.0 * (bits & np.uint64(1)).astype(np.float32)
    return torch.from_numpy(column.astype(np.int64)), torch.from_numpy(sign)
