"""The passes by torch's own operations: for devices without Triton, and as one more reference.

A word of 32 bits is an int64 here, since no device has all operations on unsigned ones; a product of two of
them may wrap to a negative number, of which the upper half is taken by a shift and a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowcast.numerics.devices.tiling import Tiling, signed
from narrowcast.numerics.purposes import Purpose

MASK32 = 0xFFFFFFFF
M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
STREAM = 0x80000000
P1, P2 = signed(0x9E3779B97F4A7C15), signed(0xD6E8FEB86659FD93)
KEY = 5
CHUNK = 1 << 20  # numbers at once


def stream_words(first: int, stop: int, stream: int, k0: int, k1: int, device: torch.device) -> Tensor:
    """Words first .. stop of a stream, as `keyed.words` makes them."""
    c0 = torch.arange(first // 4, -(-stop // 4), device=device)
    c0, c1 = c0 & MASK32, c0 >> 32
    c2, c3 = torch.full_like(c0, stream), torch.full_like(c0, STREAM)
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1 = (p1 >> 32 & MASK32) ^ c1 ^ k0, p1 & MASK32
        c2, c3 = (p0 >> 32 & MASK32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + W0) & MASK32, (k1 + W1) & MASK32
    start = first - first // 4 * 4
    return torch.stack([c0, c1, c2, c3], 1).view(-1)[start : start + stop - first]


def signs(first: int, rows: int, V: int, stream: int, k0: int, k1: int, device: torch.device) -> Tensor:
    """(rows, V) bits: of row r, lane j that is bit r % 32 of word (r // 32) V + j; `first` in whole words."""
    start = first // 32 * V
    words = stream_words(start, start + -(-rows // 32) * V, stream, k0, k1, device).view(-1, 1, V)
    bit = torch.arange(32, device=device).view(1, 32, 1)
    return (words >> bit & 1).view(-1, V)[:rows] == 1


def placed(t: Tensor, tiling: Tiling, rounds: list[int]) -> Tensor:
    """pi(t): the walk of `kernels.philox.permute_below`, until the last has landed."""

    def permute(x: Tensor) -> Tensor:
        for r in range(3):
            x = (x * rounds[2 * r] + rounds[2 * r + 1]) & tiling.mask
            x = x ^ (x >> tiling.half)
        return x

    x = permute(t)
    while bool((beyond := x >= tiling.tiles).any()):
        x = torch.where(beyond, permute(x), x)
    return x


def butterflies(s: Tensor) -> Tensor:
    """H_n down the rows of (T, n, V), levels h = 1, 2, 4, ..."""
    T, n, V = s.shape
    h = 1
    while h < n:
        a, b = s.view(T, n // (2 * h), 2, h, V).unbind(2)
        s = torch.stack([a + b, a - b], 2).view(T, n, V)
        h *= 2
    return s


def flip(s: Tensor, negative: Tensor) -> Tensor:
    return torch.where(negative, -s, s)


class _Chunk:
    """Some consecutive tiles of one matrix: their signs and places."""

    def __init__(self, tiling: Tiling, meta: list[int], first: int, count: int, device: torch.device) -> None:
        n, V, (k0, k1) = tiling.n, tiling.V, meta[1:3]
        rows, aligned = first * n, first * n // 32 * 32
        skip, total = rows - aligned, rows - aligned + count * n
        made = (
            signs(aligned, total, lanes, int(stream), k0, k1, device)[skip:].view(count, n, lanes)
            for stream, lanes in ((Purpose.SIGNS_ROW, 1), (Purpose.SIGNS_COLUMN, V))
        )
        self.G, self.B = made
        self.places = placed(torch.arange(first, first + count, device=device), tiling, meta[3:9])


def add_tiles(tiling: Tiling, metas: Tensor, base: Tensor, xs: Tensor, out: Tensor) -> None:
    n, V, size = tiling.n, tiling.V, tiling.size
    within, rows = torch.arange(size, device=out.device), metas.tolist()
    xs = torch.cat([xs, xs[:, :size]], 1)  # no window wraps
    at_once = max(1, CHUNK // size)
    for first in range(0, tiling.tiles, at_once):
        count = min(at_once, tiling.tiles - first)
        part = slice(first * size, (first + count) * size)
        total = base[part].view(count, n, V)
        for meta, x in zip(rows, xs, strict=True):
            chunk = _Chunk(tiling, meta, first, count, out.device)
            window = (chunk.places * size + meta[0]) % tiling.d
            s = flip(x[window[:, None] + within].view(count, n, V), chunk.G)
            total = total + flip(butterflies(s), chunk.B)
        out[part] = total.reshape(-1)


def project_tiles(tiling: Tiling, meta: Tensor, rho: int, g: Tensor, scale: float) -> Tensor:
    """Takes D numbers of memory: the line (see `kernels.gpu.tiles`) is made whole."""
    n, V, d, size = tiling.n, tiling.V, tiling.d, tiling.size
    line, row = torch.empty(tiling.tiles, size, device=g.device), meta[0].tolist()
    at_once = max(1, CHUNK // size)
    for first in range(0, tiling.tiles, at_once):
        count = min(at_once, tiling.tiles - first)
        chunk = _Chunk(tiling, row, first, count, g.device)
        y = g[first * size : (first + count) * size].float().view(count, n, V)
        s = flip(butterflies(flip(y, chunk.B)), chunk.G)
        line.index_copy_(0, chunk.places, s.view(count, size))
    flat, start = line.view(-1), min((d - rho) % d, tiling.whole)
    middle = (tiling.whole - start) // d * d
    sums = flat[start : start + middle].view(-1, d).sum(0)
    sums[rho : rho + start] += flat[:start]
    sums[: tiling.whole - start - middle] += flat[start + middle :]
    return sums * scale


def sum_mixed(pairs: Tensor, first: int) -> int:
    total = torch.zeros((), dtype=torch.int64, device=pairs.device)
    for start in range(0, pairs.numel(), CHUNK):
        part = pairs[start : start + CHUNK]
        place = torch.arange(first + start, first + start + part.numel(), device=pairs.device)
        x = (part ^ (place * P1 + KEY)) * P2
        x = (x ^ (x >> 32 & MASK32)) * P1
        total += (x ^ (x >> 29 & (1 << 35) - 1)).sum()
    return int(total)
