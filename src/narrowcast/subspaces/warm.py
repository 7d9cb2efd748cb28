"""The kernels of a default run, compiled before anything waits for them."""

from __future__ import annotations

import torch

from narrowcast.numerics.kernels.strip import STRIP
from narrowcast.subspaces.rotation import Rotation


def compile_kernels() -> None:
    """Call each kernel of a default run once: compiled, or loaded from numba's cache."""
    D = 2 * STRIP + 1  # whole strips and what they leave over
    A = Rotation(D, STRIP, 0)
    A.add_expanded(torch.zeros(D), A.project(torch.zeros(D)))
