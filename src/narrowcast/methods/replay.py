"""Downloads of the steps a client has missed, to be taken again in order.

The base of methods whose steps are small messages (signSGD, STC, PowerSGD, ...). A step is a few blocks, with
the rate already in their numbers; `take` turns model and step into the next model with operations that round
alike everywhere, and both sides take it from the same bytes. Older steps than the whole model is worth are
forgotten: who needs them is sent the model. One that no message can hold is worth any number of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import DENSE, LOG, Accumulator, Method, Model, RoundInfo, Server, finite
from narrowcast.methods.optimisers import State
from narrowcast.numerics.flat import Layout
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Block, Payload, WireError

Step = tuple[Block, ...]


@dataclass(frozen=True)
class ReplayServer(Server):
    version: int
    model: Model  # as a client at this version has it
    steps: tuple[Step, ...]  # the last ones, as many as are smaller than the model
    state: State  # what the method's step keeps


@dataclass(frozen=True)
class Replay(Method[ReplayServer]):
    blocks_a_step: ClassVar[int] = 1

    @abstractmethod
    def take(self, model: Model, step: Step) -> Model:
        """The model after a step, version aside; a step that does not fit is a WireError."""

    @abstractmethod
    def make(self, server: ReplayServer, acc: Accumulator, round: RoundInfo) -> tuple[State, Step]:
        """(new state, the round's step as it is sent)."""

    def initial(self, theta0: Tensor) -> State:
        """What `make` keeps, before the first round."""
        return {}

    def server(self, theta0: Tensor, layout: Layout) -> ReplayServer:
        model = replace(self.newcomer(theta0, layout), version=0)
        return ReplayServer(0, model, (), self.initial(theta0))

    def theta(self, server: ReplayServer, out: Tensor | None = None) -> Tensor:
        return server.model.base

    def side(self, server: ReplayServer) -> Tensor | None:
        return server.model.side

    def lag(self, server: ReplayServer, have: int | None) -> int | None:
        """How many steps the client lacks; None: more than are kept, or than the model is worth."""
        missed = server.version - (have if have is not None and 0 <= have <= server.version else 0)
        return missed if missed <= len(server.steps) else None

    def download(self, server: ReplayServer, have: int | None) -> Payload:
        lag = self.lag(server, have)
        if lag is None:
            whole = [server.model.base] + ([server.model.side] if server.model.side is not None else [])
            return wire.payload([wire.block(part) for part in whole], kind=DENSE)
        missed = server.steps[len(server.steps) - lag :]
        return wire.payload([block for step in missed for block in step], kind=LOG)

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        blocks, size = down.blocks, self.blocks_a_step
        if down.kind == DENSE and len(blocks) == 1 + (model.side is not None):
            side = None if model.side is None else blocks[1].numbers(model.side.numel())
            model = replace(model, base=blocks[0].numbers(model.base.numel()), side=side)
        elif down.kind == LOG and len(blocks) == size * (version - (model.version or 0)):
            for i in range(0, len(blocks), size):
                model = self.take(model, tuple(blocks[i : i + size]))
        else:
            raise WireError(
                f"a client at version {model.version} cannot use {len(blocks)} blocks of kind {down.kind} "
                f"for version {version}: it must ask again as a newcomer"
            )
        return replace(model, version=version), model.base if out is None else out.copy_(model.base)

    def step(self, server: ReplayServer, acc: Accumulator, round: RoundInfo) -> ReplayServer:
        if acc.weight == 0:
            return server
        state, step = self.make(server, acc, round)
        version = server.version + 1
        model = replace(self.take(server.model, step), version=version)
        finite(model.base)
        return ReplayServer(version, model, self._worth(model, (*server.steps, step)), state)

    def _worth(self, model: Model, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """The last of the steps that together are smaller than the whole model, and fit into one message."""
        parts = [model.base] + ([model.side] if model.side is not None else [])
        whole = sum(wire.whole_size(part.numel()) for part in parts)
        steps = steps[max(0, len(steps) - wire.MAX_BLOCKS // self.blocks_a_step) :]
        while wire.blocks_size([len(block.data) for step in steps for block in step]) > whole:
            steps = steps[1:]
        return steps

    def state(self, server: ReplayServer) -> dict[str, Any]:
        return {
            "version": server.version,
            "base": server.model.base,
            "side": server.model.side,
            "steps": [[(b.format, _bytes(b.data)) for b in step] for step in server.steps],
            "state": server.state,
        }

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> ReplayServer:
        model = replace(
            self.newcomer(theta0, layout), version=state["version"], base=state["base"], side=state["side"]
        )
        steps = tuple(
            tuple(Block(format, data.numpy().tobytes()) for format, data in step) for step in state["steps"]
        )
        return ReplayServer(state["version"], model, self._worth(model, steps), state["state"])


def _bytes(data: bytes) -> Tensor:
    """Bytes as a tensor, which a checkpoint can hold."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
