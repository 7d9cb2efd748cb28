"""The mean over the workers through an all-reduce, in float32 or in few bits a number.

An all-reduce adds, so codes whose length varies cannot go through it; whole numbers can. With a step s common
to the workers, worker w rounds its numbers on a lattice that is shifted by a dither u_w in (-1/2, 1/2),

    k_w = round(x_w / s + u_w),    s = max_w |x_w| / L,    so that |k_w| <= L whatever the dither,

and all read (s / W) (sum_w k_w - sum_w u_w): of mean mean_w x_w whatever x is, for s looks at x alone.
Nothing is clipped. n numbers share a word of 64 bits (`numerics.kernels.packed`), L being the largest with
which their sums fit. The u_w of a number are W places evenly spread around the circle, at a random angle:
each is uniform, and the error of worker w alone has the variance s^2 / 12. Where the workers' numbers are
alike, the error of the mean is that of a lattice W times finer, (s / W)^2 / 12 instead of s^2 / (12 W).

Where each worker keeps what rounding took away, e_w = x_w - s (k_w - u_w), and adds it to its next numbers,
fewer levels do: the step is then chosen for the bulk of the numbers, (L + 1/2) s = 3 max_w rms(x_w) if that
is less, and what lies further out is cut, and kept like the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from narrowcast.numerics import keyed
from narrowcast.numerics.flat import all_finite
from narrowcast.numerics.kernels import packed
from narrowcast.numerics.keyed import Key, Purpose

PLAIN_BITS = 32.0  # what stands for float32
FEWEST, MOST = 1.6, 16.0  # bits a number that can be asked for
WORD = 64
DEVIATIONS = 3.0  # beyond which numbers are cut, where they may be
GREATEST = torch.finfo(torch.float32).max


class Workers(Protocol):
    """Those who take the step together: W of them, this one being `rank`."""

    count: int
    rank: int

    def add(self, x: Tensor) -> Tensor:
        """The sum of all workers' x, in memory of its own."""

    def most(self, *x: float) -> list[float]:
        """The largest of all workers' x, for each of them."""


class Packing(NamedTuple):
    """So many numbers, digits of a word, with |k| <= levels."""

    digits: int
    levels: int
    radix: int


def check_bits(bits: float) -> None:
    if not (FEWEST <= bits <= MOST or bits == PLAIN_BITS):
        raise ValueError(
            f"bits must be {FEWEST:g} to {MOST:g}, or {PLAIN_BITS:g} (float32), got {bits}: 4 is a good "
            "choice for two workers, and one bit more for each doubling"
        )


def packing(bits: float, workers: int) -> Packing:
    """How numbers of at most so many bits lie in a word: as many levels as the sums of W workers allow."""
    digits = int(WORD / bits + 1e-9)  # 3.2 means 20 of them
    radix = _root(1 << WORD, digits)
    levels = (radix - 1) // (2 * workers)
    if levels < 1:
        fit = next(n for n in range(digits, 0, -1) if _root(1 << WORD, n) > 2 * workers)
        raise ValueError(
            f"the sums of {workers} workers take {2 * workers + 1} values at least, which bits={bits:g} has "
            f"no room for: give bits={math.floor(WORD / fit * 100) / 100:g} or more"
        )
    return Packing(digits, levels, 2 * workers * levels + 1)


def mean(x: Tensor, workers: Workers, bits: float, key: Key, cut: bool = False) -> tuple[Tensor, Tensor]:
    """(x as this worker's share is read, the mean of all workers' shares), (d,) each.

    With `cut` numbers beyond three deviations may be cut: the caller sends what is missing another time.
    Where a worker has a number that is not finite, or too large for what is read to be, the mean is NaN for
    all.
    """
    if bits == PLAIN_BITS:
        return x, workers.add(x) / workers.count
    p = packing(bits, workers.count)
    d = x.numel()
    largest = float(x.abs().max()) if all_finite(x) else math.inf
    if cut:
        most, rms = workers.most(largest, float(x.double().norm()) / math.sqrt(d))
        step = min(most / p.levels, DEVIATIONS * rms / (p.levels + 0.5)) or most / p.levels
    else:
        [most] = workers.most(largest)
        step = most / p.levels
    if most == 0.0:
        return x, torch.zeros_like(x)
    if not most + most / p.levels <= GREATEST:
        return x, torch.full_like(x, math.nan)
    places, shift = keyed.words(key, Purpose.DITHER, d), np.uint32((workers.rank << 32) // workers.count)
    words = np.empty(-(-d // p.digits), np.uint64)
    sent, read = torch.empty_like(x), torch.empty_like(x)
    layout = (np.int64(p.levels), np.uint64(p.radix), p.digits)
    packed.write(x.numpy(), step, places, shift, *layout, words, sent.numpy())
    total = workers.add(torch.from_numpy(words.view(np.int64))).numpy().view(np.uint64)
    packed.read_mean(total, step, places, workers.count, *layout, read.numpy())
    return sent, read


def _root(x: int, n: int) -> int:
    """The largest r with r^n <= x."""
    r: int = round(x ** (1 / n))
    while r**n > x:
        r -= 1
    while (r + 1) ** n <= x:
        r += 1
    return r
