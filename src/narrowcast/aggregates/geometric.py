"""The geometric median, argmin_z sum_w |x_w - z|: it stays bounded while fewer than half of the updates lie.

By Weiszfeld's steps, z <- sum_w x_w / |x_w - z| over sum_w 1 / |x_w - z|, from the coordinates' medians.
Where z is at an update the sums are over the others, whose pull that one resists with a length of one (Vardi
and Zhang 2000): if they do not pull harder it is the median, else the step is so much shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.aggregates.robust import Robust
from narrowcast.aggregates.trimmed import middle

STEPS = 256  # at most: where the median is all but at an update, they are many
CLOSE = 1e-6  # of the median distance: what is nearer counts as there; steps that are shorter end it


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """Turned subspaces leave it as it is: it looks at distances, not at coordinates."""

    name: ClassVar[str] = "geometric-median"

    def combine(self, xs: Tensor) -> Tensor:
        z = middle(xs, (len(xs) - 1) // 2)
        for _ in range(STEPS):
            apart = torch.linalg.vector_norm(xs - z, dim=1, dtype=torch.float64)
            near = CLOSE * float(apart.median())
            there = apart <= near
            weights = torch.where(there, 0.0, 1.0 / apart)
            resists = 0.0
            if there.any():
                pull = float(torch.linalg.vector_norm(weights.float() @ (xs - z), dtype=torch.float64))
                resists = float(there.sum()) / pull if pull else 1.0
                if resists >= 1:
                    break
            before, z = z, torch.lerp((weights / weights.sum()).float() @ xs, z, resists)
            if float(torch.linalg.vector_norm(z - before, dtype=torch.float64)) <= near:
                break
        return z
