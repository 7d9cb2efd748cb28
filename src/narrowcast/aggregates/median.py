"""The median of every coordinate: it stays among the honest numbers while fewer than half of them lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from narrowcast.aggregates.robust import Robust
from narrowcast.aggregates.trimmed import middle


@dataclass(frozen=True)
class Median(Robust):
    """Of an even number of clients, the mean of the two in the middle."""

    name: ClassVar[str] = "median"

    def combine(self, xs: Tensor) -> Tensor:
        return middle(xs, (len(xs) - 1) // 2)
