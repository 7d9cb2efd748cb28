"""Which clients come in a round: by the run's key and the round, or by secret coins; nothing is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from narrowcast import choices
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.privacy.noise import coins
from narrowcast.rounds.task import IndexArray


@dataclass(frozen=True)
class Cohorts:
    """Cohorts of `size` out of `clients`.

    mode "epoch" visits every client once an epoch, in a new order each time (the paper's setting; the last
    round of an epoch may be smaller); "uniform" draws every round afresh. Both are known to whoever has the
    key. "poisson" tosses a coin for every client in every round, from the system's generator, so that nobody
    can know who came and nobody can ask twice: of `size` clients on average. Of those asked, a fraction
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
        choices.check("sampling", self.mode, choices.SAMPLING)
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

    def come(self, number: int, present: IndexArray | None = None) -> IndexArray:
        """The clients that download in this round.

        Where only some can be drawn they are `present`, and `uniform` draws from them; `epoch` asks whom it
        asks, present or not, and so does `poisson`.
        """
        if self.mode == "epoch":
            epoch, part = divmod(number, self.rounds_per_epoch)
            stop = min(self.clients, (part + 1) * self.size)
            order = keyed.derive(self.key, Purpose.SAMPLE, epoch)
            asked = keyed.permuted(order, self.clients, part * self.size, stop)
        elif self.mode == "poisson":
            asked = np.flatnonzero(coins(self.size / self.clients, self.clients)).astype(np.int64)
        else:
            here = self.clients if present is None else len(present)
            drawn = keyed.derive(self.key, Purpose.SAMPLE, number)
            asked = keyed.permuted(drawn, here, 0, min(self.size, here))
            asked = asked if present is None else present[asked]
        return self._thin(asked, Purpose.ATTEND, number, self.participation)

    def answer(self, number: int, came: IndexArray) -> IndexArray:
        """Those of them that upload."""
        return self._thin(came, Purpose.DROP, number, 1.0 - self.dropout)

    def _thin(self, clients: IndexArray, purpose: Purpose, number: int, share: float) -> IndexArray:
        """Those of the clients that come, or answer: each by itself, whatever the secret coins of others."""
        if share >= 1:
            return clients
        secret = self.mode == "poisson"  # else by place in the list, as earlier runs drew
        key = keyed.derive(self.key, purpose, number)
        drawn = keyed.uniforms(key, purpose, self.clients if secret else len(clients))
        kept: IndexArray = clients[(drawn[clients] if secret else drawn) < share]
        return kept


def default_cohort(clients: int) -> int:
    """Clients a round where nobody says how many: a tenth of them, at most 100."""
    return max(1, min(100, clients // 10))
