"""QSGD: its twin, its law (unbiased, of bounded variance), its Elias code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive.qsgd import code, qsgd, quantise
from naive.runs import KEY, distance, rounds, trained
from narrowcast.methods import Model, method
from narrowcast.methods.qsgd import QSGD
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Purpose, derive, uniforms
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import elias
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import WireError

D, ETA = 1100, 0.3  # three buckets, the last of 76


def normal(seed=0, size=D):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def sent(m, v, key):
    """What the server makes of an upload."""
    _, up = m.compress(None, v, Model(0, 0, torch.zeros_like(v)), key)
    acc = m.zero(m.server(torch.zeros_like(v), Layout(("w",), ((v.numel(),),))))
    return m.add(acc, up, 1.0).total[0]


# Training.


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
@pytest.mark.parametrize("s", [1, 7])
@pytest.mark.parametrize("bucket", [512, 50])
def test_qsgd_is_its_twin(kind, s, bucket):
    _, theta_0, theta, gradient = trained(QSGD(levels=s, bucket=bucket), kind, ETA)

    def random(t, c):
        return uniforms(derive(KEY, Purpose.ROUTE, t, c), Purpose.ROUNDING, len(theta_0))

    twin = qsgd(theta_0, rounds(), gradient, ETA, s, random, bucket)
    assert distance(theta, twin, theta_0) < 5e-6
    other = qsgd(theta_0, rounds(), gradient, ETA, s + 1, random, bucket)
    assert distance(theta, other, theta_0) > 0.01


@pytest.mark.parametrize("s", [1, 7, 127])
def test_a_message_is_the_twins_integers_and_norms(s):
    for key in range(20):
        v = normal(key)
        values, levels = quantise(v.double().numpy(), s, uniforms(key, Purpose.ROUNDING, D))
        _, up = method("qsgd", levels=s).compress(None, v, Model(0, 0, v), key)
        assert up.blocks[0].data[12:] == code(levels)
        np.testing.assert_allclose(sent(method("qsgd", levels=s), v, key).numpy(), values, rtol=1e-6)


@pytest.mark.parametrize("s", [1, 7, 100])
def test_the_mean_over_keys_is_the_update_and_the_noise_is_bounded(s):
    """Each number has variance at most (norm / 2s)^2; a mean of n is six deviations off once in 10^9."""
    v, n, m = normal(), 400, method("qsgd", levels=s)
    found = torch.stack([sent(m, v, key) for key in range(n)]).double()
    norms = torch.cat([part.norm().expand_as(part) for part in v.double().split(512)])
    assert ((found.mean(0) - v).abs() <= 6 * norms / (2 * s * n**0.5)).all()
    noise = (found - v).square().sum(1).mean()
    assert 0 < noise <= min(512 / s**2, 512**0.5 / s) * v.double().square().sum()


@pytest.mark.parametrize("size", [1, 2, 511, 512, 513])
@pytest.mark.parametrize("s", [1, 127])
def test_odd_sizes_and_single_numbers(size, s):
    v = torch.zeros(size)
    v[-1] = -0.3
    assert torch.equal(sent(method("qsgd", levels=s), v, 3), v)  # |x| / norm is one: nothing to round
    assert not sent(method("qsgd", levels=s), torch.zeros(size), 3).any()


def test_zero_buckets_between_others():
    v = normal()
    v[512:1024] = 0
    found = sent(method("qsgd"), v, 3)
    assert not found[512:1024].any()
    assert found[:512].any()
    assert found[1024:].any()


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e17])
def test_very_small_and_large_numbers(size):
    v = normal() * size
    found = sent(method("qsgd", levels=127), v, 3)
    assert (found - v).double().norm() < 0.2 * v.double().norm()


def test_a_norm_that_overflows_is_not_sent():
    with pytest.raises(FormatError):
        sent(method("qsgd"), torch.full((D,), 3e38), 3)


def test_a_setting_is_its_levels():
    assert method("qsgd").setting == "s=7"
    for wrong in (0, 128):
        with pytest.raises(ValueError, match="levels"):
            method("qsgd", levels=wrong)


# The message.


def uploaded():
    m, v = method("qsgd"), normal()
    v[512:1024] = 0
    acc = m.zero(m.server(torch.zeros(D), Layout(("w",), ((D,),))))
    return m, acc, m.compress(None, v, Model(0, 0, v), 3)[1]


def norm(number):
    return np.float32(number).astype("<f4").tobytes()


def with_levels(d, levels):
    return d[:12] + elias.pack(np.array(levels, np.int8))


HOSTILE = {
    "NaN": lambda d: norm(np.nan) + d[4:],
    "infinity": lambda d: norm(np.inf) + d[4:],
    "negative": lambda d: norm(-1.0) + d[4:],
    "minus zero": lambda d: d[:4] + norm(-0.0) + d[8:],
    "huge": lambda d: norm(3e38) + d[4:],
    "a norm of zero with numbers": lambda d: norm(0.0) + d[4:],
    "nothing": lambda d: b"",
    "norms only": lambda d: d[:12],
    "half a norm": lambda d: d[:10],
    "cut": lambda d: d[:-1],
    "a byte more": lambda d: d + b"\0",
    "a level more": lambda d: with_levels(d, [1] * (D + 1)),
    "a level less": lambda d: with_levels(d, [1] * (D - 1)),
    "a zero less": lambda d: with_levels(d, [0] * (D - 1)),
    "a zero more": lambda d: with_levels(d, [0] * (D + 1)),
    "beyond s": lambda d: with_levels(d, [8] + [0] * (D - 1)),
    "no end": lambda d: d[:12] + bytes(1 << 16),
    "bits after the end": lambda d: d[:-1] + bytes([d[-1] | 128]),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_hostile_upload_is_a_wire_error(change):
    m, acc, up = uploaded()
    good = up.blocks[0].data
    assert good[-1] < 64  # there are bits after the end
    with pytest.raises(WireError):
        m.add(acc, wire.payload([wire.raw(HOSTILE[change](good))]), 1.0)
    assert not acc.total.any()
    m.add(acc, up, 1.0)


def test_an_upload_of_another_shape_is_a_wire_error():
    m, acc, up = uploaded()
    for bad in (
        wire.payload([wire.Block(0, up.blocks[0].data)]), wire.payload(up.blocks, kind=1),
        wire.payload([]), wire.payload(up.blocks * 2),
    ):  # fmt: skip
        with pytest.raises(WireError):
            m.add(acc, bad, 1.0)


# The Elias code.

LEVELS = st.lists(st.one_of(st.just(0), st.integers(-127, 127), st.integers(-1, 1)), max_size=300)


@settings(deadline=None)
@given(LEVELS)
def test_integers_return_and_are_written_as_bit_by_bit(levels):
    data = elias.pack(np.array(levels, np.int8))
    assert data == code(levels)
    assert elias.unpack(data, len(levels), 127).tolist() == levels


def test_long_runs_cost_little():
    levels = np.zeros(1_000_000, np.int8)
    assert len(elias.pack(levels)) == 5
    levels[[777_777, -1]] = 5, -127
    data = elias.pack(levels)
    assert len(data) < 14
    assert (elias.unpack(data, len(levels), 127) == levels).all()


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=30), st.integers(0, 60), st.integers(1, 127))
def test_bytes_are_the_code_of_one_list_or_refused(data, count, most):
    try:
        levels = elias.unpack(data, count, most)
    except FormatError:
        return
    assert abs(levels.astype(int)).max(initial=0) <= most
    assert elias.pack(levels) == data


@pytest.mark.parametrize("zeros", range(0, 200, 7))
def test_a_number_of_any_length_is_read_or_refused(zeros):
    """Codes that no integer has: far too many zeros before the one."""
    data = ((1 << zeros) | (1 << zeros + 200)).to_bytes(60, "little")
    with pytest.raises(FormatError):
        elias.unpack(data, 3, 127)
