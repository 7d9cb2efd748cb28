"""Deep gradient compression: Top-K of a locally accumulated momentum, with fewer coordinates as time goes on.

u <- m u + v,  a <- a + u,  send a on the k places where |a| is largest, u and a start there from zero again
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where
from narrowcast.methods.changes import Changes, ChangesServer
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.topk import check_k, count, sparse_terms
from narrowcast.numerics.keyed import Key
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.messages import Payload, WireError

ABOUT = About(
    up="k values and their positions; more while warming up",
    down="the coordinates changed since the last visit, or all D",
    client="D numbers of momentum, D of what is not sent yet",
    server="D numbers, and when each changed",
    formula="u <- m u + v;  a <- a + u;  send top_k(a);  u, a <- 0 where sent",
    source="Lin et al. 2018",
    text="""
Client i keeps a momentum `u_i <- m u_i + v` (`--momentum`) and its sum `a_i <- a_i + u_i`, sends the k
largest coordinates of `a_i`, and sets `u_i` and `a_i` to zero there: a momentum older than what was sent
would push the wrong way (momentum factor masking). A lossy `--uplink` leaves its rounding error in `a_i`.
The server steps on the mean with plain SGD: the momentum is the clients'. In the first `--warmup` versions
of the model the number of coordinates falls geometrically from D/4 to k. Clipping of local gradients, which
the paper adds for recurrent networks, is left out. The momentum is made for workers that come in every
round: there a gradient counts up to `1 / (1 - m)` times in the end. A client that comes once an epoch adds
to a momentum as old as its last visit, and the method then has little over Top-K.
""",
)
START = 4  # the warm-up begins with one coordinate in so many


@dataclass(frozen=True)
class DGC(Changes):
    name: ClassVar[str] = "dgc"
    k: int | None = None
    momentum: float = 0.9
    warmup: int = 0
    uplink: str = "f32"

    def __post_init__(self) -> None:
        check_k(self.k)
        formats.by_name(self.uplink)
        if not 0 <= self.momentum < 1 or self.warmup < 0:
            raise ValueError(
                f"need 0 <= momentum < 1 and warmup >= 0, got momentum {self.momentum}, warmup {self.warmup}"
            )

    @property
    def linear(self) -> bool:
        return False

    @property
    def stateful(self) -> bool:
        return True

    @property
    def setting(self) -> str:
        return f"k={self.k}" if self.k else ""

    def count(self, D: int, version: int) -> int:
        """How many coordinates a client at this version sends."""
        return warming(count(self.k, D), D // START, self.warmup, version)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        u = private["u"] * self.momentum + v if private else v
        a = private["a"] + u if private else v
        version = model.version or 0
        packed, where, sent = sparse.pack_largest(a, self.count(v.numel(), version), self.uplink, key)
        left = a[where] - sent  # what rounding kept back; nothing for f32
        private = {"u": u.index_fill(0, where, 0.0), "a": a.index_copy(0, where, left)}
        return private, wire.payload(packed, stage=version)

    def zero(self, server: ChangesServer) -> Accumulator:
        return Accumulator(torch.zeros(1, server.weights.numel()), stage=server.version)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        if up.stage != acc.stage:
            raise WireError(f"an update for version {up.stage}: the round is at {acc.stage}")
        return sparse_terms(acc, up, self.count(acc.total.shape[1], acc.stage))


@lru_cache(maxsize=256)
def warming(k: int, start: int, warmup: int, version: int) -> int:
    """start^(1 - t) k^t, t = version / warmup, rounded; k from t = 1 on, and where start is no larger.

    In decimals, whose logarithms round alike on every machine: both sides must find the same.
    """
    if version >= warmup or start <= k:
        return k
    c = Context(prec=28)
    first, last = c.ln(Decimal(start)), c.ln(Decimal(k))
    t = c.divide(Decimal(version), Decimal(warmup))
    power = c.add(first, c.multiply(c.subtract(last, first), t))
    return int(c.to_integral_value(c.exp(power)))


ENTRY = Entry(DGC, ABOUT)
