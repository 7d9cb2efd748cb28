"""Which clients come in a round: a function of the run's key and the round, with nothing stored."""

from __future__ import annotations

from dataclasses import dataclass

from narrowcast import random
from narrowcast.random import Key, Purpose
from narrowcast.tasks.partition import IndexArray


@dataclass(frozen=True)
class Cohorts:
    """Cohorts of `size` out of `clients`.

    mode "epoch" visits every client once an epoch, in a new order each time (the paper's setting; the last
    round of an epoch may be smaller); "uniform" draws every round afresh. Of those asked, a fraction
    `participation` comes; of those, a fraction `dropout` downloads but never answers.
    """

    clients: int
    size: int
    key: Key
    mode: str = "epoch"
    participation: float = 1.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.clients:
            raise ValueError(f"a cohort of {self.size} cannot be drawn from {self.clients} clients")
        if self.mode not in ("epoch", "uniform"):
            raise ValueError(f"sampling must be 'epoch' or 'uniform', got {self.mode!r}")
        if not (0 < self.participation <= 1 and 0 <= self.dropout < 1):
            raise ValueError(
                f"need 0 < participation <= 1 and 0 <= dropout < 1, got {self.participation}, {self.dropout}"
            )

    @property
    def rounds_per_epoch(self) -> int:
        return -(-self.clients // self.size)

    def epoch(self, number: int) -> int:
        return number // self.rounds_per_epoch

    def epoch_end(self, number: int) -> bool:
        return (number + 1) % self.rounds_per_epoch == 0

    def come(self, number: int) -> IndexArray:
        """The clients that download in this round."""
        if self.mode == "epoch":
            epoch, part = divmod(number, self.rounds_per_epoch)
            stop = min(self.clients, (part + 1) * self.size)
            order = random.derive(self.key, Purpose.SAMPLE, epoch)
            asked = random.permuted(order, self.clients, part * self.size, stop)
        else:
            asked = random.permuted(
                random.derive(self.key, Purpose.SAMPLE, number), self.clients, 0, self.size
            )
        return self._thin(asked, Purpose.ATTEND, number, self.participation)

    def answer(self, number: int, came: IndexArray) -> IndexArray:
        """Those of them that upload."""
        return self._thin(came, Purpose.DROP, number, 1.0 - self.dropout)

    def _thin(self, clients: IndexArray, purpose: Purpose, number: int, share: float) -> IndexArray:
        if share >= 1:
            return clients
        kept: IndexArray = clients[
            random.uniforms(random.derive(self.key, purpose, number), purpose, len(clients)) < share
        ]
        return kept
