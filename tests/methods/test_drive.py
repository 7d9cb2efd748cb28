"""DRIVE: a bit a coordinate, unbiased over rotations, with an error of (pi/2 - 1) |v|^2."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import MODULES
from naive.drive import drive, hadamard
from naive.drive import estimate as naive_estimate
from naive.runs import assert_same, key_of, rounds, trained
from narrowcast.methods import method
from narrowcast.methods.drive import LARGEST, SMALLEST, cut
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import MASK32, Purpose, derive, words
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError


def made(**options):
    return method("drive", **{"key": 5} | options)


def vector(D, seed=1):
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


def world(m, D):
    """(model, empty sum)."""
    theta0, layout = torch.zeros(D), Layout(("w",), ((D,),))
    return m.newcomer(theta0, layout), m.zero(m.server(theta0, layout))


def estimate(m, v, key):
    """What the server makes of v."""
    model, acc = world(m, v.numel())
    return m.add(acc, m.compress(None, v, model, key)[1], 1.0).total[0]


def signs(route, count, key=5):
    """B of a route: bit i of the stream, 1 for -1."""
    w = words(derive(key, Purpose.SUBSPACE, route), Purpose.SIGNS_COLUMN, -(-count // 32))
    bits = (w[np.arange(count) // 32] >> (np.arange(count) % 32).astype(np.uint32)) & 1
    return 1.0 - 2.0 * bits


@pytest.mark.parametrize("kind", MODULES)
def test_it_trains_like_its_twin(kind):
    run, theta_0, theta, gradient = trained(made(), kind, 0.2)
    sizes = {"logistic": [32], "mlp": [128, 64, 32]}[kind]
    assert cut(run.task.layout.size) == sizes

    def of_client(t, c):
        return signs(key_of(t, c) & MASK32, sum(sizes))

    assert_same(theta, drive(theta_0, sizes, rounds(), gradient, of_client, 0.2), theta_0)


@pytest.mark.parametrize("D", [1, 31, 32, 33, 100, 5000, 70000])
def test_the_estimate_is_that_of_dense_matrices(D):
    v, found = vector(D), estimate(made(), vector(D), 9).double().numpy()
    b, at = signs(9, D), 0
    for size in cut(D):
        x = v[at : at + size].double().numpy()
        if size <= 512:
            truth = naive_estimate(x, b[at : at + size])
            np.testing.assert_allclose(found[at : at + size], truth, atol=1e-5)
        assert found[at : at + size] @ x == pytest.approx(x @ x, rel=1e-5)  # the right length along v
        at += size
    assert np.array_equal(found[at:], v[at:].double().numpy())


@given(st.integers(0, 1 << 22))
def test_blocks_are_powers_of_two_and_leave_little(D):
    sizes = cut(D)
    assert 0 <= D - sum(sizes) < SMALLEST
    assert sizes == sorted(sizes, reverse=True)
    assert all(SMALLEST <= s <= LARGEST and s & (s - 1) == 0 for s in sizes)
    assert len(sizes) <= D // LARGEST + LARGEST.bit_length() - SMALLEST.bit_length()


@pytest.mark.parametrize("D", [256, 1024 + 512 + 3])
def test_the_estimate_is_unbiased_over_keys_and_errs_as_it_must(D):
    """The mean over n rotations is as far from v as n independent errors of (pi/2 - 1) |v|^2 leave it."""
    v, n = vector(D), 1000
    found = torch.stack([estimate(made(), v, key) for key in range(n)])
    square = v.square().sum()
    error = (found - v).square().sum(1) / square
    assert error.mean() == pytest.approx(math.pi / 2 - 1, rel=0.03)
    off = (found.mean(0) - v).square().sum() / square
    assert off == pytest.approx((math.pi / 2 - 1) / n, rel=0.4)
    spread = found.std(0) / math.sqrt(n)
    assert ((found.mean(0) - v).abs() <= 5 * spread + 1e-5).all()


def test_two_numbers_alone_are_beyond_it():
    """H B is no uniform rotation: of two numbers in zeros the smaller decides no sign, and is lost."""
    v = torch.zeros(256)
    v[3], v[70] = 2.0, 1.0
    for key in range(5):
        found = estimate(made(), v, key)
        torch.testing.assert_close(found[[3, 70]], torch.tensor([2.5, 0.0]), rtol=0, atol=1e-5)


def test_blocks_of_unlike_size_each_have_their_scale():
    v = torch.cat([vector(64) * 1000, vector(32) * 0.001])
    found = estimate(made(), v, 3)
    assert found[64:].norm() < 2 * v[64:].norm()
    torch.testing.assert_close(found[64:] @ v[64:], v[64:] @ v[64:])


def test_nothing_is_nothing():
    assert not estimate(made(), torch.zeros(100), 3).any()


def test_rotations_differ_between_clients_and_runs():
    first = estimate(made(), vector(64), 1)
    assert not torch.equal(first, estimate(made(), vector(64), 2))
    assert not torch.equal(first, estimate(made(key=6), vector(64), 1))
    assert torch.equal(first, estimate(made(), vector(64), 1))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3000))
def test_an_upload_has_a_bit_a_number(D):
    m = made()
    *coded, numbers = m.compress(None, vector(D), world(m, D)[0], 7)[1].blocks
    assert [len(block.data) for block in coded] == ([-(-sum(cut(D)) // 8)] if D >= SMALLEST else [])
    assert len(numbers.data) == 4 * (len(cut(D)) + D - sum(cut(D)))


def test_hostile_uploads_are_refused():
    m, D = made(), 103  # 64, 32 and seven numbers
    model, acc = world(m, D)
    up = m.compress(None, vector(D), model, 7)[1]
    coded, numbers = up.blocks
    good = numbers.numbers(9)
    negative, huge = good.clone(), good.clone()
    negative[1], huge[0] = -1.0, 3e38
    for bad in (good[1:], torch.cat([good, good[:1]]), good[:0], good / 0, negative, huge):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=[coded, wire.block(bad)]), 1.0)
    for bad in (coded.data[:-1], coded.data + b"\0", b""):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, blocks=[wire.raw(bad), numbers]), 1.0)
    for change in ({"kind": 1}, {"blocks": []}, {"blocks": [coded]}, {"blocks": [numbers, coded]}):
        with pytest.raises(WireError):
            m.add(acc, msgspec.structs.replace(up, **change), 1.0)
    assert not acc.total.any()


def test_the_twins_matrix_is_hadamards():
    H = hadamard(8)
    assert np.array_equal(H @ H.T, 8 * np.eye(8))
