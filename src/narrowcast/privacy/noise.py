"""Noise that nobody can foresee: discrete Gaussians from the system's generator, never from the run's keys.

Floating-point noise gives itself away by its low bits (Mironov 2012), so everything secret is whole numbers:
an update is clipped onto a grid of R steps to the clipping bound, sums are exact, and the noise is integers
y with P(y) ~ exp(-y^2 / (2 s^2)), s = sigma R rounded up. R is RADIUS for sigma up to about 64, and beyond it
as many steps as keep s within WIDEST. Such noise protects as that on the real line does (Canonne, Kamath and
Steinke 2020: the same Renyi divergences at most). The generator is the operating system's: whoever knows the
run's key knows nothing of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels import discrete

Integers = NDArray[np.int64]
Entropy = Callable[[int], bytes]  # so many random bytes
RADIUS = 1 << 20  # steps of the grid to a clipping bound, at most
WIDEST = 1 << 26  # the largest s: squares of 31 s must fit into 63 bits
WORDS = 13  # of 64 bits, that a number takes: 12.4 on average; more are asked for where they end


def radius(sigma: float) -> int:
    """Steps of the grid to a clipping bound, as many as noise of sigma bounds leaves room for."""
    return max(1, min(RADIUS, int(WIDEST / sigma) - 1))


def width(sigma: float, steps: int) -> int:
    """s: sigma bounds of so many steps each, rounded up."""
    s = math.ceil(sigma * steps)
    if not 1 <= s <= WIDEST:
        raise ValueError(f"noise of {sigma:g} bounds of {steps} steps: its width must be 1 to {WIDEST} steps")
    return s


def discrete_gaussian(s: int, shape: tuple[int, ...], entropy: Entropy = os.urandom) -> Integers:
    """Independent integers, P(y) ~ exp(-y^2 / (2 s^2))."""
    if not 1 <= s <= WIDEST:
        raise ValueError(f"the width of discrete noise must be 1 to {WIDEST}, got {s}")
    out, done, left = np.empty(math.prod(shape), np.int64), 0, np.empty(0, np.uint64)
    while done < out.size:
        fresh = np.frombuffer(entropy(8 * (WORDS * (out.size - done) + 64)), np.uint64)
        words = np.concatenate([left, fresh]) if left.size else fresh
        done, used = discrete.gaussian(words, np.int64(s), out, done)
        left = words[used:]
    return out.reshape(shape)


def coins(chance: float, count: int, entropy: Entropy = os.urandom) -> NDArray[np.bool_]:
    """So many independent tosses, each heads with this chance, rounded down to 2^-53."""
    words = np.frombuffer(entropy(8 * count), np.uint64) >> np.uint64(11)
    heads: NDArray[np.bool_] = words < np.uint64(math.floor(chance * 2.0**53))
    return heads
