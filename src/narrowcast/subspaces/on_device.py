"""The rotation where g, base and theta lie on a device: what has D numbers stays there, what has d is here.

The tiles are the device's work. Every multiplication (1 / sqrt(n), the rate) is done here before x goes, so
that the device adds and flips signs and nothing else, and theta has the same bits as on the CPU. What is
left of D after whole tiles, fewer numbers than d, is computed here too. One vector of less than 2 d numbers
crosses for A x, and one for A^T g.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics.devices import passes
from narrowcast.numerics.devices.tiling import Tiling, meta_of
from narrowcast.numerics.kernels import rest

if TYPE_CHECKING:
    from narrowcast.subspaces.base import Floats
    from narrowcast.subspaces.rotation import Rotation


def tiling_of(A: Rotation) -> Tiling:
    return Tiling(A.d, A.n, A.V, A.tiles)


def project(A: Rotation, g: Tensor, scales: Floats) -> Tensor:
    """A^T g, (D,) on a device, float32 or narrower -> (d,) here."""
    tiling, device = tiling_of(A), g.device
    meta = meta_of([A.key], A.d)
    rho, scale = int(meta[0, 0]), float(scales[A.n.bit_length() - 1])
    made = passes.on(device, A.V).project_tiles(tiling, meta.to(device), rho, g, scale)
    both = torch.cat([made, g[tiling.whole :].float()]).cpu().numpy()
    y, last = both[: A.d].copy(), both[A.d :]
    rest.project_rest(y, last, scales, A.D, A.n, A.V, *A._bits)
    return torch.from_numpy(y)


def add_family(
    family: Sequence[Rotation], base: Tensor | None, xs: Tensor, out: Tensor, scales: Floats
) -> None:
    """out = base + A_1 x_1 + ... + A_K x_K, xs (K, d) here, the rest on out's device; None is zero."""
    A = family[0]
    tiling, device = tiling_of(A), out.device
    last = np.empty((len(family), A.D - tiling.whole), np.float32)
    rows: Floats = xs.detach().contiguous().numpy()
    for each, x, y in zip(family, rows, last, strict=True):
        rest.expand_rest(y, x, scales, A.D, A.n, A.V, *each._bits)
    scaled = rows * scales[A.n.bit_length() - 1]
    there = torch.from_numpy(np.concatenate([scaled, last], axis=1)).to(device)
    metas = meta_of([each.key for each in family], A.d).to(device)
    start = out.zero_() if base is None else base
    passes.on(device, A.V).add_tiles(tiling, metas, start, there[:, : A.d], out)
    end = start[tiling.whole :]
    for y in there[:, A.d :]:
        end = end + y
    out[tiling.whole :] = end
