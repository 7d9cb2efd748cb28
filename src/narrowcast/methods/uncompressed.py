"""No compression: D numbers up and D numbers down. The yardstick, and the carrier of FedAvg."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import (
    DENSE,
    Accumulator,
    Method,
    Model,
    Private,
    RoundInfo,
    Server,
    Where,
    finite,
    mean,
    only_block,
)  # fmt: skip
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.optimisers import SGD, Optimiser, State
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload, WireError

ABOUT = About(
    up="D numbers",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="theta <- theta - lr (1/W) sum_w v_w",
    source="FedSGD: McMahan et al. 2017",
    text="""
Everything is sent: `theta <- theta - lr (1/W) sum_w v_w`. The yardstick of all ratios. Stopped early
(`--epochs`, the schedule shrinks with it) it is also a way to save bytes, and a better one than some that
compress.
""",
)


@dataclass(frozen=True)
class DenseServer(Server):
    version: int
    weights: Tensor  # (D,)
    optimiser: State


@dataclass(frozen=True)
class Uncompressed(Method[DenseServer]):
    """theta -= lr (1/W) sum_w v_w, with theta and v_w sent whole."""

    name: ClassVar[str] = "uncompressed"
    vectors: ClassVar[bool] = True
    whole_model: ClassVar[bool] = True
    optimiser: Optimiser = field(default_factory=SGD)

    @property
    def on_device(self) -> bool:
        """All D numbers cross in every message; who sends others makes them on the host."""
        return type(self).compress is Uncompressed.compress

    def server(self, theta0: Tensor, layout: Layout) -> DenseServer:
        here = theta0.cpu()
        return DenseServer(0, here, self.optimiser.init(here))

    def theta(self, server: DenseServer, out: Tensor | None = None) -> Tensor:
        return server.weights

    def lag(self, server: DenseServer, have: int | None) -> int:
        return 0

    def download(self, server: DenseServer, have: int | None) -> Payload:
        return wire.payload([wire.block(server.weights)], kind=DENSE)

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        if down.kind != DENSE or len(down.blocks) != 1:
            raise WireError(
                f"expected the whole model in one block, got kind {down.kind}, {len(down.blocks)} blocks"
            )
        theta = down.blocks[0].numbers(model.base.numel()).to(model.base.device)
        return replace(model, version=version), theta if out is None else out.copy_(theta)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        return private, wire.payload([wire.block(v)])

    def zero(self, server: DenseServer) -> Accumulator:
        return Accumulator(torch.zeros(1, server.weights.numel()))

    @property
    def incomparable(self) -> str:
        reads_otherwise = type(self).terms is not Uncompressed.terms
        return super().incomparable if reads_otherwise else ""

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return 0, only_block(up).numbers(acc.total.shape[1])

    def step(self, server: DenseServer, acc: Accumulator, round: RoundInfo) -> DenseServer:
        if acc.weight == 0:
            return server
        state, delta = self.optimiser.step(server.optimiser, mean(acc)[0], round.rate)
        return replace(
            server, version=server.version + 1, weights=finite(server.weights - delta), optimiser=state
        )

    def state(self, server: DenseServer) -> dict[str, Any]:
        return {"version": server.version, "weights": server.weights, "optimiser": server.optimiser}

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> DenseServer:
        return DenseServer(state["version"], state["weights"], state["optimiser"])


ENTRY = Entry(Uncompressed, ABOUT)
