"""The parameters as matrices, first dimension by the rest, for low-rank methods; vectors are columns."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from narrowcast.numerics.flat import Layout


class Matrix(NamedTuple):
    """One parameter's place in theta."""

    start: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def of(self, x: Tensor) -> Tensor:
        """This parameter of a vector like theta, (rows, columns): a view."""
        return x[self.start : self.start + self.size].view(self.rows, self.columns)


def matrices(layout: Layout | None, D: int) -> list[Matrix]:
    """Where each parameter lies, in order; without a layout all D of them are one vector."""
    shapes = ((D,),) if layout is None else layout.shapes
    if any(n < 0 for shape in shapes for n in shape) or sum(map(math.prod, shapes)) != D:
        raise ValueError(f"the shapes {shapes} are not those of {D} parameters")
    found, start = [], 0
    for shape in shapes:
        rows = shape[0] if shape else 1
        found.append(Matrix(start, rows, math.prod(shape[1:])))
        start += found[-1].size
    return found
