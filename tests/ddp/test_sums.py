"""The laws of numbers of few bits through an all-reduce: unbiased, bounded, the same for all."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.ddp import sums
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose


class Meeting:
    """An all-reduce for threads: everyone waits for everyone."""

    def __init__(self, count):
        self.count, self.barrier, self.given = count, threading.Barrier(count), [None] * count
        self.bytes = []

    def all(self, rank, x):
        self.given[rank] = x
        self.barrier.wait(60)
        everything = list(self.given)
        self.barrier.wait(60)
        return everything


class Member:
    def __init__(self, meeting, rank):
        self.meeting, self.rank, self.count = meeting, rank, meeting.count

    def add(self, x):
        self.meeting.bytes.append(x.nbytes)
        return torch.stack(self.meeting.all(self.rank, x)).sum(0)

    def most(self, *x):
        return [max(each) for each in zip(*self.meeting.all(self.rank, x), strict=True)]


def together(xs, bits, key=5, cut=False):
    """(what each sent, what each read as the mean, bytes that one gave to be added), (W, d) each."""
    meeting = Meeting(len(xs))
    with ThreadPoolExecutor(len(xs)) as pool:
        futures = [
            pool.submit(sums.mean, x, Member(meeting, rank), bits, key, cut) for rank, x in enumerate(xs)
        ]
        sent, means = zip(*(future.result() for future in futures), strict=True)
    return torch.stack(sent), torch.stack(means), set(meeting.bytes)


def naive(xs, bits, key):
    """The mean by exact fractions, one number after the other, without words."""
    W, levels = len(xs), sums.packing(bits, len(xs)).levels
    step = float(xs.abs().max()) / levels
    places = keyed.words(key, Purpose.DITHER, xs.shape[1])
    out = []
    for i, place in enumerate(places.tolist()):
        total = Fraction(0)
        for w in range(W):
            u = Fraction(2 * ((place + (w << 32) // W) % 2**32) + 1, 2**33) - Fraction(1, 2)
            k = math.floor(Fraction(float(xs[w, i])) / Fraction(step) + u + Fraction(1, 2))
            assert abs(k) <= levels
            total += k - u
        out.append(float(total * Fraction(step) / W))
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize(("W", "bits", "d"), [(1, 1.6, 83), (2, 4, 257), (3, 5, 12), (5, 8, 1), (7, 16, 9)])
def test_all_read_what_exact_arithmetic_gives(W, bits, d):
    xs = torch.randn(W, d, generator=torch.Generator().manual_seed(d))
    sent, means, sizes = together(xs, bits)
    for mean in means:
        assert torch.equal(mean, means[0])
    want = naive(xs, bits, 5)
    assert torch.allclose(means[0].double(), want, rtol=1e-6, atol=1e-7 * float(want.abs().max()))
    assert torch.allclose(sent.mean(0), means[0], atol=1e-5)
    assert sizes == {8 * math.ceil(d / sums.packing(bits, W).digits)}


@given(
    W=st.integers(1, 9),
    bits=st.sampled_from([4.3, 5, 6.4, 8, 11, 16]),
    d=st.integers(1, 70),
    size=st.sampled_from([1e-45, 1e-30, 1.0, 1e38]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_nobody_is_off_by_more_than_half_a_step_and_nothing_is_carried(W, bits, d, size, seed):
    """At any size, and where all stand at the ends of the range: a digit that overflowed would show."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(-1, 2, (W, d), generator=generator).float()
    inner = torch.rand(W, d, generator=generator) * 2 - 1
    xs = torch.where(torch.rand(W, d, generator=generator) < 0.7, ends, inner) * size
    sent, means, _ = together(xs, bits, seed)
    step = float(xs.abs().max()) / sums.packing(bits, W).levels
    slack = 0.5000001 * step + 2e-7 * size + 2e-45
    assert float((sent.double() - xs.double()).abs().max()) <= slack
    assert float((means[0].double() - xs.double().mean(0)).abs().max()) <= slack
    assert all(torch.equal(mean, means[0]) for mean in means)


ADVERSE = [0.0, 1e-6, 0.16, 1 / 6, 0.17, 1 / 3, 0.49, 0.5, 0.51, 0.8, 0.999, 1.0, -1.0, -0.5, -0.25, -1e-3]


def test_the_mean_over_dithers_is_the_number_whatever_it_is():
    """4 bits and two workers have L = 3; the numbers lie on, between and beside the points of the lattice."""
    many = 40_000
    row = torch.tensor(ADVERSE).repeat(many)
    for other in (row, -row, torch.zeros_like(row), row.roll(3)):
        _, means, _ = together(torch.stack([row, other]), 4)
        error = (means[0] - (row + other) / 2).double().view(many, -1)
        # s = 1/3: no error exceeds s/2, and the mean of many has a deviation of s / sqrt(12 many) at most
        assert float(error.mean(0).abs().max()) <= 5 * (1 / 3) / math.sqrt(12 * many)


@pytest.mark.parametrize("W", [2, 4])
def test_the_error_of_one_is_a_twelfth_of_a_squared_step_and_of_equals_that_of_a_finer_lattice(W):
    x = torch.rand(60_000, generator=torch.Generator().manual_seed(1)) * 2 - 1
    x[0] = 1.0
    alike = x.expand(W, -1)
    apart = torch.stack([x, *torch.rand(W - 1, x.numel(), generator=torch.Generator().manual_seed(2))])
    step = 1.0 / sums.packing(5, W).levels
    sent, means, _ = together(alike, 5)
    assert float((sent - alike).double().var(1).min()) == pytest.approx(step**2 / 12, rel=0.03)
    assert float((means[0] - x).double().var()) == pytest.approx((step / W) ** 2 / 12, rel=0.03)
    sent, means, _ = together(apart, 5)
    assert float((means[0] - apart.mean(0)).double().var()) == pytest.approx(step**2 / 12 / W, rel=0.05)


def test_the_step_looks_at_the_numbers_and_not_at_the_dither():
    """Whatever the key, what is sent lies on the lattice of max |x| / L, shifted by that key's dither."""
    x = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    step = float(x.abs().max()) / sums.packing(4, 1).levels
    for key in range(20):
        sent, _, _ = together(x, 4, key)
        u = (keyed.words(key, Purpose.DITHER, 50) + 0.5) * 2.0**-32 - 0.5
        k = sent[0].double().numpy() / step + u
        assert np.abs(k - np.round(k)).max() < 1e-5


@given(bits=st.floats(1.6, 16), workers=st.integers(1, 5000))
def test_sums_fit_the_word_and_no_further_level_would(bits, workers):
    try:
        digits, levels, radix = sums.packing(bits, workers)
    except ValueError as error:
        least = float(str(error).split("give bits=")[1].split()[0])
        assert least > bits
        assert sums.packing(least, workers).levels >= 1
        return
    assert radix == 2 * workers * levels + 1
    assert radix**digits <= 2**64 < (2 * workers * (levels + 1) + 1) ** digits
    assert 64 / digits <= bits * (1 + 1 / 3) + 1e-6  # whole numbers fill a word: bits are rounded down
    assert 64 / (digits + 1) < bits + 1e-6


def test_the_levels_that_the_docs_name():
    assert sums.packing(8, 2) == (8, 63, 253)
    assert sums.packing(8, 8) == (8, 15, 241)
    assert sums.packing(4, 2) == (16, 3, 13)
    assert sums.packing(3.2, 2) == (20, 2, 9)
    with pytest.raises(ValueError, match=r"9 values at least.*bits=3.2 or more"):
        sums.packing(2.4, 4)


@pytest.mark.parametrize("bits", [0, 1.5, 16.5, 33, math.nan])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match=r"1\.6 to 16, or 32"):
        sums.check_bits(bits)


@pytest.mark.parametrize("spoilt", [math.inf, -math.inf, math.nan, 3.3e38])
def test_a_number_that_is_not_finite_or_nearly_so_is_nan_for_all_and_zeros_are_zeros(spoilt):
    xs = torch.ones(3, 9)
    xs[1, 4] = spoilt
    _, means, sizes = together(xs, 6)
    assert torch.isnan(means).all()
    assert not sizes
    _, means, sizes = together(torch.zeros(3, 9), 6)
    assert not means.any()
    assert not sizes


def test_with_few_levels_numbers_that_are_far_out_are_cut_and_the_rest_are_finer():
    """Ternary: (L + 1/2) s = 3 rms, so s = 2 rms; of 6 rms at most 1.5 s is sent."""
    xs = torch.ones(2, 400)
    xs[0, 7] = -6.0
    rms = float(xs[0].double().norm()) / 20
    sent, means, _ = together(xs, 2.37, cut=True)
    off = (sent - xs).abs()
    off[0, 7] = 0.0
    assert float(off.max()) <= rms * 1.00001  # half a step
    assert -3.00001 * rms <= float(sent[0, 7]) <= -rms
    assert torch.equal(means[0], means[1])
    assert torch.allclose(means[0], sent.mean(0), atol=1e-5)
    fine = torch.zeros(2, 9)
    fine[0, 2] = 1e-45  # the deviation of such numbers is none in float32
    assert float((together(fine, 2.37, cut=True)[1][0] - fine.mean(0)).abs().max()) <= 1e-44


def test_float32_is_the_plain_mean():
    xs = torch.randn(2, 9)
    sent, means, sizes = together(xs, 32)
    assert torch.equal(sent, xs)
    assert torch.equal(means[0], (xs[0] + xs[1]) / 2)
    assert sizes == {36}
