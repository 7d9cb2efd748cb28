"""Numbers as integers times a step: dithered ones (uploads), and points of a lattice (downloads).

A dithered block is k = round(x / s + u), u uniform in (-1/2, 1/2) from a key that both sides have, and is
read as s (k - u): of mean x, and of error s^2 / 12 whatever x is, as long as s was chosen without looking at
u. A block of points is integers k and a step s for s k. Both are the step (f32) and the code of the integers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.numerics import keyed
from narrowcast.numerics.flat import all_finite
from narrowcast.numerics.kernels import rans
from narrowcast.numerics.kernels.rans import GREATEST
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire.codes import gaussian, integers
from narrowcast.wire.codes.integers import Bins, Integers
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import DITHERED, POINTS, Block, WireError

LEAST = float(np.finfo(np.float32).tiny)
OVERHEAD = 56  # bits of a block beside its numbers': step, table, and what the coder's first state costs
FEWEST, MOST_BITS = 0.25, 16.0  # bits a number that can be asked for
PLAIN_BITS = 32.0  # what stands for float32


class Points(NamedTuple):
    """The numbers s k."""

    step: float
    numbers: Integers

    @property
    def values(self) -> Tensor:
        """s k, each rounded once to float64 and once to float32."""
        return values(self.numbers, self.step)


def values(numbers: NDArray[Any], step: float) -> Tensor:
    """step k of whole numbers k."""
    return torch.from_numpy((numbers * np.float64(step)).astype(np.float32))


def check_bits(name: str, bits: float) -> None:
    if not (FEWEST <= bits <= MOST_BITS or bits == PLAIN_BITS):
        raise ValueError(
            f"{name} must be {FEWEST:g} to {MOST_BITS:g}, or {PLAIN_BITS:g} (float32), got {bits}"
        )


def expected_size(count: int, bits: float) -> int:
    """Bytes of a block of so many numbers, at so many bits each, all of the block included."""
    own = max(bits - OVERHEAD / max(1, count), bits / 2)
    return min(5 + 4 * count, math.ceil((own * count + OVERHEAD) / 8))


def step_of(x: Tensor, bits: float) -> float:
    """The step at which Gaussian numbers of this size take so many bits each, all of the block included.

    It depends on x alone: a step chosen after the dither, or by the coded size, would bias what is read.
    """
    numbers = x.detach().contiguous().numpy().reshape(-1)
    size = math.sqrt(rans.sum_of_squares(numbers) / max(1, numbers.size))
    if not math.isfinite(size):
        raise FormatError("cannot encode a NaN or an infinity")
    if size == 0.0:
        return 0.0
    own = max(bits - OVERHEAD / x.numel(), bits / 2)
    return float(np.float32(min(max(size * gaussian.step_for(own, True), LEAST), GREATEST)))


def dithered(x: Tensor, key: Key, step: float) -> Block:
    """x, rounded on the lattice of this step shifted by the key's dither."""
    exact = x.detach().contiguous().numpy().reshape(-1)
    if step == 0.0:
        if exact.any():
            raise FormatError("a step of 0 is for numbers that are all 0")
        return _block(DITHERED, 0.0, bytes([integers.EQUAL]))
    words = keyed.words(key, Purpose.DITHER, exact.size)
    numbers, bins = np.empty(exact.size, np.int32), np.empty(exact.size, np.uint8)
    if not rans.quantise(exact, step, words, numbers, bins):
        raise FormatError(f"a number is over {rans.MOST} steps of {step:g}, or not finite")
    return _block(DITHERED, step, integers.pack(numbers, bins))


def read_dithered(block: Block, count: int, key: Key) -> Tensor:
    """The `count` numbers s (k - u), float32."""
    step, code = _parts(block, DITHERED)
    words = keyed.words(key, Purpose.DITHER, count)
    bins: Bins = np.empty(count, np.uint8)
    rans.fill_bins(words, bins)
    numbers = _integers(code, count, bins)
    out = np.empty(count, np.float32)
    rans.dequantise(numbers, step, words, out)
    found = torch.from_numpy(out)
    if not all_finite(found):
        raise WireError("a block has a NaN or an infinity")
    return found


def points(point: Points) -> Block:
    return _block(POINTS, point.step, integers.pack(point.numbers))


def read_points(block: Block, count: int) -> Points:
    """`count` points; their values are finite."""
    step, code = _parts(block, POINTS)
    numbers = _integers(code, count, None)
    if count and step * float(max(-int(numbers.min()), int(numbers.max()))) > GREATEST:
        raise WireError("a block has an infinity")
    return Points(step, numbers)


def nearest(exact: Tensor, step: float) -> Points:
    """The points of the lattice of this step that lie nearest to the exact numbers."""
    k = np.rint(exact.detach().numpy().reshape(-1).astype(np.float64) / step)
    if k.size and not np.abs(k).max() <= rans.MOST:
        raise FormatError(f"a number is over {rans.MOST} steps of {step:g}, or not finite")
    return Points(step, k.astype(np.int32))


def _block(format: int, step: float, code: bytes) -> Block:
    return Block(format, np.float32(step).astype("<f4").tobytes() + code)


def _parts(block: Block, format: int) -> tuple[float, bytes]:
    if block.format != format or len(block.data) < 5:
        raise WireError(f"expected a block of format {format}, got {len(block.data)} bytes of {block.format}")
    step = float(np.frombuffer(block.data, "<f4", 1)[0])
    if not (math.isfinite(step) and step >= 0) or math.copysign(1.0, step) < 0:
        raise WireError(f"the step of a lattice must be zero or positive, got {step}")
    return step, block.data[4:]


def _integers(code: bytes, count: int, bins: Bins | None) -> Integers:
    try:
        return integers.unpack(code, count, bins)
    except FormatError as error:
        raise WireError(str(error)) from None
