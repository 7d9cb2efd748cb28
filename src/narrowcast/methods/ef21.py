"""EF21: clients and server keep estimates of the gradients, and only the largest corrections are sent.

c_i = top_k(v_i - g_i),  g_i <- g_i + c_i,  g <- g + (1/N) sum_i c_i,  the server steps on g
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, RoundInfo, Where, finite, mean
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.topk import check_k, count, sparse_terms
from narrowcast.methods.uncompressed import DenseServer, Uncompressed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="k values and their positions",
    down="D numbers",
    client="D numbers: its estimate",
    server="D numbers, and D of the mean estimate",
    formula="c_i = top_k(v_i - g_i);  g_i <- g_i + c_i;  g <- g + (1/N) sum_i c_i;  theta <- theta - lr g",
    source="Richtarik et al. 2021; partial participation: EF21-PP, Fatkhullin et al. 2021",
    text="""
Client i keeps an estimate `g_i` of its gradient, zero at first, and sends the k largest coordinates of what
the estimate lacks, `c_i = top_k(v_i - g_i)`; both sides add them, so the server's `g` is always the mean of
all N estimates, `g <- g + (1/N) sum_i c_i` over those that came, and it steps on `g` with its optimiser. As
`g` is dense, the whole model is sent down.

The estimates of those who do not come stay as they were. With 12 000 clients of which 100 come in a round,
`g` starts at zero and fills over the first epoch, in which steps are too short (in its t-th round by t/120);
from then on its entries are on average half an epoch old, and with the k largest coordinates of one visit an
epoch a client's estimate follows its gradient slowly. The method is made for few clients that always come,
where it converges without the bounds that error feedback needs; here it behaves like a momentum of about an
epoch, and wants small rates. A client that loses `g_i` begins at zero, while its old estimate stays in `g`
for good: `g` is then off by `g_i / N`, since the server keeps the mean alone and cannot take it out. Every
client weighs the same: a mean over all N by examples would need the weights of those who never came, so
`--weighting examples` is refused.
""",
)


@dataclass(frozen=True)
class EF21Server(DenseServer):
    estimate: Tensor  # (D,) g


@dataclass(frozen=True)
class EF21(Uncompressed):
    name: ClassVar[str] = "ef21"
    weighted: ClassVar[bool] = False  # g is a mean over all N: the server knows the weights of those who come
    clients: int | None = None  # N, all there are; None, which no run takes: as many as came
    k: int | None = None
    uplink: str = "f32"

    def __post_init__(self) -> None:
        check_k(self.k)
        formats.by_name(self.uplink)
        if self.clients is not None and self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")

    @property
    def linear(self) -> bool:
        return False

    @property
    def stateful(self) -> bool:
        return True

    def slower(self, trial: int, run: int, epoch: int) -> float:
        """g fills over the first epoch: at the end of the run it is longer than at the trial's by this."""
        return min(run, epoch) / min(trial, epoch)

    @property
    def setting(self) -> str:
        return f"k={self.k}" if self.k else ""

    def server(self, theta0: Tensor, layout: Layout) -> DenseServer:
        return EF21Server(0, theta0, self.optimiser.init(theta0), torch.zeros_like(theta0))

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        g = private["estimate"] if private else torch.zeros_like(v)
        lacks = v - g
        packed, where, sent = sparse.pack_largest(lacks, count(self.k, v.numel()), self.uplink, key)
        return {"estimate": g.index_add(0, where, sent)}, wire.payload(packed)

    def upload_numbers(self, D: int) -> int:
        return count(self.k, D)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return sparse_terms(acc, up, count(self.k, acc.total.shape[1]))

    def step(self, server: DenseServer, acc: Accumulator, round: RoundInfo) -> DenseServer:
        if acc.weight == 0:
            return server
        assert isinstance(server, EF21Server)
        share = acc.count / (self.clients or acc.count)
        estimate = finite(server.estimate + mean(acc)[0] * share)
        state, delta = self.optimiser.step(server.optimiser, estimate, round.rate)
        weights = finite(server.weights - delta)
        return EF21Server(server.version + 1, weights, state, estimate)

    def state(self, server: DenseServer) -> dict[str, Any]:
        assert isinstance(server, EF21Server)
        return {**super().state(server), "estimate": server.estimate}

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> DenseServer:
        return EF21Server(**state)


ENTRY = Entry(EF21, ABOUT)
