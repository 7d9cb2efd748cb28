"""QSGD: every number of an update rounded at random to one of a few levels, without bias.

Q(x) = norm sign(x) l / s,  l = s |x| / norm rounded up or down so that E[l] is just that
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where, only_block
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.uncompressed import Uncompressed
from narrowcast.numerics import keyed
from narrowcast.numerics.kernels import quantise
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import elias
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import Block, Payload, WireError

ABOUT = About(
    up="D levels, coded by how rare they are, and a norm for every 512",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="send |x| sign(x_j) l_j / s,  E[l_j] = s |x_j| / |x|, in buckets of 512",
    source="Alistarh et al. 2017",
    text="""
The update is cut into buckets of 512 numbers. Of each bucket x the client sends the 2-norm `|x|`, and for
every number its sign and a level `l` in `0 .. s` (`--levels`): `s |x_j| / |x|` rounded up or down at random
so that `E[l]` is just that. Hence `E[Q(x)] = x`, with a variance of at most `min(512 / s^2, sqrt(512) / s)
|x|^2`. Runs of zeros and levels are written as Elias codes. The paper's sparse end, s = 1, takes 0.4 bits a
number (of normal ones) and may add 22 times the square of the gradient as noise; its dense end, s =
sqrt(512) = 22, takes 2.8 bits and adds at most as much again. The default lies between, s = 7: 1.5 bits,
and all that a sign and three bits can say; four bits are what most of the paper's networks are trained
with, in a variant that scales by the largest number instead of the norm and is not quite what its theorems
are about. Nothing is kept from round to round: rounding favours no side, and the mean over many clients
takes the noise away. Downloads are the whole model, so the upload soon is the smaller part.
""",
)


@dataclass(frozen=True)
class QSGD(Uncompressed):
    name: ClassVar[str] = "qsgd"
    levels: int = 7
    bucket: int = 512

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= elias.MOST or self.bucket < 1:
            raise ValueError(
                f"need 1 <= levels <= {elias.MOST} and bucket >= 1, got {self.levels} and {self.bucket}"
            )

    @property
    def linear(self) -> bool:
        return False

    @property
    def setting(self) -> str:
        return f"s={self.levels}"

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        D = v.numel()
        norms, levels = np.empty(self._buckets(D), np.float32), np.zeros(D, np.int8)
        words = keyed.words(key, Purpose.ROUNDING, D)
        quantise.quantise(v.contiguous().numpy(), words, self.levels, self.bucket, norms, levels)
        if not np.isfinite(norms).all():
            raise FormatError("a bucket's norm is not finite")
        return private, wire.payload([wire.raw(norms.astype("<f4").tobytes() + elias.pack(levels))])

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return 0, self._read(only_block(up), acc.total.shape[1])

    def _buckets(self, D: int) -> int:
        return -(-D // self.bucket)

    def _read(self, block: Block, D: int) -> Tensor:
        """The D numbers of an upload."""
        data, head = block.raw(), 4 * self._buckets(D)
        if len(data) < head:
            raise WireError(f"{self._buckets(D)} norms take {head} bytes, got {len(data)}")
        norms = np.frombuffer(data, "<f4", self._buckets(D)).astype(np.float32)
        if not np.isfinite(norms).all() or np.signbit(norms).any():
            raise WireError("the norm of a bucket must be a number from 0 on")
        try:
            levels = elias.unpack(data[head:], D, self.levels)
        except FormatError as error:
            raise WireError(str(error)) from None
        numbers = np.empty(D, np.float32)
        if not quantise.dequantise(levels, norms, self.levels, self.bucket, numbers):
            raise WireError("a bucket of norm zero has a number that is not zero")
        return torch.from_numpy(numbers)


ENTRY = Entry(QSGD, ABOUT)
