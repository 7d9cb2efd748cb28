"""Local Top-K, signSGD and FedAvg/FedProx: their twins, and their laws."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naive.fedavg import fedavg
from naive.runs import assert_same, rounds, trained
from naive.signsgd import signsgd
from naive.topk import top_k, topk
from narrowcast.methods import Model, method
from narrowcast.numerics.largest import largest
from narrowcast.wire.codes import indices, signs
from narrowcast.wire.formats import FORMATS, FormatError
from narrowcast.wire.messages import Block, WireError

ETA = 0.3


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("k", [3, 20])
def test_topk_is_its_twin(kind, error_feedback, k):
    _, theta0, theta, gradient = trained(method("topk", k=k, error_feedback=error_feedback), kind, ETA)
    assert_same(theta, topk(theta0, rounds(), gradient, k, ETA, error_feedback), theta0)


def test_error_feedback_makes_a_difference():
    _, theta0, theta, gradient = trained(method("topk", k=5), "mlp", ETA)
    forgetful = topk(theta0, rounds(), gradient, 5, ETA, error_feedback=False)
    assert np.linalg.norm(theta - forgetful) > 0.05 * np.linalg.norm(theta - theta0)


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_signsgd_is_its_twin(kind):
    """A vote may tip on a gradient of nearly zero, where float32 and float64 disagree: few coordinates do."""
    _, theta0, theta, gradient = trained(method("signsgd"), kind, 0.02)
    assert_same(theta, signsgd(theta0, rounds(), gradient, 0.02), theta0, tolerance=1e-4)


@pytest.mark.parametrize("steps", [2, 5])
@pytest.mark.parametrize(("name", "mu"), [("fedavg", 0.0), ("fedprox", 0.1), ("fedprox", 0.7)])
def test_fedavg_and_fedprox_are_their_twin(name, mu, steps):
    _, theta0, theta, gradient = trained(method(name), "mlp", ETA, local_steps=steps, prox=mu)
    assert_same(theta, fedavg(theta0, rounds(), gradient, steps, ETA, mu), theta0)


def test_fedprox_holds_clients_back_by_default():
    _, theta0, theta, gradient = trained(method("fedprox"), "mlp", ETA)
    assert_same(theta, fedavg(theta0, rounds(), gradient, 5, ETA, 0.1), theta0)
    free = fedavg(theta0, rounds(), gradient, 5, ETA, 0.0)
    assert np.linalg.norm(theta - theta0) < 0.99 * np.linalg.norm(free - theta0)


@pytest.mark.parametrize("uplink", FORMATS)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 2**32))
def test_what_is_sent_and_what_is_kept_is_what_there_was(uplink, D, k, key):
    m, noise = method("topk", k=k, uplink=uplink), torch.Generator().manual_seed(key)
    model, private = Model(0, 0, torch.zeros(D)), None
    for _ in range(3):
        v = torch.randn(D, generator=noise)
        before = v + private["error"] if private else v
        private, up = m.compress(private, v, model, key)
        (_, where), values = m.terms(m.zero(m.server(torch.zeros(D), None)), up)
        sent = torch.zeros(D).index_copy(0, where, values)
        torch.testing.assert_close(sent + private["error"], before, rtol=0, atol=1e-6)
        if uplink == "f32":
            assert torch.equal(sent + private["error"], before)
            np.testing.assert_array_equal(sent.double().numpy(), top_k(before.double().numpy(), min(k, D)))


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=80), st.integers(1, 80))
def test_the_largest_are_the_largest_even_among_ties(numbers, k):
    x = torch.tensor(numbers)
    where = largest(x, min(k, len(x)))
    assert (where.diff() > 0).all()
    left = torch.ones(len(x), dtype=torch.bool).index_fill(0, where, False)
    assert not left.any() or x[left].abs().max() <= x[where].abs().min()


# The codes.


@given(st.integers(1, 3000).flatmap(lambda D: st.tuples(st.just(D), st.sets(st.integers(0, D - 1)))))
def test_positions_come_back_in_the_smaller_of_two_forms(case):
    D, chosen = case
    where = np.array(sorted(chosen), np.int64)
    data = indices.pack(where, D)
    np.testing.assert_array_equal(indices.unpack(data, D), where)
    gaps = sum(1 + sum(gap >= 1 << s for s in range(7, 63, 7)) for gap in np.diff(where, prepend=-1) - 1)
    assert len(data) == 1 + min(gaps, (D + 7) // 8)


@given(st.integers(1, 500), st.binary(max_size=70))
def test_any_bytes_are_a_set_in_its_shortest_form_or_refused(D, data):
    try:
        found = indices.unpack(data, D)
    except FormatError:
        return
    assert indices.pack(found, D) == data


@pytest.mark.parametrize("bad", [[3, 2], [2, 2], [-1], [10]])
def test_positions_that_do_not_rise_below_D_are_not_packed(bad):
    with pytest.raises(FormatError, match="must rise"):
        indices.pack(np.array(bad, np.int64), 10)


@given(st.lists(st.floats(-2, 2, width=32), max_size=100))
def test_signs_come_back(numbers):
    x = torch.tensor(numbers)
    assert torch.equal(signs.read(signs.block(x), len(x)), torch.where(x < 0, -1.0, 1.0))


def test_signs_have_one_form():
    block = signs.block(-torch.ones(11))
    for bad in (block.data + b"\0", block.data[:1], block.data[:1] + b"\xff"):
        with pytest.raises(WireError):
            signs.read(Block(block.format, bad), 11)
