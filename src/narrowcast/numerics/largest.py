"""Which coordinates are worth sending: the k largest by size, the same ones on every machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics.kernels import select


def largest(x: Tensor, k: int) -> Tensor:
    """The positions of the k numbers of largest size, rising; of equal ones the first are taken.

    In place of torch.topk, whose choice among equals is nobody's promise. Equals are common where sizes are
    quantised: all numbers of a ternary vector are.
    """
    if not 1 <= k <= x.numel():
        raise ValueError(f"cannot take {k} of {x.numel()} numbers")
    return torch.from_numpy(select.largest(x.contiguous().numpy().view(np.uint32), k))
