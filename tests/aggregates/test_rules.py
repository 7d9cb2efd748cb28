"""The laws of the rules against liars: their naive twins, what liars can do to them, and where they break."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import aggregates as naive
from narrowcast.aggregates import AGGREGATES, Clipped, GeometricMedian, Krum, Median, MultiKrum, TrimmedMean
from narrowcast.methods.base import MAX_NUMBER

F = 0.2
RULES = {
    "clipped": (Clipped(), lambda xs, f: naive.clipped(xs)),
    "median": (Median(), lambda xs, f: naive.median(xs)),
    "trimmed-mean": (TrimmedMean(F), naive.trimmed),
    "krum": (Krum(F), naive.krum),
    "multi-krum": (MultiKrum(F), naive.multi_krum),
    "geometric-median": (GeometricMedian(), lambda xs, f: naive.geometric_median(xs)),
}
every_rule = pytest.mark.parametrize("name", RULES)
seeds = st.integers(0, 2**32 - 1)
LIES = ["far", "far apart", "flipped", "hidden", "huge"]


def normal(seed, n, d):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1.0


def lies(kind, honest, f):
    """f vectors of somebody who knows the honest ones."""
    mean, spread = honest.mean(0), honest.std(0)
    z = normal(f, f, honest.shape[1])
    return {
        "far": (mean + 1e6 * spread).expand(f, -1),
        "far apart": 1e6 * z,
        "flipped": -honest[:f],
        "hidden": (mean - 1.5 * spread).expand(f, -1),
        "huge": MAX_NUMBER * z.sign(),
    }[kind]


def test_every_rule_but_the_mean_is_tested_here() -> None:
    assert {"mean", *RULES} == set(AGGREGATES)


@every_rule
@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(5, 16), st.integers(1, 5))
def test_a_rule_is_its_naive_twin(name: str, seed: int, n: int, d: int) -> None:
    rule, twin = RULES[name]
    xs, f = normal(seed, n, d), math.ceil(F * n)
    if n < rule.needs(n):
        return
    expected = torch.tensor(twin(xs.double().tolist(), f), dtype=torch.float64)
    found = rule.combine(xs).double()
    if name == "geometric-median":  # what it minimises is flat around its minimum
        apart = [float(torch.linalg.vector_norm(xs.double() - z, dim=1).sum()) for z in (found, expected)]
        assert apart[0] <= apart[1] * (1 + 1e-6)
    else:
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@every_rule
@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_order_of_clients_means_nothing(name: str, seed: int) -> None:
    rule, xs = RULES[name][0], normal(seed, 15, 40)
    order = torch.randperm(15, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(rule.combine(xs), rule.combine(xs[order]), rtol=1e-4, atol=1e-5)


@every_rule
@pytest.mark.parametrize("n", [5, 6, 11])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-30, 1e18])
def test_clients_that_agree_are_believed(name: str, n: int, scale: float) -> None:
    x = normal(n, 1, 33) * scale
    x = x.clamp(-MAX_NUMBER, MAX_NUMBER)
    assert torch.allclose(RULES[name][0].combine(x.repeat(n, 1)), x[0], rtol=1e-6, atol=0.0)


@every_rule
@pytest.mark.parametrize("kind", LIES)
@given(seeds, st.sampled_from([10, 15, 25]))
@settings(max_examples=8, deadline=None)
def test_a_fifth_of_liars_leaves_a_rule_near_the_honest(name: str, kind: str, seed: int, n: int) -> None:
    """Not further from the honest mean than a small multiple of the honest clients' own distances."""
    f = round(F * n)
    honest = normal(seed, n - f, 30)
    found = RULES[name][0].combine(torch.cat([lies(kind, honest, f), honest]))
    mean = honest.mean(0)
    radius = torch.linalg.vector_norm(honest - mean, dim=1).max()
    reach = radius + torch.linalg.vector_norm(honest, dim=1).max() if name == "clipped" else 2 * radius
    assert torch.linalg.vector_norm(found - mean) <= reach


@given(seeds, st.sampled_from(LIES), st.integers(4, 30))
@settings(max_examples=60, deadline=None)
def test_no_fifth_of_liars_moves_a_trimmed_mean_beyond_its_bound(seed: int, kind: str, n: int) -> None:
    """Every coordinate stays in the honest range, and within 2f/(n - 2f) of it from the honest mean."""
    f = math.floor(F * n)
    honest = normal(seed, n - f, 20)
    xs = torch.cat([honest, lies(kind, honest, f)]) if f else honest
    found = TrimmedMean(F).combine(xs)
    low, high = honest.min(0).values, honest.max(0).values
    assert ((low - 1e-6 <= found) & (found <= high + 1e-6)).all()
    cut = min(math.ceil(F * n - 1e-9), (n - 1) // 2)
    bound = (high - low) * 2 * cut / (n - 2 * cut)
    assert ((found - honest.mean(0)).abs() <= bound + 1e-5).all()


@pytest.mark.parametrize("name", ["median", "geometric-median", "clipped"])
@pytest.mark.parametrize("n", [11, 20])
def test_a_majority_decides(name: str, n: int) -> None:
    """The breakdown point: one liar fewer than half moves nothing far, a majority goes where it likes."""
    rule, honest, far = RULES[name][0], normal(1, n, 8), torch.full((n, 8), 1e9)
    few, most = (n - 1) // 2, n // 2 + 1
    assert rule.combine(torch.cat([honest[few:], far[:few]])).abs().max() < 1e3
    assert rule.combine(torch.cat([honest[most:], far[:most]])).abs().max() > 1e7


@pytest.mark.parametrize("name", ["trimmed-mean", "krum", "multi-krum"])
def test_more_liars_than_are_tolerated_may_win(name: str) -> None:
    rule, honest, far = RULES[name][0], normal(2, 20, 8), torch.full((20, 8), 1e9)
    assert rule.combine(torch.cat([honest[4:], far[:4]])).abs().max() < 1e3
    assert rule.combine(torch.cat([honest[14:], far[:14]])).abs().max() > 1e7


def test_one_liar_moves_the_mean_anywhere() -> None:
    honest = normal(3, 99, 8)
    assert torch.cat([honest, torch.full((1, 8), 1e9)]).mean(0).abs().max() > 1e6


def test_multi_krum_without_its_liars_is_the_mean_of_the_honest() -> None:
    honest = normal(4, 16, 9)
    found = MultiKrum(F).combine(torch.cat([torch.full((4, 9), 1e12), honest]))
    assert torch.allclose(found, honest.mean(0))


@pytest.mark.parametrize(("n", "needed"), [(5, 5), (10, 7), (15, 9), (16, 11), (100, 43)])
def test_krum_needs_two_more_honest_clients_than_liars_and_one(n: int, needed: int) -> None:
    assert Krum(F).needs(n) == needed


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0, math.nan])
def test_half_of_liars_cannot_be_tolerated(share: float) -> None:
    for rule in (TrimmedMean, Krum, MultiKrum):
        with pytest.raises(ValueError, match="share of clients that may lie"):
            rule(share)
