"""Plan: how a run goes, whatever its task and method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import index
from typing import Any

from narrowcast import choices
from narrowcast.aggregates.base import Aggregate, Gathering
from narrowcast.aggregates.mean import MEAN
from narrowcast.errors import ConfigError
from narrowcast.methods.base import Method
from narrowcast.numerics.purposes import Key
from narrowcast.rounds.network import Network
from narrowcast.rounds.sampling import Cohorts

AUTO = "auto"  # a rate that is found by trials, see `rates`
WHOLE = {"cohort": 1, "rounds": 1, "local_steps": 1, "local_batch": 0, "evaluate_every": 0}  # the least


@dataclass(frozen=True)
class Plan:
    """How long, how many, how fast. `epochs` and `rounds`: the first to be reached ends the run.

    >>> import narrowcast as nc
    >>> plan = nc.Plan(cohort=5, lr=0.5, epochs=3, participation=0.8)
    >>> plan.length(clients=12)  # rounds: three to an epoch
    9
    """

    cohort: int
    lr: float | str  # a number, or "auto"
    epochs: float | None = None
    rounds: int | None = None
    schedule: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 1.0)])
    sampling: str = "epoch"
    participation: float = 1.0
    dropout: float = 0.0
    local_steps: int | None = None  # None: what the method takes by default
    local_batch: int = 0
    local_lr: float | None = None  # None: the rate of the round
    prox: float | None = None  # FedProx's mu; None: what the method takes by default
    weighting: str = "clients"
    aggregate: Aggregate = MEAN  # how a round's updates become one
    evaluate_every: int = 0  # rounds; 0: once, at the end
    per_client: bool = False
    network: Network | None = None  # of the simulated clients
    deadline: float | None = None  # seconds on it after which a round ends without those who are late
    attackers: float = 0.0  # share of the simulated clients that lie
    attack: str = "sign-flip"  # how they do
    key: Key = 0
    run: bytes = b"\0" * 8

    def __post_init__(self) -> None:
        if self.epochs is None and self.rounds is None:
            raise ValueError("say how long to train: epochs or rounds")
        if self.epochs is not None and not self.epochs > 0:
            raise ValueError(f"epochs must be a positive number, got {self.epochs}")
        if self.rounds is None and self.epochs == math.inf:
            raise ValueError("epochs without end take a number of rounds that ends the run, got none")
        for name, least in WHOLE.items():
            _whole(name, getattr(self, name), least)
        if self.lr != AUTO and (isinstance(self.lr, str) or not (math.isfinite(self.lr) and self.lr > 0)):
            raise ValueError(f'lr must be a positive number or "{AUTO}", got {self.lr!r}')
        choices.check("weighting", self.weighting, choices.WEIGHTING)
        if self.local_lr is not None and not (math.isfinite(self.local_lr) and self.local_lr > 0):
            raise ValueError(f"local_lr must be a positive number, got {self.local_lr}")
        if self.prox is not None and not (math.isfinite(self.prox) and self.prox >= 0):
            raise ValueError(f"prox must be zero or positive, got {self.prox}")
        if self.deadline is not None and not (self.network and self.deadline > 0):
            raise ValueError(f"a deadline takes a network and more than 0 seconds, got {self.deadline}")
        if any(a >= b for (a, _), (b, _) in pairwise(self.schedule)) or not self.schedule:
            raise ValueError(f"the knots of a schedule must rise in epochs, got {self.schedule}")
        if not all(math.isfinite(epoch) and 0 <= factor < math.inf for epoch, factor in self.schedule):
            raise ValueError(
                f"a schedule's epochs must be finite and its factors zero or positive, got {self.schedule}"
            )

        self._check_discretion()

    def _check_discretion(self) -> None:
        """What cannot hold where nothing but the noised sum may be told of a round."""
        if self.sampling == "poisson" and not self.aggregate.discreet:
            raise ConfigError(
                "--sampling poisson: coins that nobody can toss again are for differential privacy, and a "
                "run with them cannot be repeated: give --dp-epsilon or --dp-noise, or choose epoch"
            )
        if self.aggregate.discreet and self.lr == AUTO:
            raise ConfigError(
                "--lr auto: its trials read clients' losses and updates, which epsilon would not count: give "
                "--lr a number that was not found on these clients"
            )
        if self.aggregate.discreet and self.network is not None:
            raise ConfigError(
                "--network: how long a round takes depends on who came and what they sent, which "
                "differential privacy does not tell: leave it out (narrowcast plan says what to expect)"
            )

    @property
    def rate(self) -> float:
        """The peak rate; one that is still to be found is a ValueError."""
        if isinstance(self.lr, str):
            raise ValueError(f"lr is {self.lr!r}: the rate is still to be found")
        return self.lr

    def cohorts(self, clients: int) -> Cohorts:
        """Who comes when, of so many clients."""
        return Cohorts(clients, self.cohort, self.key, self.sampling, self.participation, self.dropout)

    def gathering(self, clients: int, routes: int = 1) -> Gathering:
        """The same, for an aggregate."""
        share = self.participation * (1.0 - self.dropout)
        return Gathering(clients, self.cohort, self.sampling, self.weighting, routes, share)

    def settled(self, clients: int) -> Plan:
        """With an aggregate that has found out what it must know of a run with so many clients."""
        return replace(
            self, aggregate=self.aggregate.settled(self.gathering(clients), self._planned(clients))
        )

    def length(self, clients: int) -> int:
        """Rounds of the run with so many clients: those planned, or as many as its aggregate can afford."""
        return self.settled(clients).aggregate.affordable(self._planned(clients))

    def _planned(self, clients: int) -> int:
        per_epoch = self.cohorts(clients).rounds_per_epoch
        by_epochs = self.epochs * per_epoch - 1e-9 if self.epochs is not None else None
        return max(1, math.ceil(min(rounds for rounds in (by_epochs, self.rounds) if rounds is not None)))


def can_sum(method: Method[Any], aggregate: Aggregate, attackers: float, deadline: float | None) -> bool:
    """Whether a simulator may add clients' updates up and compress the sum: `per_client` is then a choice.

    Who is late is known only after compressing, and a liar's update is turned by itself.
    """
    alike = method.linear and not method.stateful and not method.probes
    return alike and aggregate.summed and not attackers and deadline is None


def _whole(name: str, value: Any, least: int) -> None:
    """A ValueError, unless it is a whole number, of NumPy's too, and at least so large; None: it is unset."""
    try:
        fits = value is None or index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
