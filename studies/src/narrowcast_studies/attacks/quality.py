"""How good a reconstruction is: PSNR and SSIM (scikit-image), and whether it names the picture among 100."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from skimage import metrics
from torch import Tensor

from narrowcast_studies.attacks.images import Images, pixels

METRICS: Any = metrics  # it has no types
MOST_DB = 100.0  # of a picture that is the same bit for bit: no mean can take infinity


@dataclass(frozen=True)
class Quality:
    psnr: float  # dB
    ssim: float
    identified: bool  # the original is nearest in pixels among 100 candidates


def match(found: Tensor, true: Tensor) -> Tensor:
    """The found pictures in the order of the true ones: a batch has none, so the best assignment counts."""
    from scipy.optimize import linear_sum_assignment

    cost = torch.cdist(pixels(true).flatten(1), pixels(found).flatten(1)).square()
    return found[torch.from_numpy(linear_sum_assignment(cost.numpy())[1])]


def judge(found: Tensor, true: Tensor, images: Images) -> Quality:
    """One picture against its original, (3, 32, 32) each, normalised."""
    a, b = pixels(true), pixels(found)
    error = float((a - b).square().mean())
    psnr = MOST_DB if error == 0 else METRICS.peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=1.0)
    ssim = METRICS.structural_similarity(a.numpy(), b.numpy(), data_range=1.0, channel_axis=0)
    others = (pixels(images.decoys) - b).square().mean((1, 2, 3))
    return Quality(min(float(psnr), MOST_DB), float(ssim), bool(error < others.min()))


def as_bytes(x: Tensor) -> bytes:
    """A picture as 32 x 32 x 3 bytes."""
    return (pixels(x) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy().tobytes()


def from_bytes(data: bytes, side: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(side, side, 3)."""
    return np.frombuffer(data, np.uint8).reshape(side, side, 3)
