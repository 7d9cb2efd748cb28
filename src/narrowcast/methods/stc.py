"""Sparse ternary compression: the k largest coordinates, all of one size, both up and down.

x = v + error,  send mu sign(x) on the k places where |x| is largest, mu their mean size,  error <- x - sent
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, RoundInfo, Where, finite, mean, only_block
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.optimisers import State
from narrowcast.methods.replay import Replay, ReplayServer, Step
from narrowcast.methods.topk import check_k, count
from narrowcast.numerics.keyed import Key
from narrowcast.numerics.largest import largest
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import ternary
from narrowcast.wire.messages import Block, Payload

ABOUT = About(
    up="k positions and signs, one size",
    down="the same for every step missed; or all D numbers",
    client="D numbers of error",
    server="D numbers, D of error, the last steps",
    formula="send mu sign(x) on top_k(x), x = v + e;  e <- x - sent;  the server does the same to its step",
    source="Sattler et al. 2019",
    text="""
With `x = v + e_i` client i sends `s_i = mu sign(x)` on the k places where `|x|` is largest, `mu = (1/k) sum
|x|` over them, and keeps `e_i <- x - s_i`. The server treats its own step alike: `y = lr (1/W) sum_w s_w +
e`, `theta <- theta - t` with `t = ternary_k(y)`, `e <- y - t`. A message is a number, k signs, and the gaps
between the k positions as Golomb codes, about `log2(D/k) + 2.5` bits a coordinate. Downloads have the same
k as uploads, as in the paper: a client replays every step it missed, and a larger k would make all but the
most recent visitors need the whole model. It is made for clients whose data differ, and known to hold there
where signSGD fails. `--no-error-feedback` switches the clients' error off; the server's stays, for nobody
could make up for what its step leaves out.
""",
)


@dataclass(frozen=True)
class STC(Replay):
    name: ClassVar[str] = "stc"
    k: int | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        check_k(self.k)

    @property
    def linear(self) -> bool:
        return False

    @property
    def stateful(self) -> bool:
        return self.error_feedback

    @property
    def setting(self) -> str:
        return f"k={self.k}" if self.k else ""

    def initial(self, theta0: Tensor) -> State:
        return {"error": torch.zeros_like(theta0)}

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        block, error = self._ternary(v + private["error"] if private else v)
        return {"error": error} if self.error_feedback else private, wire.payload([block])

    def _ternary(self, x: Tensor) -> tuple[Block, Tensor]:
        """(mu sign(x) on the k largest, what that leaves of x); a zero among the k counts as positive."""
        D = x.numel()
        k = count(self.k, D)
        where = largest(x, k)
        block = ternary.block(where, x[where], D)
        where, sent = ternary.read(block, D, k)
        return block, x.index_copy(0, where, x[where] - sent)

    def zero(self, server: ReplayServer) -> Accumulator:
        return Accumulator(torch.zeros(1, server.model.base.numel()))

    def upload_numbers(self, D: int) -> int:
        return count(self.k, D)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        D = acc.total.shape[1]
        where, numbers = ternary.read(only_block(up), D, count(self.k, D))
        return (0, where), numbers

    def make(self, server: ReplayServer, acc: Accumulator, round: RoundInfo) -> tuple[State, Step]:
        block, error = self._ternary(finite(mean(acc)[0] * round.rate + server.state["error"]))
        return {"error": error}, (block,)

    def take(self, model: Model, step: Step) -> Model:
        D = model.base.numel()
        where, numbers = ternary.read(step[0], D, count(self.k, D))
        return replace(model, base=model.base.index_copy(0, where, model.base[where] - numbers))


ENTRY = Entry(STC, ABOUT)
