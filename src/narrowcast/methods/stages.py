"""The server's side of the intrinsic family: the present stage, and what is left of those before it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from narrowcast.methods.base import RoundInfo, Server
from narrowcast.methods.downlinks import Trail
from narrowcast.methods.logs import Log
from narrowcast.methods.optimisers import State


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
