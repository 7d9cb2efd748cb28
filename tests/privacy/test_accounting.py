"""Epsilon against what can be had by hand, and the noise that is found for it."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from narrowcast.errors import ConfigError
from narrowcast.privacy.accounting import GRID, Exposure, default_delta, noise_for

PHI = NormalDist().cdf


def analytic(sigma: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism (Balle and Wang 2018), by bisection."""

    def delta_of(epsilon: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return PHI(a - b) - math.exp(epsilon) * PHI(-a - b)

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def epoch(sigma: float, delta: float = 1e-5, clients: int = 1000, cohort: int = 100) -> Exposure:
    return Exposure(sigma, delta, "epoch", clients, cohort)


@pytest.mark.parametrize(("sigma", "epochs"), [(1.0, 1), (1.0, 2), (0.7, 3), (5.0, 40)])
def test_an_epoch_costs_a_client_one_gaussian_mechanism(sigma: float, epochs: int) -> None:
    known = analytic(sigma / math.sqrt(epochs), 1e-5)
    found = epoch(sigma).epsilon(10 * epochs)
    assert known - 1e-6 <= found <= known + GRID, "rounded up, and by little"


def test_an_epoch_that_has_begun_counts_in_full() -> None:
    run = epoch(1.0)
    assert run.epsilon(1) == run.epsilon(10) < run.epsilon(11) == run.epsilon(20)
    uneven = Exposure(1.0, 1e-5, "epoch", 11, 2)  # six rounds an epoch, the last of one client
    assert [uneven.visits(n) for n in (1, 6, 7, 12, 13)] == [1, 1, 2, 2, 3]


def test_coins_that_always_come_up_heads_gain_nothing() -> None:
    everybody = Exposure(1.0, 1e-5, "poisson", 50, 50)
    assert everybody.epsilon(3) == pytest.approx(analytic(1 / math.sqrt(3), 1e-5), abs=0.01)


def test_the_case_whose_numbers_are_known() -> None:
    """sigma 1, q = 1/120, 240 rounds: 0.81, where nobody knows the coins; two visits cost 6.6, nine 16.7."""
    secret = Exposure(1.0, 1e-5, "poisson", 12_000, 100)
    assert secret.epsilon(240) == pytest.approx(0.81, abs=0.01)
    assert secret.renyi(240) == pytest.approx(1.245, abs=0.01)
    assert epoch(1.0, clients=12_000).epsilon(240) == pytest.approx(6.57, abs=0.01)
    assert analytic(1 / 3.0, 1e-5) == pytest.approx(16.7, abs=0.1)


@pytest.mark.parametrize("sampling", ["epoch", "poisson"])
def test_epsilon_is_monotone(sampling: str) -> None:
    def at(sigma: float, rounds: int, delta: float = 1e-5, cohort: int = 20) -> float:
        return Exposure(sigma, delta, sampling, 200, cohort).epsilon(rounds)

    assert 0 == at(2.0, 0) < at(2.0, 10) < at(2.0, 40) < at(2.0, 90), "rounds"
    assert at(4.0, 40) < at(2.0, 40) < at(1.0, 40), "noise"
    assert at(2.0, 40, delta=1e-4) < at(2.0, 40, delta=1e-6)
    assert at(2.0, 40, cohort=10) < at(2.0, 40, cohort=40), "who comes more often"


def test_renyi_is_no_smaller() -> None:
    for exposure in (epoch(1.0), Exposure(1.0, 1e-5, "poisson", 1000, 100)):
        assert exposure.epsilon(20) <= exposure.renyi(20)


@pytest.mark.parametrize(("sampling", "budget"), [("epoch", 8.0), ("epoch", 0.5), ("poisson", 2.0)])
def test_the_noise_that_is_found_is_the_least_in_four_digits(sampling: str, budget: float) -> None:
    who = (1e-5, sampling, 1000, 100)
    sigma = noise_for(budget, *who, rounds=30)
    assert Exposure(sigma, *who).epsilon(30) <= budget
    assert Exposure(sigma * 0.995, *who).epsilon(30) > budget
    assert sigma == float(f"{sigma:.4g}")


def test_a_run_stops_before_it_would_go_over() -> None:
    run = Exposure(1.0, 1e-5, "poisson", 1000, 100)
    rounds = run.affordable(4.0, 200)
    assert 0 < rounds < 200
    assert run.epsilon(rounds) <= 4.0 < run.epsilon(rounds + 1)
    assert run.affordable(1e-3, 200) == 0
    assert run.affordable(1e3, 200) == 200


def test_so_far_never_says_less_than_was_spent() -> None:
    run = Exposure(2.0, 1e-5, "poisson", 1000, 100)
    for of in (7, 120):
        told = [run.so_far(n, of) for n in range(of + 1)]
        assert told == sorted(told)
        assert all(value >= run.epsilon(n) for n, value in enumerate(told))
        assert told[of] == run.epsilon(of), "the end is exact"
        assert told[1] <= run.epsilon(-(-of // 50))


def test_settings_that_promise_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1/clients"):
        epoch(1.0, delta=1e-3)
    with pytest.raises(ConfigError, match="dp-noise"):
        epoch(0.0)
    with pytest.raises(ValueError, match="sampling"):
        Exposure(1.0, 1e-5, "uniform", 100, 10)
    for clients in (1, 9, 10, 11, 287, 12_000):
        assert default_delta(clients) <= 0.1 / clients * (1 + 1e-9)
