"""signSGD with majority vote: a bit a coordinate up, and a bit a coordinate down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, RoundInfo, Where, only_block
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.optimisers import State
from narrowcast.methods.replay import Replay, ReplayServer, Step
from narrowcast.numerics.keyed import Key
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import signs
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="D bits",
    down="D bits a step missed, and its rate; or all D numbers",
    client="nothing",
    server="D numbers, the last steps",
    formula="theta <- theta - lr sign(sum_w sign(v_w))",
    source="Bernstein et al. 2018",
    text="""
Every client sends the signs of its update, the server the sign of their weighted sum: `theta <- theta - lr
s` with `s = sign(sum_w sign(v_w))`. Ties and zeros count as +1. The length of a step does not depend on the
gradient, so the rate is what a coordinate moves in a round. With clients of a single class the votes of a
round are not alike in size, and the majority need not point along the mean gradient: the method is known to
suffer there.
""",
)


@dataclass(frozen=True)
class SignSGD(Replay):
    name: ClassVar[str] = "signsgd"
    stride: ClassVar[float] = 0.03
    blocks_a_step: ClassVar[int] = 2  # the signs, the rate

    @property
    def linear(self) -> bool:
        return False

    def slower(self, trial: int, run: int, epoch: int) -> float:
        """sqrt(run / trial): steps as long however small the gradient never settle, and after n of them what
        is still to go and the noise are alike at a rate that falls as 1 / sqrt(n)."""
        return math.sqrt(run / trial)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        return private, wire.payload([signs.block(v)])

    def zero(self, server: ReplayServer) -> Accumulator:
        return Accumulator(torch.zeros(1, server.model.base.numel()))

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return 0, signs.read(only_block(up), acc.total.shape[1])

    def make(self, server: ReplayServer, acc: Accumulator, round: RoundInfo) -> tuple[State, Step]:
        return {}, (signs.block(acc.total[0]), wire.block(torch.tensor([round.rate])))

    def take(self, model: Model, step: Step) -> Model:
        vote, rate = signs.read(step[0], model.base.numel()), step[1].numbers(1)
        return replace(model, base=model.base - vote * rate)


ENTRY = Entry(SignSGD, ABOUT)
