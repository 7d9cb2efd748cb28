"""The geometric median, argmin_z sum_w |x_w - z|: it stays bounded while fewer than half of the updates lie.

By Weiszfeld's steps, z <- sum_w x_w / |x_w - z| over sum_w 1 / |x_w - z|, from the coordinates' medians;
distances are kept from zero (Pillutla et al. 2019), so that a step that lands on an update goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.aggregates.robust import Robust
from narrowcast.aggregates.trimmed import middle

STEPS = 64  # at most
CLOSE = 1e-6  # of the median distance: what is nearer counts as so far; steps that are shorter end it


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """Turned subspaces leave it as it is: it looks at distances, not at coordinates."""

    name: ClassVar[str] = "geometric-median"

    def combine(self, xs: Tensor) -> Tensor:
        z = middle(xs, (len(xs) - 1) // 2)
        for _ in range(STEPS):
            apart = torch.linalg.vector_norm(xs - z, dim=1, dtype=torch.float64)
            near = CLOSE * float(apart.median())
            weights = 1.0 / apart.clamp(min=near or 1e-300)
            before, z = z, (weights / weights.sum()).float() @ xs
            if float(torch.linalg.vector_norm(z - before, dtype=torch.float64)) <= near:
                break
        return z
