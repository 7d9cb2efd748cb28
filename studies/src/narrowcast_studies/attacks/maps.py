"""Linear maps that torch can differentiate through: an upload as a function of the gradient behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from narrowcast.numerics import CountSketch
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


def count_sketch(sketch: CountSketch) -> LinearMap:
    """S v, with S^T t[e] = sum_i s_i(e) t[i, h_i(e)]."""
    cells = [sketch.cells(row) for row in range(sketch.rows)]

    def adjoint(t: Tensor) -> Tensor:
        rows = t.view(sketch.rows, sketch.columns)
        parts = [row[column] * sign for row, (column, sign) in zip(rows, cells, strict=True)]
        return torch.stack(parts).sum(0)

    return LinearMap(sketch.sketch, adjoint)
