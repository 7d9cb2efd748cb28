"""Sparse ternary compression: its twin, its error feedback on both sides, its Golomb code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive.runs import distance, rounds, trained
from naive.stc import golomb as naive_golomb
from naive.stc import stc, ternary
from narrowcast.methods import Model, RoundInfo, method
from narrowcast.numerics.flat import Layout
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import golomb
from narrowcast.wire.codes import ternary as code
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import WireError

D, K, ETA = 200, 9, 1.0


def model(size=D):
    return Model(0, 0, torch.zeros(size))


def normal(seed, size=D):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def dense(block, size=D, k=K):
    where, numbers = code.read(block, size, k)
    return torch.zeros(size).index_copy(0, where, numbers)


# Training.


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("k", [4, 20])
def test_stc_is_its_twin(kind, error_feedback, k):
    _, theta_0, theta, gradient = trained(method("stc", k=k, error_feedback=error_feedback), kind, ETA)
    twin = stc(theta_0, rounds(), gradient, ETA, k, error_feedback)
    assert distance(theta, twin, theta_0) < 5e-6
    other = stc(theta_0, rounds(), gradient, ETA, k, not error_feedback)
    assert distance(theta, other, theta_0) > 0.01


def test_what_is_sent_is_the_ternary_vector_and_with_what_is_kept_the_update():
    m, private, exact = method("stc", k=K), None, torch.zeros(D, dtype=torch.float64)
    for seed in range(30):
        before = private["error"] if private else torch.zeros(D)
        x = normal(seed) + before
        private, up = m.compress(private, normal(seed), model(), key=seed)
        sent = dense(up.blocks[0])
        np.testing.assert_allclose(sent.numpy(), ternary(x.double().numpy(), K), rtol=1e-6)
        assert torch.equal(private["error"], x - sent)
        elsewhere = sent == 0
        assert torch.equal(private["error"][elsewhere], x[elsewhere])  # exactly, where nothing was sent
        exact += normal(seed).double() - sent.double()
    torch.testing.assert_close(private["error"].double(), exact, atol=1e-5, rtol=0)  # nothing is ever lost


def test_the_server_keeps_what_its_step_leaves_out():
    m = method("stc", k=K)
    server = m.server(torch.zeros(D), Layout(("w",), ((D,),)))
    given_ = torch.zeros(D, dtype=torch.float64)
    for t in range(20):
        acc = m.zero(server)
        for client in range(3):
            _, up = m.compress(None, normal(10 * t + client), model(), key=0)
            acc = m.add(acc, up, 1.0)
            given_ += dense(up.blocks[0]).double() * 0.5 / 3
        before = m.theta(server)
        server = m.step(server, acc, RoundInfo(t, 0, False, 0.5))
        assert (m.theta(server) != before).sum() == K
        torch.testing.assert_close(
            server.state["error"].double() - m.theta(server).double(), given_, atol=1e-5, rtol=0
        )


def test_without_error_feedback_clients_keep_nothing():
    m = method("stc", k=K, error_feedback=False)
    assert not m.stateful
    assert m.compress(None, normal(0), model(), key=0)[0] is None


def test_a_client_that_missed_steps_replays_them_for_less_than_the_model():
    m, theta0 = method("stc", k=K), normal(0, 2000)
    server, layout = m.server(theta0, Layout(("w",), ((2000,),))), Layout(("w",), ((2000,),))
    client = m.newcomer(theta0, layout)
    for t in range(7):
        _, up = m.compress(None, normal(t, 2000), model(2000), key=0)
        server = m.step(server, m.add(m.zero(server), up, 1.0), RoundInfo(t, 0, False, 0.5))
    down = m.download(server, None)
    assert len(down.blocks) == 7
    assert len(wire.encode_payload(down)) < 7 * 40
    assert torch.equal(m.reconcile(client, down, 7)[1], m.theta(server))


@pytest.mark.parametrize("v", [torch.zeros(D), normal(0) * (torch.arange(D) < 4), normal(0) * 1e-44])
def test_updates_with_fewer_than_k_numbers_lose_nothing(v):
    private, up = method("stc", k=K).compress(None, v, model(), key=0)
    assert torch.equal(private["error"] + dense(up.blocks[0]), v)


def test_a_size_never_overflows():
    block = code.block(torch.arange(3), torch.full((3,), -3.4e38), 3)
    assert torch.equal(code.read(block, 3, 3)[1], torch.full((3,), -3.4e38))


# The message.


def uploaded():
    m = method("stc", k=K)
    acc = m.zero(m.server(torch.zeros(D), Layout(("w",), ((D,),))))
    return m, acc, m.compress(None, normal(0), model(), key=0)[1]


def mu(number):
    return np.float32(number).astype("<f4").tobytes()


HOSTILE = {
    "NaN": lambda d: mu(np.nan) + d[4:],
    "infinity": lambda d: mu(np.inf) + d[4:],
    "negative": lambda d: mu(-1.0) + d[4:],
    "minus zero": lambda d: mu(-0.0) + d[4:],
    "huge": lambda d: mu(3e38) + d[4:],
    "signs after the last": lambda d: d[:5] + b"\x02" + d[6:],
    "nothing": lambda d: b"",
    "no positions": lambda d: d[:6],
    "cut": lambda d: d[:-1],
    "a byte more": lambda d: d + b"\0",
    "a position more": lambda d: d + b"\xff",
    "bits after the end": lambda d: d[:-1] + bytes([d[-1] | 128]),
    "beyond the end": lambda d: d[:6] + bytes(len(d) - 7) + b"\xff",
    "zeros": lambda d: d[:6] + bytes(1 << 16),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_upload_is_a_wire_error(change):
    m, acc, up = uploaded()
    good = up.blocks[0].data
    assert good[5] & 2 == 0  # nine signs take nine bits
    assert good[-1] < 128
    with pytest.raises(WireError):
        m.add(acc, wire.payload([wire.raw(HOSTILE[change](good))]), 1.0)
    assert not acc.total.any()
    m.add(acc, up, 1.0)


@pytest.mark.parametrize("change", ["format", "kind", "no block", "two blocks", "another k"])
def test_an_upload_of_another_shape_is_a_wire_error(change):
    m, acc, up = uploaded()
    bad = {
        "format": wire.payload([wire.Block(0, up.blocks[0].data)]),
        "kind": wire.payload(up.blocks, kind=1),
        "no block": wire.payload([]),
        "two blocks": wire.payload(up.blocks * 2),
        "another k": method("stc", k=K + 1).compress(None, normal(0), model(), key=0)[1],
    }[change]
    with pytest.raises(WireError):
        m.add(acc, bad, 1.0)


@settings(deadline=None)
@given(st.data())
def test_whatever_is_done_to_an_upload_it_is_refused_or_has_another_meaning(data):
    *_, up = uploaded()
    good = up.blocks[0].data
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(good))] * 2)))
    bad = good[:start] + data.draw(st.binary(max_size=20)) + good[stop:]
    try:
        found = dense(wire.raw(bad))
    except WireError:
        return
    assert (bad == good) == torch.equal(found, dense(up.blocks[0]))


# Golomb codes.

SETS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1))))


@settings(deadline=None)
@given(SETS)
def test_positions_return_and_are_written_as_in_the_paper(case):
    size, chosen = case
    positions = np.array(sorted(chosen), np.int64)
    data = golomb.pack(positions, size)
    assert data == naive_golomb(positions, size) if len(positions) else data == b""
    assert golomb.unpack(data, size, len(positions)).tolist() == positions.tolist()


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_all_and_none_and_the_last_of_the_positions(size):
    for positions in ([], [size - 1], [0], range(size)):
        found = np.array(positions, np.int64)
        data = golomb.pack(found, size)
        assert golomb.unpack(data, size, len(found)).tolist() == list(positions)
    assert len(data) == (size + 7) // 8  # all of them: a bit each


def test_positions_in_a_model_of_billions():
    positions = np.array([0, 1, 1 << 20, (1 << 40) - 1], np.int64)
    data = golomb.pack(positions, 1 << 40)
    assert len(data) < 24
    assert golomb.unpack(data, 1 << 40, 4).tolist() == positions.tolist()


@settings(deadline=None)
@given(st.binary(max_size=30), st.integers(1, 60), st.integers(0, 60))
def test_bytes_are_the_code_of_one_set_or_refused(data, size, count):
    count = min(count, size)
    try:
        found = golomb.unpack(data, size, count)
    except FormatError:
        return
    assert len(found) == count
    assert golomb.pack(found, size) == data


def test_random_positions_take_few_bits():
    """The entropy of the set is log2(D choose k) = 8.06 bits a position at one in a hundred."""
    rng = np.random.default_rng(0)
    positions = np.sort(rng.choice(118_282, 1182, replace=False))
    assert 8.06 < 8 * len(golomb.pack(positions, 118_282)) / 1182 < 8.3


@pytest.mark.parametrize("positions", [[3, 2], [1, 1], [-1, 0], [5, 10]])
def test_positions_that_do_not_rise_or_fit_are_refused(positions):
    with pytest.raises(FormatError):
        golomb.pack(np.array(positions, np.int64), 10)


@pytest.mark.parametrize("size", [1, 10, 200, 1000])
def test_a_position_just_beyond_the_last_is_refused(size):
    for count in {1, (size + 1) // 2}:
        positions = np.arange(size - count, size)
        assert golomb.unpack(naive_golomb(positions, size), size, count).tolist() == positions.tolist()
        beyond = np.array([*positions[:-1], size])
        with pytest.raises(FormatError, match="out of range"):
            golomb.unpack(naive_golomb(beyond, size), size, count)
