"""Random low rank: a client sends B = A^T V of every matrix V, for a random A that both sides know.

A is (n, r) with E[A A^T] = I, so A B is V on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where, only_block, own_route
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.matrices import Matrix, matrices
from narrowcast.methods.uncompressed import DenseServer, Uncompressed
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.process import own_settings
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="r m numbers of an n x m matrix; vectors whole",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="send B = A^T V, A random from the key;  theta <- theta - lr mean(A B)",
    source="Konecny et al. 2016, structured updates",
    text="""
In every round each client has a random matrix A (n, r) of its own for every parameter V (n, m) (first
dimension by the rest), from a key that both sides know; its entries are normal of variance 1/r, so
`E[A A^T] = I`. The client sends `B = A^T V` (r, m) and the server adds `A B`, which is V on average. `A^T V`
is the gradient of the loss with respect to B at `theta + A B`, so this is the paper's update with A fixed and
B trained by one step. The error is `E|A A^T V - V|^2 = (n + 1)/r |V|^2`. Vectors, and matrices of no more
than r rows, are sent whole, and the whole model is sent down. In the paper it learns worse than a random mask
of the same size.
""",
)


@dataclass(frozen=True)
class LowRankServer(DenseServer):
    layout: Layout


@dataclass(frozen=True)
class RandomLowRank(Uncompressed):
    name: ClassVar[str] = "random-low-rank"
    key: Key = 0
    rank: int = 2
    uplink: str = "f32"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        formats.by_name(self.uplink)

    @property
    def linear(self) -> bool:
        return False  # every client has its own A: payloads do not add up

    @property
    def setting(self) -> str:
        return f"r={self.rank}"

    def route(self, key: Key) -> int:
        return own_route(key)

    def factors(self, route: int, layout: Layout | None, D: int) -> list[tuple[Matrix, Tensor | None]]:
        """(place, A (n, r)) of every parameter; no A: it is sent whole."""
        found = matrices(layout, D)
        rows = [m.rows if self.rank < m.rows and m.columns > 1 else 0 for m in found]
        key = keyed.derive(self.key, Purpose.SUBSPACE, route)
        z = torch.from_numpy(keyed.normals(key, Purpose.NORMALS, sum(rows) * self.rank))
        split = torch.split((z / math.sqrt(self.rank)).view(-1, self.rank), rows)
        return [(m, A if len(A) else None) for m, A in zip(found, split, strict=True)]

    def server(self, theta0: Tensor, layout: Layout) -> DenseServer:
        matrices(layout, theta0.numel())  # it must fit
        return LowRankServer(0, theta0, self.optimiser.init(theta0), layout)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        route = self.route(key)
        parts = [
            (m.of(v) if A is None else A.T @ m.of(v)).reshape(-1)
            for m, A in self.factors(route, model.layout, v.numel())
        ]
        return private, wire.payload([wire.block(torch.cat(parts), self.uplink, key)], route=route)

    def zero(self, server: DenseServer) -> Accumulator:
        assert isinstance(server, LowRankServer)
        return replace(super().zero(server), layout=server.layout)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        factors = self.factors(up.route, acc.layout, acc.total.shape[1])
        sizes = [m.size if A is None else self.rank * m.columns for m, A in factors]
        parts = torch.split(only_block(up).numbers(sum(sizes)), sizes)
        with own_settings(threads=1):  # products round otherwise with other threads
            expanded = [
                B if A is None else (A @ B.view(self.rank, -1)).view(-1)
                for (_, A), B in zip(factors, parts, strict=True)
            ]
        return 0, torch.cat(expanded)

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> DenseServer:
        return LowRankServer(state["version"], state["weights"], state["optimiser"], layout)


ENTRY = Entry(RandomLowRank, ABOUT)
