"""Examples by index: what a task takes a gradient over."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from narrowcast.random import Key
from narrowcast.tasks.partition import IndexArray


class Batch(NamedTuple):
    """Examples by index, with the weight of each: the objective is the weighted sum of their losses."""

    index: IndexArray  # type: ignore[assignment]  # (B,); hides tuple.index, which nobody needs here
    weight: Tensor  # (B,), sums to 1 for a mean
    key: Key  # for augmentation: the same key and index give the same picture
