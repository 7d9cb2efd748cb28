"""Downloads of what has changed: the coordinates that moved since the client's version, with their values.

The base of methods whose steps are sparse (Top-K, FetchSGD, ...). The server remembers at which version each
coordinate last moved. Values are sent as they are, not as differences, so both sides agree bit for bit; where
the whole model is smaller, it is sent instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from narrowcast.methods.base import DENSE, LOG, Accumulator, Method, Model, RoundInfo, Server, finite, mean
from narrowcast.methods.optimisers import SGD, Optimiser, State
from narrowcast.numerics.flat import Layout
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.messages import Payload, WireError


@dataclass(frozen=True)
class ChangesServer(Server):
    version: int
    weights: Tensor  # (D,)
    moved: Tensor  # (D,) int32: the version that gave each coordinate its value
    state: State  # what the method's step keeps


@dataclass(frozen=True)
class Changes(Method[ChangesServer]):
    optimiser: Optimiser = field(default_factory=SGD)

    def initial(self, theta0: Tensor) -> State:
        """What the step keeps, before the first round."""
        return self.optimiser.init(theta0)

    def delta(self, state: State, acc: Accumulator, D: int, round: RoundInfo) -> tuple[State, Tensor]:
        """(new state, what to subtract from theta): the mean, through the server's optimiser."""
        return self.optimiser.step(state, mean(acc)[0], round.rate)

    def server(self, theta0: Tensor, layout: Layout) -> ChangesServer:
        moved = torch.zeros(theta0.numel(), dtype=torch.int32)
        return ChangesServer(0, theta0, moved, self.initial(theta0))

    def theta(self, server: ChangesServer, out: Tensor | None = None) -> Tensor:
        return server.weights

    def lag(self, server: ChangesServer, have: int | None) -> int:
        """The version to start from; whoever claims an impossible one has theta0."""
        return have if have is not None and 0 <= have <= server.version else 0

    def download(self, server: ChangesServer, have: int | None) -> Payload:
        D = server.weights.numel()
        newer = server.moved > self.lag(server, have)
        where = torch.from_numpy(np.flatnonzero(newer.numpy()))  # torch.nonzero takes several times as long
        whole = wire.whole_size(D)
        if 4 * len(where) + len(where) // 8 < whole:  # a position takes a bit at least
            changed = [sparse.positions(where, D), wire.block(server.weights[where])]
            if wire.blocks_size([len(b.data) for b in changed]) < whole:
                return wire.payload(changed, kind=LOG)
        return wire.payload([wire.block(server.weights)], kind=DENSE)

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        D, base = model.base.numel(), model.base
        if down.kind == DENSE and len(down.blocks) == 1:
            base = down.blocks[0].numbers(D)
        elif down.kind == LOG and len(down.blocks) == 2:
            where, values = sparse.read(down.blocks[0], down.blocks[1], D)
            base = base.index_copy(0, where, values)
        else:
            raise WireError(f"{len(down.blocks)} blocks of kind {down.kind} are no list of changes")
        return replace(model, version=version, base=base), base if out is None else out.copy_(base)

    def zero(self, server: ChangesServer) -> Accumulator:
        return Accumulator(torch.zeros(1, server.weights.numel()))

    def step(self, server: ChangesServer, acc: Accumulator, round: RoundInfo) -> ChangesServer:
        if acc.weight == 0:
            return server
        version = server.version + 1
        state, delta = self.delta(server.state, acc, server.weights.numel(), round)
        weights = finite(server.weights - delta)
        differ = weights.view(torch.int32) != server.weights.view(torch.int32)  # 0.0 is not -0.0 in a digest
        moved = torch.where(differ, version, server.moved)
        return ChangesServer(version, weights, moved, state)

    def state(self, server: ChangesServer) -> dict[str, Any]:
        return {
            "version": server.version,
            "weights": server.weights,
            "moved": server.moved,
            "state": server.state,
        }

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> ChangesServer:
        return ChangesServer(**state)
