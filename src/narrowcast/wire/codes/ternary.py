"""A sparse vector of equal sizes, +mu or -mu on k places: mu (f32), k signs, k positions, in one block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from narrowcast.wire import messages as wire
from narrowcast.wire.codes import golomb, signs
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import Block, WireError


def block(where: Tensor, x: Tensor, D: int) -> Block:
    """The numbers x at rising positions, each as its sign times the mean of their sizes.

    mu = (1/k) sum_i |x_i|, summed in float64: it never overflows.
    """
    mu = x.abs().mean(dtype=torch.float64).numpy().astype("<f4")
    return wire.raw(mu.tobytes() + signs.block(x).data + golomb.pack(where.numpy(), D))


def read(block: Block, D: int, count: int) -> tuple[Tensor, Tensor]:
    """(where, +-mu) on `count` places."""
    data, head = block.raw(), 4 + (count + 7) // 8
    if len(data) < head:
        raise WireError(f"a ternary vector with {count} places takes over {head} bytes, got {len(data)}")
    mu = np.frombuffer(data, "<f4", 1).astype(np.float32)
    if not np.isfinite(mu[0]) or np.signbit(mu[0]):
        raise WireError(f"the size of a ternary vector must be a number from 0 on, got {mu[0]}")
    sign = signs.read(wire.raw(data[4:head]), count)
    try:
        where = golomb.unpack(data[head:], D, count)
    except FormatError as error:
        raise WireError(str(error)) from None
    return torch.from_numpy(where), sign * torch.from_numpy(mu)
