"""The passes by Triton's kernels, for V = 64: what each is launched with."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from narrowcast.numerics.devices.tiling import Tiling
from narrowcast.numerics.kernels.gpu import EXACT
from narrowcast.numerics.kernels.gpu import digest as digests
from narrowcast.numerics.kernels.gpu import tiles as kernels

BAND = 1 << 22  # numbers of the line at once: 16 MB, which the second cache of a large GPU holds
PARTS = 1 << 20  # numbers of partial sums, at most
BLOCK, PAIRS = 256, 2048
STRIP = 4096
_expand: Any = kernels.expand
_rotate: Any = kernels.rotate
_fold: Any = kernels.fold
_sum_mixed: Any = digests.sum_mixed


def add_tiles(tiling: Tiling, metas: Tensor, base: Tensor, xs: Tensor, out: Tensor) -> None:
    xs = torch.cat([xs, xs[:, : tiling.size]], 1)  # no window wraps
    strips = -(-tiling.whole // STRIP)
    shape = (tiling.d, tiling.tiles, tiling.half, tiling.mask)
    with _current(out.device):
        _expand[(strips,)](out, base, xs, metas, *shape, len(xs), tiling.n, **EXACT)


def project_tiles(tiling: Tiling, meta: Tensor, rho: int, g: Tensor, scale: float) -> Tensor:
    d, size = tiling.d, tiling.size
    wraps = -(-(tiling.whole + rho) // d)
    parts = max(1, min(wraps // 8, PARTS // d))  # by (D, d) alone: the sums do not depend on the device
    sums = torch.zeros(parts, d, device=g.device)
    band = max(STRIP, BAND // STRIP * STRIP)
    line = torch.empty(min(band, -(-tiling.whole // STRIP) * STRIP), device=g.device)
    with _current(g.device):
        for first in range(0, tiling.whole, band):
            count = min(band, tiling.whole - first)
            places = (first // size, tiling.tiles, tiling.half, tiling.mask)
            _rotate[(-(-count // STRIP),)](line, g, meta, *places, scale, tiling.n, **EXACT)
            _fold[(-(-d // BLOCK), parts)](sums, line, rho, d, first, count, parts, BLOCK)
    return sums.sum(0)


def sum_mixed(pairs: Tensor, first: int) -> int:
    blocks = -(-pairs.numel() // PAIRS)
    if not blocks:
        return 0
    sums = torch.empty(blocks, dtype=torch.int64, device=pairs.device)
    with _current(pairs.device):
        _sum_mixed[(blocks,)](sums, pairs, pairs.numel(), first, PAIRS)
    return int(sums.sum())


def _current(device: torch.device) -> Any:
    """Triton launches on the current device, whatever the tensors' is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
