"""The server's side of the intrinsic family: the present stage, and what is left of those before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from narrowcast.methods import logs
from narrowcast.methods.base import RoundInfo, Server
from narrowcast.methods.downlinks import Downlink, Trail
from narrowcast.methods.logs import Log
from narrowcast.methods.optimisers import State
from narrowcast.wire.messages import Block

Fold = Callable[[Tensor, int, Block], Tensor]  # (base, stage, its last Sigma) -> the next base


@dataclass(frozen=True)
class IntrinsicServer(Server):
    version: int
    base: Tensor  # (D,) base_e
    exact: Tensor  # (K, d) Sigma_e as the optimiser has it
    sigma: Tensor  # (K, d) Sigma_e as it is sent: the model
    log: Log  # of finished stages
    epoch: int  # the epoch in which the current stage began
    optimiser: State
    trail: Trail | None = None  # what the downlink has published

    @property
    def stage(self) -> int:
        return self.log.stage

    def due(self, refresh: str | int, round: RoundInfo) -> bool:
        """Whether the stage ends with this round, that the server has just taken a step of."""
        if refresh == "epoch":  # the second half catches up after an empty last round
            return round.epoch_end or round.epoch > self.epoch
        return 0 < int(refresh) <= self.version - self.log.starts[-1]

    def state(self, down: Downlink) -> dict[str, Any]:
        """Base goes with it only where the log does not give it back; else the log is the model."""
        return {
            **({"base": self.base.cpu()} if self.log.folded else {}),
            "version": self.version,
            "exact": self.exact,
            "sigma": self.sigma,
            **self.log.state(),
            "trail": down.state(self.trail),
            "epoch": self.epoch,
            "optimiser": self.optimiser,
        }


def restored(state: dict[str, Any], theta0: Tensor, down: Downlink, fold: Fold) -> IntrinsicServer:
    """The server that had this state."""
    base, log = state.get("base", theta0).to(theta0.device), logs.restored(state)
    for e, final in enumerate(() if log.folded else log.blocks):
        base = fold(base, e, final)
    return IntrinsicServer(
        version=state["version"],
        base=base,
        exact=state["exact"],
        sigma=state["sigma"],
        log=log,
        epoch=state["epoch"],
        optimiser=state["optimiser"],
        trail=down.restore(state.get("trail", {})),
    )
