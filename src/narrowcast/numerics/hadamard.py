"""fwht: y = H x for the Hadamard matrix H of order 2^m, unnormalised, H H = 2^m I.

H_1 = (1) and H_2n = (H_n H_n; H_n -H_n), so one level of additions and subtractions between entries h apart
doubles the order. Levels run in the order h = 1, 2, 4, ... in the kernel and in its plain twin alike, which
makes the two equal bit for bit.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.numerics import pool
from narrowcast.numerics.kernels import walsh
from narrowcast.numerics.kernels.strip import STRIP

CACHED = 1 << 22  # numbers up to which a last-level cache holds the vector: passes of three levels are cheap


def fwht_plain(x: Tensor) -> Tensor:
    """H x along the last axis: log2 steps of views, any dtype and device."""
    size = x.shape[-1]
    h = 1
    while h < size:
        pairs = x.reshape(*x.shape[:-1], size // (2 * h), 2, h)
        a, b = pairs.unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).reshape(x.shape)
        h *= 2
    return x


def fwht_(x: NDArray[np.float32]) -> None:
    """x <- H x in place, for a contiguous float32 vector whose length is a power of two."""
    size = x.size
    if size < STRIP:
        pool.run(walsh.short, 1, x, size)
        return
    h = min(size, walsh.BLOCK)
    pool.run(walsh.blocks, size // h, x, h)
    while h < size:
        n = min(64 if size > CACHED else 8, size // h)
        pool.run(walsh.far, size // STRIP, x, h, n, grain=16)
        h *= n


def fwht(x: Tensor) -> Tensor:
    """H x for a float32 CPU vector whose length is a power of two; x is left as it was."""
    if x.ndim != 1 or x.numel() == 0 or x.numel() & (x.numel() - 1):
        raise ValueError(f"fwht needs a vector whose length is a power of two, got shape {tuple(x.shape)}")
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"fwht needs float32 on the CPU, got {x.dtype} on {x.device}; use fwht_plain")
    y = x.detach().clone(memory_format=torch.contiguous_format)
    fwht_(y.numpy())
    return y
