"""Signs: a bit a number, 1 for negative; zero counts as positive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Block, WireError


def block(x: Tensor) -> Block:
    """The signs of the numbers, as a block."""
    return wire.raw(np.packbits((x < 0).numpy(), bitorder="little").tobytes())


def read(block: Block, count: int) -> Tensor:
    """`count` numbers, +1 or -1."""
    data = np.frombuffer(block.raw(), np.uint8)
    if len(data) != (count + 7) // 8:
        raise WireError(f"expected {count} signs in {(count + 7) // 8} bytes, got {len(data)}")
    bits = np.unpackbits(data, bitorder="little")
    if bits[count:].any():
        raise WireError("the bits after the last sign are not zero")
    return torch.from_numpy(1 - 2 * bits[:count].astype(np.float32))
