"""Krum and Multi-Krum (Blanchard et al. 2017): updates that have close company are believed.

score_w = sum of |x_w - x_u|^2 over the n - f - 2 nearest others u. Krum takes the one update of the smallest
score, Multi-Krum the mean of the n - f smallest. Both need n >= 2 f + 3: fewer, and liars are company enough
for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.aggregates.robust import Tolerant

COLUMNS = 1 << 13  # in double precision at a time


@dataclass(frozen=True)
class Krum(Tolerant):
    """One client's update and nobody else's: safe, and as noisy as one client."""

    name: ClassVar[str] = "krum"

    def needs(self, n: int) -> int:
        return 2 * self.liars(n) + 3

    def combine(self, xs: Tensor) -> Tensor:
        return xs[int(scores(xs, self.liars(len(xs))).argmin())]


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the n - f updates of the best company."""

    name: ClassVar[str] = "multi-krum"

    def combine(self, xs: Tensor) -> Tensor:
        f = self.liars(len(xs))
        best = scores(xs, f).argsort(stable=True)[: len(xs) - f]
        return xs[best.sort().values].mean(0)


def scores(xs: Tensor, f: int) -> Tensor:
    """(n, d) -> (n,), in double precision."""
    n = len(xs)
    apart = distances(xs).fill_diagonal_(torch.inf)
    return apart.sort(dim=1).values[:, : n - f - 2].sum(1)


def distances(xs: Tensor) -> Tensor:
    """(n, d) -> (n, n), |x_w - x_u|^2 by products: |x|^2 + |y|^2 - 2 x.y, in double precision.

    About their medians, not about zero: updates that are large and alike would cancel to noise.
    """
    products = torch.zeros(len(xs), len(xs), dtype=torch.float64)
    for start in range(0, xs.shape[1], COLUMNS):
        wide = xs[:, start : start + COLUMNS].double()
        wide -= wide.median(0).values
        products.addmm_(wide, wide.T)
    lengths = products.diagonal()
    return (lengths[:, None] + lengths - 2 * products).clamp_(min=0.0)
