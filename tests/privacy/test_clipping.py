"""No update moves a sum by more than the bound, whatever it is; the adaptive bound goes to the median."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from narrowcast.errors import ConfigError
from narrowcast.privacy import clipping
from narrowcast.privacy.clipping import BIT, Adaptive, Fixed, add_clipped

STEPS = 1 << 20


def of(x: Tensor, bound: float = 1.0, steps: int = STEPS) -> tuple[np.ndarray, bool]:
    sums = np.zeros(x.numel(), np.int64)
    within = add_clipped(x, bound, steps, sums)
    return sums, within


def naive(x: Tensor, bound: float, steps: int) -> np.ndarray:
    """trunc(x min(1, C/|x|) R/C), in plain Python."""
    numbers = [float(v) for v in x]
    norm = math.sqrt(math.fsum(v * v for v in numbers))
    return np.array(
        [math.trunc(v * min(1.0, bound / norm if norm else 1.0) * steps / bound) for v in numbers]
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-(2.0**59), 2.0**59, width=32), min_size=1, max_size=30),
    st.floats(1e-6, 1e6),
    st.sampled_from([1, 3, 1 << 10, STEPS]),
)
def test_no_vector_is_longer_than_the_bound(numbers: list[float], bound: float, steps: int) -> None:
    k, within = of(torch.tensor(numbers), bound, steps)
    assert sum(int(v) ** 2 for v in k) <= steps**2, "in whole numbers, exactly"
    assert within == (math.sqrt(math.fsum(float(np.float32(v)) ** 2 for v in numbers)) <= bound)


def test_it_is_what_it_says() -> None:
    for scale in (0.01, 1.0, 100.0):
        x = torch.randn(500, generator=torch.Generator().manual_seed(1)) * scale
        assert np.abs(of(x)[0] - naive(x, 1.0, STEPS)).max() <= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(bad: float) -> None:
    k, within = of(torch.tensor([1.0, bad, 2.0]))
    assert not k.any()
    assert not within


def test_an_update_on_the_bound_stays_on_it() -> None:
    for seed in range(50):
        x = torch.randn(1000, generator=torch.Generator().manual_seed(seed)) * 10
        k, _ = of(x)
        length = math.sqrt(float(np.square(k).sum()))
        assert STEPS - 40 < length <= STEPS


def test_the_noise_of_update_and_bit_is_one_mechanism_of_sigma() -> None:
    for sigma, cohort in ((1.0, 100), (0.8, 1000), (5.0, 10), (20.0, 100)):
        rule = Adaptive()
        z, bit = rule.noise_of_updates(sigma, cohort), rule.noise_of_bits(sigma, cohort)
        assert z**-2 + (2 * bit) ** -2 == pytest.approx(sigma**-2)
        assert sigma < z < 1.16 * sigma


def test_the_adaptive_bound_finds_the_median_norm() -> None:
    rng = np.random.Generator(np.random.Philox(5))
    rule, bound, found = Adaptive(), 1.0, []
    for _ in range(150):
        norms = 7.0 * np.exp(rng.normal(size=100))
        within = int((norms <= bound).sum()) - int((norms > bound).sum())
        bound = rule.next(bound, within, 1.0, 100, rng.bytes)
        found.append(bound)
    assert 5.0 < np.median(found[60:]) < 9.5


def test_a_round_without_clients_moves_it_by_its_noise_alone() -> None:
    rng = np.random.Generator(np.random.Philox(6))
    moved = [math.log(Adaptive().next(1.0, 0, 1.0, 100, rng.bytes)) for _ in range(2000)]
    assert abs(np.mean(moved)) < 4 * np.std(moved) / math.sqrt(len(moved))
    assert np.std(moved) == pytest.approx(clipping.RATE * (100 / clipping.SHARE) / 100, rel=0.1)
    assert BIT > 100, "steps: the noise of a bit is not coarse"


def test_the_setting() -> None:
    assert clipping.rule("2.5") == Fixed(2.5)
    assert clipping.rule("adaptive") == Adaptive(1.0)
    assert (str(Fixed(2.5)), str(Adaptive())) == ("2.5", "adaptive")
    with pytest.raises(ConfigError, match="dp-clip"):
        clipping.rule("0")
