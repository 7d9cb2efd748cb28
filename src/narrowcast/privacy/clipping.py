"""One client's update within a bound, whatever it sent; and a bound that follows the clients.

An update x becomes whole numbers k = trunc(x min(1, C / |x|) R / C), R steps of a grid to the bound C. Cut
towards zero, and checked as integers, |k| <= R holds exactly: that is the sensitivity which the noise is
made for. What is not finite, or not a vector of this size, counts as zero.

The adaptive bound (Andrew et al. 2021) goes towards the median norm: C <- C exp(-rate (b - 1/2)), b the share
of updates within C, itself noised. An update tells whether it is within by +1/2 or -1/2, one that did not
come by 0. Told together, the update with noise z_u and the bit with noise s_b are one Gaussian mechanism of
noise z for z_u = (z^-2 - (2 s_b)^-2)^(-1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from narrowcast.errors import ConfigError
from narrowcast.numerics.kernels import clip
from narrowcast.privacy import noise
from narrowcast.privacy.noise import Entropy, Integers
from narrowcast.units import exact

BIT = 1 << 10  # steps of the grid to one half: a bit's sensitivity
SHARE = 20  # s_b is a 20th of the cohort, as Andrew et al. have it
RATE = 0.2
SMALLEST, LARGEST = 1e-9, 1e9  # bounds


def add_clipped(x: Tensor, bound: float, steps: int, sums: Integers) -> bool:
    """sums += k with |k| <= steps; whether x was within the bound."""
    numbers = x.detach().to(torch.float32).reshape(-1).contiguous().numpy()
    norm = math.sqrt(clip.sum_of_squares(numbers))
    if not math.isfinite(norm):
        return False
    scale = steps / max(bound, norm)
    while not clip.add_within(numbers, scale, steps, sums):  # the norm was rounded down, by a last digit
        scale *= 1 - 1e-9
    return norm <= bound


@dataclass(frozen=True)
class Fixed:
    """The same bound in every round."""

    bound: float

    def __post_init__(self) -> None:
        if not SMALLEST <= self.bound <= LARGEST:
            raise ConfigError(f"--dp-clip must be {SMALLEST:g} to {LARGEST:g}, got {self.bound:g}")

    def __str__(self) -> str:
        return exact(self.bound)

    def noise_of_updates(self, sigma: float, cohort: int) -> float:
        """What the sum of updates is noised with, of sigma in all."""
        return sigma

    def next(self, bound: float, within: int, sigma: float, cohort: int, entropy: Entropy) -> float:
        """The bound of the next round, `within` the count of those within less that of those beyond."""
        return bound


@dataclass(frozen=True)
class Adaptive(Fixed):
    """The median norm, followed; `bound` is where it starts."""

    bound: float = 1.0

    def __str__(self) -> str:
        return "adaptive"

    def noise_of_bits(self, sigma: float, cohort: int) -> float:
        """s_b: never below sigma, so that the bit takes a quarter of what is told, at most.

        Nor wider than can be drawn, in cohorts of 650 000 and more: `noise_of_updates` counts what it is.
        """
        return max(min(cohort / SHARE, noise.WIDEST / (2 * BIT)), sigma)

    def noise_of_updates(self, sigma: float, cohort: int) -> float:
        return float((sigma**-2 - (2 * self.noise_of_bits(sigma, cohort)) ** -2) ** -0.5)

    def next(self, bound: float, within: int, sigma: float, cohort: int, entropy: Entropy) -> float:
        s = noise.width(2 * self.noise_of_bits(sigma, cohort), BIT)
        told = within * BIT + int(noise.discrete_gaussian(s, (1,), entropy)[0])
        share = told / (2 * BIT * cohort)  # b - 1/2
        return min(max(bound * math.exp(-RATE * share), SMALLEST), LARGEST)


def rule(setting: float | str) -> Fixed:
    """Of `--dp-clip`."""
    return Adaptive() if setting == "adaptive" else Fixed(float(setting))
