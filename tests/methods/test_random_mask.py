"""Random masks: fair sets of positions that both sides know, and an unbiased estimate."""

from collections import Counter
from itertools import combinations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import MODULES
from naive.random_mask import random_mask
from naive.runs import assert_same, key_of, rounds, trained
from narrowcast.methods import method
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import MASK32
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

D, K = 60, 6


def made(**options):
    return method("random-mask", **{"key": 5, "k": K} | options)


def world(m, D=D):
    """(model, empty sum)."""
    theta0, layout = torch.zeros(D), Layout(("w",), ((D,),))
    return m.newcomer(theta0, layout), m.zero(m.server(theta0, layout))


def estimate(m, v, key):
    """What the server makes of v."""
    model, acc = world(m, v.numel())
    return m.add(acc, m.compress(None, v, model, key)[1], 1.0).total[0]


@pytest.mark.parametrize("kind", MODULES)
def test_it_trains_like_its_twin(kind):
    m, eta = made(k=20), 0.05
    run, theta_0, theta, gradient = trained(m, kind, eta)
    size = run.task.layout.size

    def mask(t, c):
        return m.positions(key_of(t, c) & MASK32, size).numpy()

    assert_same(theta, random_mask(theta_0, rounds(), gradient, mask, eta), theta_0)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, MASK32))
def test_a_mask_has_k_rising_positions_below_D(D, k, route):
    where = made(k=k).positions(route, D)
    assert len(where) == min(k, D)
    assert where[0] >= 0
    assert where[-1] < D
    assert (where.diff() > 0).all()


def test_every_set_of_positions_is_equally_likely():
    m, n = made(k=2), 4000
    seen = Counter(tuple(m.positions(route, 5).tolist()) for route in range(n))
    assert set(seen) == set(combinations(range(5), 2))
    chi = sum((count - n / 10) ** 2 / (n / 10) for count in seen.values())
    assert chi < 27.9  # 9 degrees of freedom, one in a thousand


def test_masks_differ_between_clients_and_runs():
    one, other = made(k=30), made(k=30, key=6)
    assert not torch.equal(one.positions(1, 1000), one.positions(2, 1000))
    assert not torch.equal(one.positions(1, 1000), other.positions(1, 1000))


def test_the_estimate_is_unbiased_and_errs_as_it_must():
    """E|(D/k) v_S - v|^2 = (D/k - 1) |v|^2."""
    m, v, n = made(), torch.randn(D, generator=torch.Generator().manual_seed(1)), 3000
    found = torch.stack([estimate(m, v, key) for key in range(n)])
    deviation = v.abs() * np.sqrt((D / K - 1) / n)
    assert ((found.mean(0) - v).abs() < 4.5 * deviation).all()
    error = (found - v).square().sum(1)
    truth = (D / K - 1) * v.square().sum()
    assert abs(error.mean() - truth) < 4.5 * error.std() / np.sqrt(n)


def test_all_positions_are_no_compression():
    v = torch.randn(D, generator=torch.Generator().manual_seed(1))
    assert torch.equal(estimate(made(k=D), v, 9), v)
    assert torch.equal(estimate(made(k=3 * D), v, 9), v)
    assert torch.equal(estimate(made(), v[:1], 9), v[:1])


@pytest.mark.parametrize("uplink", ["f32", "f16", "int8", "int4"])
def test_only_the_values_are_sent(uplink):
    m = made(k=50, uplink=uplink)
    up = m.compress(None, torch.randn(1000, generator=torch.Generator().manual_seed(1)), world(m)[0], 7)[1]
    (block,) = up.blocks
    assert len(block.data) == {"f32": 200, "f16": 104, "int8": 54, "int4": 29}[uplink]
    assert up.route == 7


def test_hostile_uploads_are_refused():
    m = made()
    model, acc = world(m)
    up = m.compress(None, torch.ones(D), model, 7)[1]
    values = torch.ones(K)
    for bad in (
        values[1:],
        torch.ones(K + 1),
        torch.ones(0),
        values / 0,
        values * float("nan"),
        values * 2e17,
    ):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=[wire.block(bad)]), 1.0)
    for change in (
        {"kind": 1},
        {"blocks": []},
        {"blocks": up.blocks * 2},
        {"blocks": [wire.raw(b"\0" * 24)]},
    ):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, **change), 1.0)
    assert not acc.total.any()
    for k in (0, -1):
        with pytest.raises(ValueError, match="k must"):
            made(k=k)
