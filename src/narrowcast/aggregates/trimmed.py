"""The trimmed mean: of every coordinate, the mean without the f largest and the f smallest numbers.

With at most f liars what is left lies between honest numbers: each lie that stays is no smaller than the
smallest honest number and no larger than the largest (Yin et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from narrowcast.aggregates.robust import Tolerant

COLUMNS = 1 << 14  # sorted at a time: their copy stays small beside the updates


@dataclass(frozen=True)
class TrimmedMean(Tolerant):
    """f = ceil(tolerate n), but so that at least one number stays: then it is the median."""

    name: ClassVar[str] = "trimmed-mean"

    def combine(self, xs: Tensor) -> Tensor:
        return middle(xs, min(self.liars(len(xs)), (len(xs) - 1) // 2))


def middle(xs: Tensor, cut: int) -> Tensor:
    """(n, d) -> (d,), the mean of each column without its `cut` largest and smallest numbers."""
    n, numbers = len(xs), xs.numpy()
    kept = [
        np.sort(numbers[:, start : start + COLUMNS], axis=0)[cut : n - cut].mean(axis=0, dtype=np.float64)
        for start in range(0, numbers.shape[1], COLUMNS)
    ]
    return torch.from_numpy(np.concatenate(kept).astype(np.float32))
