"""What rules against clients that lie share: every update is kept until the round ends, then judged.

Of the n_k clients on route k, whose numbers x_w (d,) are coordinates of one subspace, a rule makes one vector
r_k; the server steps with r_k n_k / W, W being all clients of the round, as with the mean. Weights are one. A
route with fewer clients than the rule needs to outvote a liar adds nothing in that round. Memory: W d.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.aggregates.base import Aggregate, Gathering, Memory
from narrowcast.errors import ConfigError
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.wire.messages import Payload

TOLERATE = 0.3  # cohorts are drawn: of 100 clients, 20 % liars are 30 or more in one round of a hundred


@dataclass(frozen=True)
class Kept(Accumulator):
    """The updates of a round, by route, each a vector of its own."""

    rows: dict[int, list[Tensor]] = field(default_factory=dict)


class Robust(Aggregate):
    """A rule over vectors: subclasses say `combine` and how many clients they need."""

    fewest: ClassVar[int] = 3  # with two nobody knows which of them lies

    def needs(self, n: int) -> int:
        """How many clients there must be, where there are n."""
        return self.fewest

    @abstractmethod
    def combine(self, xs: Tensor) -> Tensor:
        """(n, d) -> (d,), finite numbers of at most 1e18."""

    def check(self, method: Method[Any], gathering: Gathering) -> None:
        asked = f"--aggregate {self.name}"
        if why := method.incomparable:
            raise ConfigError(f"{asked} compares clients' uploads number by number; {why}")
        if gathering.weighting != "clients":
            raise ConfigError(
                f"{asked} with --weighting {gathering.weighting}: a client that lies claims the weight it "
                "likes, so every client has one say: leave it at clients"
            )
        n = gathering.answers // gathering.routes
        if n < self.needs(n):
            among = f" on each of {gathering.routes} routes" if gathering.routes > 1 else ""
            cohort, answers = gathering.cohort, gathering.answers
            some = f" (of those asked, {answers} are expected to answer)" if answers < cohort else ""
            raise ConfigError(
                f"{asked} needs {self.needs(n)} clients{among}, a cohort of {cohort} has {n}{some}: "
                "choose a larger --cohort" + self._otherwise()
            )

    def _otherwise(self) -> str:
        return ""

    def zero(self, method: Method[Any], server: Server, memory: Memory) -> Accumulator:
        return Kept(**vars(method.zero(server)))

    def add(self, method: Method[Any], acc: Accumulator, up: Payload, weight: float) -> Accumulator:
        assert isinstance(acc, Kept)
        where, numbers = method.bounded(acc, up)
        assert isinstance(where, int), "comparable uploads fill a row"
        acc.rows.setdefault(where, []).append(numbers.clone())
        return replace(acc, weight=acc.weight + 1.0, count=acc.count + 1)

    def total(
        self, method: Method[Any], acc: Accumulator, memory: Memory, round: RoundInfo
    ) -> tuple[Memory, Accumulator]:
        assert isinstance(acc, Kept)
        total, used = torch.zeros_like(acc.total), False
        for k, rows in acc.rows.items():
            if len(rows) >= self.needs(len(rows)):
                total[k] = self.combine(torch.stack(rows)) * len(rows)
                used = True
        return memory, Accumulator(
            total, acc.weight if used else 0.0, acc.stage, acc.count if used else 0, acc.layout
        )


@dataclass(frozen=True)
class Tolerant(Robust):
    """A rule that is told which share of a round's clients may lie."""

    tolerate: float = TOLERATE

    def __post_init__(self) -> None:
        if not 0 <= self.tolerate < 0.5:
            raise ValueError(
                f"tolerate is the share of clients that may lie, from 0 to below a half, got {self.tolerate}"
            )

    def liars(self, n: int) -> int:
        """f: of n clients, at most so many are taken to lie."""
        return math.ceil(self.tolerate * n - 1e-9)

    def _otherwise(self) -> str:
        return f" or a smaller --tolerate than {self.tolerate:g}"
