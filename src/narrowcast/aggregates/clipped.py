"""The mean of updates none of which is longer than the median one: x_w min(1, m / |x_w|), m = median |x_w|.

A quantile above 1 - (share of liars) would be theirs to choose; the median is not while they are fewer than
half. A liar keeps the say of one honest client, in whatever direction: this bounds the harm, it does
not remove it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.aggregates.robust import Robust


@dataclass(frozen=True)
class Clipped(Robust):
    """Two passes over the cohort's updates."""

    name: ClassVar[str] = "clipped"

    def combine(self, xs: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(xs, dim=1, dtype=torch.float64)
        bound = norms.sort().values[(len(norms) - 1) // 2]  # of an even number the lower one
        factors = torch.where(norms > bound, bound / norms, 1.0).float()
        return factors @ xs / len(xs)
