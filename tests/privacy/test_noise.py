"""Discrete Gaussians: their distribution, their variance, and that they come from nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from narrowcast.privacy import noise
from narrowcast.privacy.noise import RADIUS, WIDEST, coins, discrete_gaussian, radius, width

ALARM = 1e-6  # of a right sampler: a test that fails once in a million runs


def probabilities(s: int) -> dict[int, float]:
    """P(y), naively."""
    weights = {y: math.exp(-y * y / (2 * s * s)) for y in range(-40 * s, 40 * s + 1)}
    total = math.fsum(weights.values())
    return {y: w / total for y, w in weights.items()}


@pytest.mark.parametrize("s", [1, 2, 5])
def test_small_ones_by_chi_square(s: int) -> None:
    n = 200_000
    drawn = discrete_gaussian(s, (n,))
    likely = {y: p for y, p in probabilities(s).items() if p * n >= 10}
    seen = [int((drawn == y).sum()) for y in likely]
    other, rest = n - sum(seen), 1 - sum(likely.values())
    expected = [p * n for p in likely.values()]
    if rest * n >= 10:
        seen, expected = [*seen, other], [*expected, rest * n]
    scale = sum(seen) / sum(expected)
    assert stats.chisquare(seen, [e * scale for e in expected]).pvalue > ALARM


@pytest.mark.parametrize("s", [1000, 1 << 20, WIDEST])
def test_wide_ones_are_gaussian(s: int) -> None:
    drawn = discrete_gaussian(s, (200_000,)) / s
    assert stats.kstest(drawn, "norm").pvalue > ALARM
    share = (drawn**2).sum()
    assert ALARM < stats.chi2.cdf(share, drawn.size) < 1 - ALARM, "the variance"


def test_all_numbers_are_nearer_than_31_s() -> None:
    """Words that ask for 30 and for 31, where s is 1, and would keep them."""
    heads, tails = [0, 1], [1]  # of a coin of chance 1/e
    kept = {
        30: [*heads * 420, 1],
        31: [*heads * 449, 0, 2],
    }  # (30 - 1)^2 / 2 = 420 + 1/2, (31 - 1)^2 / 2 = 450
    more = np.random.default_rng(0).bytes
    for far, words in kept.items():
        asked = np.array([0, 0, *heads * far, *tails, 0, *words], np.uint64).tobytes()  # u = 0, v = far, plus
        found = discrete_gaussian(1, (1,), lambda count, asked=asked: asked + more(count))[0]
        assert found == 30 if far == 30 else abs(found) < 30


def test_low_bits_tell_nothing() -> None:
    bits = discrete_gaussian(1 << 20, (100_000,)) & 7
    assert stats.chisquare(np.bincount(bits, minlength=8)).pvalue > ALARM


def test_halved_noise_would_be_noticed() -> None:
    drawn = discrete_gaussian(1 << 19, (200_000,)) / (1 << 20)
    assert stats.chi2.cdf((drawn**2).sum(), drawn.size) < ALARM


def test_it_is_drawn_from_what_it_is_given_and_waits_for_more() -> None:
    asked: list[int] = []

    def drips(count: int) -> bytes:
        """The generator of the test, a few words at a time."""
        asked.append(count)
        return np.random.Generator(np.random.Philox(len(asked))).bytes(8 * 40)

    drawn = discrete_gaussian(100, (3, 50), drips)
    assert drawn.shape == (3, 50)
    assert len(asked) > 10, "it went on where the words had ended"
    assert ALARM < stats.chi2.cdf(((drawn / 100) ** 2).sum(), drawn.size) < 1 - ALARM


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_the_words_decide_and_not_where_they_are_cut(cut: int) -> None:
    """Were a number begun anew with other words where these end, those that take many would be too rare."""
    words = np.random.Generator(np.random.Philox(9)).bytes(8 * 5000)
    whole, parts = iter([words]), iter(words[i : i + 8 * cut] for i in range(0, len(words), 8 * cut))
    expected = discrete_gaussian(1000, (200,), lambda _: next(whole))
    assert (discrete_gaussian(1000, (200,), lambda _: next(parts)) == expected).all()


def test_two_draws_differ_and_nothing_of_a_run_decides_them() -> None:
    assert (discrete_gaussian(1 << 20, (8,)) != discrete_gaussian(1 << 20, (8,))).any()
    assert noise.discrete_gaussian.__defaults__ == (__import__("os").urandom,)


def test_the_grid_leaves_room_for_the_noise() -> None:
    for sigma in (0.05, 0.5, 1.0, 63.0, 64.0, 65.0, 4096.0):
        steps = radius(sigma)
        assert 1 <= steps <= RADIUS
        s = width(sigma, steps)
        assert s <= WIDEST
        assert s / steps >= sigma, "never less than was asked"
        assert s / steps < sigma * 1.001
    with pytest.raises(ValueError, match="width"):
        discrete_gaussian(0, (1,))


def test_coins_are_as_likely_as_they_should_be() -> None:
    heads = coins(1 / 120, 1_200_000)
    assert stats.binomtest(int(heads.sum()), heads.size, 1 / 120).pvalue > ALARM
    assert coins(1.0, 1000).all()
    assert coins(0.5, 0).shape == (0,)
