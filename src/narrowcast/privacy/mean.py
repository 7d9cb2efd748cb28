"""The mean under differential privacy: clip every update to C, sum, add noise, divide by the expected cohort.

(sum_w clip(x_w) + N(0, (sigma C)^2)) / W, in every row of every round, whoever came: W is what was planned,
and an update that is missing, refused or not finite counts as zero. So one client moves the sum by C at most,
and nothing else that is told of a round depends on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from narrowcast.aggregates.base import Aggregate, Gathering, Memory
from narrowcast.aggregates.guarantee import Guarantee
from narrowcast.errors import ConfigError
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.privacy import accounting, noise
from narrowcast.privacy.accounting import Exposure
from narrowcast.privacy.clipping import Fixed, add_clipped
from narrowcast.privacy.noise import Entropy, Integers
from narrowcast.wire.messages import Payload, WireError


@dataclass(frozen=True)
class Clipped(Accumulator):
    """A round's sum in whole steps of the grid; `total` only says what shape it has."""

    sums: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # (rows, numbers of a payload)
    bound: float = 1.0
    within: int = 0  # updates that were not shortened, less those that were


@dataclass(frozen=True)
class PrivateMean(Aggregate):
    """Of `noise` clipping bounds, or as much as `epsilon` asks for; with both, epsilon ends the run.

    `entropy` is where noise comes from: the operating system, but in tests.
    """

    name: ClassVar[str] = "mean"
    discreet: ClassVar[bool] = True
    clip: Fixed
    epsilon: float | None = None
    delta: float | None = None  # None: a tenth of 1/clients, rounded down to a power of ten
    noise: float | None = None
    exposure: Exposure | None = None  # what that comes to in a run, see `settled`
    entropy: Entropy = field(default=os.urandom, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.noise is None and self.epsilon is None:
            raise ConfigError("differential privacy takes --dp-epsilon or --dp-noise")
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ConfigError(f"--dp-epsilon must be a positive number, got {self.epsilon:g}")

    def check(self, method: Method[Any], gathering: Gathering) -> None:
        if gathering.weighting != "clients":
            raise ConfigError(
                f"--weighting {gathering.weighting}: differential privacy bounds what one client changes, "
                "and a weight of its own would change that: leave it at clients"
            )
        if gathering.sampling not in accounting.SAMPLING:
            raise ConfigError(
                f"--sampling {gathering.sampling}: everybody who has the run's key knows who is drawn, and a "
                "client may be drawn in every round, so no epsilon holds: choose epoch or poisson"
            )
        if method.stateful or method.probes is not None or not method.vectors:
            raise ConfigError(
                f"--method {method.name}: differential privacy is for updates that are one vector each and "
                "for clients who keep nothing: the intrinsic methods, uncompressed, fedavg, fedprox, qsgd, "
                "drive, random-low-rank"
            )

    def settled(self, gathering: Gathering, rounds: int) -> PrivateMean:
        delta = self.delta if self.delta is not None else accounting.default_delta(gathering.clients)
        who = gathering.sampling, gathering.clients, gathering.cohort
        if self.noise is not None:
            return replace(self, delta=delta, exposure=Exposure(self.noise, delta, *who))
        assert self.epsilon is not None
        noise = accounting.noise_for(self.epsilon, delta, *who, rounds)
        return replace(self, delta=delta, noise=noise, exposure=Exposure(noise, delta, *who))

    def found(self) -> dict[str, Any]:
        return {"dp_noise": self.noise, "dp_delta": self.delta, "dp_clip": str(self.clip)}

    def affordable(self, rounds: int) -> int:
        if self.epsilon is None:
            return rounds
        fits = self._exposure.affordable(self.epsilon, rounds)
        if not fits:
            raise ConfigError(
                f"--dp-epsilon {self.epsilon:g} with --dp-noise {self.noise:g}: the first round would go "
                "over the budget: leave --dp-noise out, and as much is found as it takes"
            )
        return fits

    def spent(self, rounds: int, of: int) -> float:
        return self._exposure.so_far(rounds, of)

    def guarantee(self, rounds: int) -> Guarantee:
        exposure = self._exposure
        return Guarantee(
            epsilon=exposure.epsilon(rounds),
            renyi=exposure.renyi(rounds),
            delta=exposure.delta,
            noise=exposure.noise,
            clip=str(self.clip),
            sampling=exposure.sampling,
        )

    @property
    def _exposure(self) -> Exposure:
        if self.exposure is None:
            raise RuntimeError("a private mean must be settled before a run begins: see Aggregate.settled")
        return self.exposure

    def start(self) -> Memory:
        return {"bound": self.clip.bound}

    def zero(self, method: Method[Any], server: Server, memory: Memory) -> Clipped:
        empty = method.zero(server)
        sums = np.zeros(tuple(empty.total.shape), np.int64)
        return Clipped(empty.total, stage=empty.stage, layout=empty.layout, sums=sums, bound=memory["bound"])

    def add(self, method: Method[Any], acc: Accumulator, up: Payload, weight: float) -> Accumulator:
        assert isinstance(acc, Clipped)
        where, numbers = method.bounded(acc, up)
        if not isinstance(where, int) or numbers.numel() != acc.sums.shape[1]:
            raise WireError(f"an update of {numbers.numel()} numbers: a row takes {acc.sums.shape[1]}")
        within = add_clipped(numbers, acc.bound, self._steps, acc.sums[where])
        return replace(acc, count=acc.count + 1, within=acc.within + (1 if within else -1))

    def total(
        self, method: Method[Any], acc: Accumulator, memory: Memory, round: RoundInfo
    ) -> tuple[Memory, Accumulator]:
        assert isinstance(acc, Clipped)
        sigma, cohort = self._exposure.noise, self._exposure.cohort
        steps = self._steps
        s = noise.width(self.clip.noise_of_updates(sigma, cohort), steps)
        drawn = noise.discrete_gaussian(s, acc.sums.shape, self.entropy)
        told = torch.from_numpy((acc.sums + drawn) * (acc.bound / steps)).to(torch.float32)
        bound = self.clip.next(acc.bound, acc.within, sigma, cohort, self.entropy)
        return {"bound": bound}, Accumulator(told, float(cohort), acc.stage, cohort, acc.layout)

    @property
    def _steps(self) -> int:
        """Of the grid, to a clipping bound."""
        exposure = self._exposure
        return noise.radius(self.clip.noise_of_updates(exposure.noise, exposure.cohort))
