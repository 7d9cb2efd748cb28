"""Epsilon of so many rounds, and the noise for so much epsilon: `dp-accounting`, with this run's events.

A round releases S / W + N(0, (sigma C / W)^2), S the sum of its clients' updates, each clipped to C. Two runs
are neighbours when one client's updates are zero in one of them; the number of clients is public (the
library's REPLACE_SPECIAL). Of `epoch` sampling everybody knows who comes when, so a client that has come E
times costs E Gaussian mechanisms and nothing is gained by chance. Of `poisson` every client comes to every
round with probability q = cohort / clients by a coin that nobody sees. Who does not answer lowers nothing.
Epsilon is from privacy loss distributions, rounded up; Renyi's, beside it, is larger, and holds as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from narrowcast import choices, extras
from narrowcast.errors import ConfigError

SAMPLING = ("epoch", "poisson")
GRID = 1e-3  # of privacy losses, rounded up: a finer one changes epsilon by less than that, and takes long
LOWEST, HIGHEST = 0.05, 4096.0  # noise that is looked for, and that is taken
ORDERS = (*range(2, 64), 64, 80, 96, 128, 192, 256, 512)  # of Renyi's divergences
STEPS = 50  # epsilons that are computed of a run, at most, see `Exposure.so_far`


@dataclass(frozen=True)
class Exposure:
    """What a run does to one of its clients: the noise, in clipping bounds, and how often it is drawn."""

    noise: float  # sigma
    delta: float
    sampling: str
    clients: int
    cohort: int  # expected

    def __post_init__(self) -> None:
        choices.check("sampling", self.sampling, SAMPLING)
        if not 0 < self.delta < 1 / self.clients:
            raise ConfigError(
                f"--dp-delta {self.delta:g}: it must be between 0 and 1/clients = {1 / self.clients:.3g}, "
                "where giving one client's data away whole would count as private"
            )
        if not LOWEST <= self.noise <= HIGHEST:
            raise ConfigError(f"--dp-noise must be {LOWEST:g} to {HIGHEST:g}, got {self.noise:g}")

    def visits(self, rounds: int) -> int:
        """How often a client has come after so many rounds of `epoch` sampling, at most."""
        return -(-rounds // -(-self.clients // self.cohort))

    def epsilon(self, rounds: int) -> float:
        """After so many rounds."""
        if rounds == 0:
            return 0.0
        if self.sampling == "epoch":
            return _of_visits(self.noise, self.visits(rounds), self.delta)
        return _of_rounds(self.noise, self.cohort / self.clients, rounds, self.delta)

    def so_far(self, rounds: int, of: int) -> float:
        """After `rounds` of a run of so many; of long ones that of up to a fiftieth more, to save time."""
        stride = 1 if self.sampling == "epoch" else -(-of // STEPS)
        return self.epsilon(min(of, -(-rounds // stride) * stride))

    def renyi(self, rounds: int) -> float:
        """The same by Renyi differential privacy."""
        from dp_accounting import rdp

        accountant = rdp.RdpAccountant(ORDERS, _neighbours())
        return float(accountant.compose(self.event(rounds)).get_epsilon(self.delta))

    def event(self, rounds: int) -> Any:
        """So many rounds in the library's terms."""
        import dp_accounting as dp

        gaussian = dp.GaussianDpEvent(self.noise)
        if self.sampling == "epoch":
            return dp.SelfComposedDpEvent(gaussian, self.visits(rounds))
        coin = dp.PoissonSampledDpEvent(self.cohort / self.clients, gaussian)
        return dp.SelfComposedDpEvent(coin, rounds)

    def affordable(self, budget: float, rounds: int) -> int:
        """How many of these rounds leave epsilon within the budget."""
        if self.epsilon(rounds) <= budget:
            return rounds
        fits, too_many = 0, rounds
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self.epsilon(middle) <= budget else (fits, middle)
        return fits


def default_delta(clients: int) -> float:
    """A power of ten, at most a tenth of 1 / clients."""
    return 10.0 ** math.floor(math.log10(0.1 / clients))


@lru_cache(maxsize=64)
def noise_for(budget: float, delta: float, sampling: str, clients: int, cohort: int, rounds: int) -> float:
    """The least noise, in four digits, with which so many rounds stay within the budget."""
    if not (math.isfinite(budget) and budget > 0):
        raise ConfigError(f"--dp-epsilon must be a positive number, got {budget:g}")

    def over(noise: float) -> bool:
        return Exposure(noise, delta, sampling, clients, cohort).epsilon(rounds) > budget

    high = 1.0
    while over(high):
        high *= 2
        if high > HIGHEST:
            raise ConfigError(
                f"--dp-epsilon {budget:g}: {rounds} rounds would take more noise than {HIGHEST:g} bounds"
            )
    low = high / 2
    while low > LOWEST and not over(low):
        low, high = low / 2, low
    low = max(low, LOWEST)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if over(middle) else (low, middle)
    digits = 10.0 ** (math.floor(math.log10(high)) - 3)
    return float(f"{math.ceil(high / digits) * digits:.4g}")


@lru_cache(maxsize=4096)
def _of_visits(noise: float, visits: int, delta: float) -> float:
    """Of so many Gaussian mechanisms, which are one with sigma / sqrt(visits)."""
    distributions = _library()
    loss = distributions.from_gaussian_mechanism(
        noise / math.sqrt(visits),
        value_discretization_interval=GRID,
        neighboring_relation=_neighbours(),
    )
    return float(loss.get_epsilon_for_delta(delta))


@lru_cache(maxsize=4096)
def _of_rounds(noise: float, q: float, rounds: int, delta: float) -> float:
    return float(_of_round(noise, q).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _of_round(noise: float, q: float) -> Any:
    """The privacy loss of one round to which a client comes with probability q."""
    return _library().from_gaussian_mechanism(
        noise, value_discretization_interval=GRID, sampling_prob=q, neighboring_relation=_neighbours()
    )


def _library() -> Any:
    extras.require("dp_accounting", "privacy", "differential privacy")
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution


def _neighbours() -> Any:
    import dp_accounting as dp

    return dp.NeighboringRelation.REPLACE_SPECIAL
