"""The digest of a model: eight bytes that two equal ones share.

Words of 32 bits are taken in pairs w_i (a last one alone with a zero), and the digest is the sum of mix(w_i,
i) mod 2^64, where mix(., i) is a bijection for every i: a change of any one pair always shows, other changes
but for one chance in 2^64, and the order of summation is free. The lengths are mixed in like one pair more.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.numerics import pool
from narrowcast.numerics.devices import passes
from narrowcast.numerics.kernels import mixing

MASK64 = (1 << 64) - 1


def digest(*vectors: Tensor | None) -> bytes:
    """Of float32 vectors, one after the other; None is none."""
    total, place = 0, 0
    for vector in vectors:
        if vector is not None:
            total += _sum_of(vector, place) + _sum(np.array([vector.numel()], np.uint64), -1 - place)
            place += -(-vector.numel() // 2)
    return (total & MASK64).to_bytes(8, "little")


def _sum_of(vector: Tensor, first: int) -> int:
    """Of the vector's pairs, wherever it lies: a device sums those that it has, of the last word alone we."""
    if vector.device.type == "cpu":
        return _sum(_pairs(vector), first)
    words = vector.detach().reshape(-1)
    even = words.numel() // 2 * 2
    whole = words[:even]
    if not whole.is_contiguous() or whole.data_ptr() % 8:
        whole = whole.clone()
    total = passes.on(words.device).sum_mixed(whole.view(torch.int64), first)
    return total + (_sum(_pairs(words[even:].cpu()), first + even // 2) if even < words.numel() else 0)


def _pairs(vector: Tensor) -> NDArray[np.uint64]:
    words = vector.detach().contiguous().reshape(-1)
    if words.numel() % 2:
        words = torch.cat([words, words.new_zeros(1)])
    pairs = np.require(words.numpy(), requirements="A").view("<u8")
    return pairs.astype(np.uint64, copy=False)


def _sum(pairs: NDArray[np.uint64], first: int) -> int:
    blocks = -(-pairs.size // mixing.BLOCK)
    sums = np.zeros(blocks, np.uint64)
    pool.run(mixing.sum_mixed, blocks, sums, pairs, first, grain=8)
    return int(sums.sum(dtype=np.uint64))
