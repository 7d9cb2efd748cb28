"""Dithered uploads and lattice points: unbiased, of known error and rate, and refused when hostile."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.wire.codes import gaussian, lattice
from narrowcast.wire.codes.lattice import Points
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import DITHERED, POINTS, Block, WireError

BITS = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.3, 16.0]
ALPHA = 1e-6  # chance that a true law of chance looks broken; keys are fixed, so there is no flicker
BOUND = 4.9  # deviations of a normal that chance goes beyond with ALPHA


def gaussian_numbers(count, key=1, size=0.37):
    return torch.from_numpy(keyed.normals(key, Purpose.NORMALS, count)) * size


def read_back(x, key, bits):
    step = lattice.step_of(x, bits)
    return step, lattice.read_dithered(lattice.dithered(x, key, step), x.numel(), key)


ADVERSARIAL = {
    "one large": torch.tensor([100.0] + [0.1] * 63),
    "on the lattice": torch.arange(-32, 32).float(),
    "halfway": torch.arange(64).float() + 0.5,
    "equal": torch.full((64,), 0.3),
    "geometric": 2.0 ** torch.arange(-32, 32).float(),
    "gaussian": gaussian_numbers(64),
}


@pytest.mark.parametrize("bits", [0.25, 1.5, 6.0])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_mean_over_dithers_is_the_number_whatever_the_others_are(name, bits):
    x, keys = ADVERSARIAL[name], 500
    total, step = torch.zeros(64, dtype=torch.float64), lattice.step_of(x, bits)
    for key in range(keys):
        total += read_back(x, key, bits)[1]
    error = (total / keys - x).abs().max().item()
    rounding = 2.0**-23 * x.abs().max().item()
    assert error <= step * math.sqrt(1 / 12 / keys) * BOUND + rounding


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_error_over_the_step_is_uniform_and_knows_nothing_of_the_number(name, bits):
    x = ADVERSARIAL[name].repeat(40)
    errors, steps = [], set()
    for key in range(20):
        step, y = read_back(x, key, bits)
        steps.add(step)
        errors.append((y.double() - x.double()) / step)
    assert len(steps) == 1  # the step is x's alone
    e = torch.cat(errors)
    slack = 2.0**-23 * x.abs().max().item() / step
    assert e.abs().max() <= 0.5 + slack
    n = e.numel()
    assert abs(e.square().mean() * 12 - 1) < BOUND * math.sqrt(4 / 5 / n) + 24 * slack
    places = torch.sort(e + 0.5).values
    gap = (places - (torch.arange(n) + 0.5) / n).abs().max().item()
    assert gap < math.sqrt(math.log(2 / ALPHA) / 2 / n) + slack + 1 / n  # Kolmogorov and Smirnov
    # No line through (number, error) is steeper than chance makes it.
    z = x.double().repeat(20)
    z = (z - z.mean()) / max(z.std().item(), 1e-12)
    assert abs((z * e).mean()) < BOUND * math.sqrt(1 / 12 / n) + slack


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("count", [512, 4096, 50_000])
def test_a_block_takes_the_bits_that_were_asked_for(count, bits):
    x = gaussian_numbers(count, 7)
    size = sum(len(lattice.dithered(x, key, lattice.step_of(x, bits)).data) for key in range(8)) / 8
    assert abs(8 * size / count / bits - 1) < (0.05 if bits * count > 200 else 0.2)


@pytest.mark.parametrize("bits", [0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("count", [512, 16_384])
def test_a_block_is_within_one_per_cent_and_twelve_bytes_of_the_conditional_entropy(count, bits):
    step, size, keys = gaussian.step_for(bits, True), 0.0, 8
    for key in range(keys):
        x = gaussian_numbers(count, 100 + key, 1.0)
        size += len(lattice.dithered(x, key, step).data) / keys
    most, us = math.ceil(6 / step) + 2, (np.arange(400) + 0.5) / 800
    p = np.stack([gaussian.density(step, u, most) for u in us])
    entropy = float(-(p * np.log2(np.maximum(p, 1e-300))).sum(axis=1).mean())
    spread = 3 * 1.5 * math.sqrt(count / keys) / 8  # bytes that chance moves the mean by
    assert abs(entropy / bits - 1) < 0.01
    assert size <= 1.01 * entropy * count / 8 + 12 + spread


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), max_size=50),
    st.integers(0, 30),
    st.sampled_from(BITS),
)
def test_a_block_is_never_over_sixteen_bytes_longer_than_plain(numbers, zeros, bits):
    x = torch.tensor(numbers + [0.0] * zeros)
    step = lattice.step_of(x, bits)
    block = lattice.dithered(x, 5, step)
    assert len(block.data) <= 4 * x.numel() + 16
    y = lattice.read_dithered(block, x.numel(), 5)
    assert ((y.double() - x.double()).abs() <= step * 0.5 * (1 + 1e-9) + x.abs().double() * 2.0**-23).all()


def test_zeros_are_zeros():
    for count in (0, 1, 9):
        block = lattice.dithered(torch.zeros(count), 3, lattice.step_of(torch.zeros(count), 1.5))
        assert len(block.data) == 5
        assert torch.equal(lattice.read_dithered(block, count, 3), torch.zeros(count))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_encoded(bad):
    x = torch.tensor([1.0, bad])
    with pytest.raises(FormatError):
        lattice.step_of(x, 1.5)
    with pytest.raises(FormatError):
        lattice.dithered(x, 1, 1.0)


def test_what_could_be_read_as_an_infinity_is_not_encoded():
    x = torch.tensor([3.4e38, -3.4e38])
    with pytest.raises(FormatError):
        lattice.dithered(x, 1, lattice.step_of(x, 0.5))


def test_with_a_step_common_to_all_the_sum_is_known_from_the_integers_alone():
    """What secure aggregation needs: sum_w s (k_w - u_w) = s (sum_w k_w - sum_w u_w)."""
    from narrowcast.numerics.kernels import rans
    from narrowcast.wire.codes import integers

    xs = [gaussian_numbers(200, w, 0.1 + w) for w in range(5)]
    integer, dither, decoded = np.zeros(200), np.zeros(200), torch.zeros(200, dtype=torch.float64)
    for key, x in enumerate(xs):
        block = lattice.dithered(x, key, 0.5)
        decoded += lattice.read_dithered(block, 200, key)
        words = keyed.words(key, Purpose.DITHER, 200)
        bins = np.empty(200, np.uint8)
        rans.fill_bins(words, bins)
        k = integers.unpack(block.data[4:], 200, bins)
        integer += np.where(words >= 1 << 31, k, -k)
        dither += (words + 0.5) / 2**32 - 0.5
    assert np.allclose(decoded.numpy(), 0.5 * (integer - dither), atol=1e-5)


@pytest.mark.parametrize("step", [math.nan, math.inf, -1.0, -0.0])
@pytest.mark.parametrize("format", [DITHERED, POINTS])
def test_a_step_that_is_no_size_is_refused(step, format):
    block = Block(format, np.float32(step).tobytes() + bytes([226, 0b01010101]))
    with pytest.raises(WireError):
        lattice.read_dithered(block, 4, 1) if format == DITHERED else lattice.read_points(block, 4)


def test_a_step_that_overflows_is_refused():
    code = bytes([224 + 4, 0x77, 0x77])
    for format in (DITHERED, POINTS):
        block = Block(format, np.float32(3e38).tobytes() + code)
        with pytest.raises(WireError):
            lattice.read_dithered(block, 4, 1) if format == DITHERED else lattice.read_points(block, 4)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 40), st.sampled_from([DITHERED, POINTS, 0, 127]))
def test_whatever_bytes_are_so_many_numbers_or_a_wire_error(data, count, format):
    for read in (
        lambda b: lattice.read_dithered(b, count, 9),
        lambda b: lattice.read_points(b, count).values,
    ):
        try:
            values = read(Block(format, data))
        except WireError:
            continue
        assert values.shape == (count,)
        assert torch.isfinite(values).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(-(1 << 30) + 1, (1 << 30) - 1), max_size=40),
    st.floats(2.0**-100, 2.0**60, width=32),
)
def test_points_come_back_as_they_were(numbers, step):
    point = Points(step, np.array(numbers, np.int32))
    back = lattice.read_points(lattice.points(point), len(numbers))
    assert back.step == step
    assert (back.numbers == point.numbers).all()
    assert torch.equal(back.values, point.values)


def test_the_nearest_point_is_the_nearest():
    x = gaussian_numbers(500, 4, 3.0)
    for step in (0.25, 0.3, 7.0):
        found = lattice.nearest(x, step)
        assert ((found.values - x).abs() <= step / 2 + 1e-5).all()
    for bad in (torch.tensor([math.nan]), torch.tensor([1e30])):
        with pytest.raises(FormatError):
            lattice.nearest(bad, 1e-9)
