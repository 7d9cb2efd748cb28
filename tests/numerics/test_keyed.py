"""The laws of the random bits: known answers, one definition, no collisions, bijections, fair samples."""

import hashlib
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

from narrowcast.numerics import pool
from narrowcast.numerics.keyed import (
    MASK31,
    MASK32,
    MASK64,
    Purpose,
    below,
    derive,
    derive_many,
    normal_table,
    normals,
    permuted,
    philox,
    scattered,
    split,
    uniforms,
    words,
)

KEYS = st.integers(0, MASK64)
PURPOSES = st.sampled_from(Purpose)
ALPHA = (
    1e-6  # a law of chance is broken when its p-value is below this; keys are fixed, so there is no flicker
)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


# Philox4x32-10, as Random123's kat_vectors has it.


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK32,) * 4, MASK64, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0xA4093822 | 0x299F31D0 << 32,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter, key, answer):
    assert philox(counter, key) == answer


@settings(deadline=None)
@given(KEYS, PURPOSES, st.integers(0, 70), st.sampled_from([0, 2**32 - 3, 2**40]) | st.integers(0, 2**62))
def test_words_are_philox_of_block_number_and_purpose(key, purpose, count, first):
    blocks = range(first, first + -(-count // 4))
    plain = [w for b in blocks for w in philox((b & MASK32, b >> 32, purpose, 1 << 31), key)]
    assert words(key, purpose, count, first).tolist() == plain[:count]


@settings(deadline=None)
@given(KEYS, PURPOSES, st.integers(0, 3000), st.integers(0, 750))
def test_a_stream_may_be_entered_at_any_block(key, purpose, count, first):
    assert (
        words(key, purpose, count, first).tolist()
        == words(key, purpose, 4 * first + count)[4 * first :].tolist()
    )


def test_uniforms_are_words_over_two_to_the_32():
    u = uniforms(3, Purpose.SAMPLE, 100_000)
    assert np.array_equal(u * 2**32, words(3, Purpose.SAMPLE, 100_000))
    assert 0 <= u.min() <= u.max() < 1
    assert kstest(u, "uniform").pvalue > ALPHA


def test_words_are_the_golden_ones():
    assert digest(words(12345, Purpose.NORMALS, 100_001)) == "7d5e9e06215870bc"


# Keys.


def test_derive_never_gives_the_same_key_twice():
    some = [0, 1, 2, 3, 5, 31, 32, MASK31]
    wide = [*some, 1 << 31, MASK32, 1 << 32, 1 << 63, MASK64]
    grid = list(product([0, 1, 1 << 32, MASK64], Purpose, wide, some))
    assert len({derive(*point) for point in grid}) == len(grid)


@settings(deadline=None)
@given(KEYS, PURPOSES, KEYS, st.lists(st.integers(0, MASK31)))
def test_derive_many_is_derive_for_each(key, purpose, a, b):
    expected = [derive(key, purpose, a, i) for i in b]
    assert derive_many(key, purpose, a, np.array(b, np.int64)) == expected


def test_a_derived_key_is_never_a_piece_of_a_stream_of_the_same_key():
    """derive(key, p, a, 0) must not use the counter of block p + 2^32 (a mod 2^32) of stream a div 2^32."""
    for stream in (Purpose.SIGNS_ROW, Purpose.NORMALS):
        w = words(7, stream, 2, first_block=int(Purpose.RUN)).tolist()
        assert derive(7, Purpose.RUN, a=int(stream) << 32) != w[0] | w[1] << 32


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ((0, Purpose.SUBSPACE), 0x5CB200DBF8E4CCA4),
        ((12345, Purpose.ROUTE, 7, 3), 0x1B9F50C5385C2DDC),
        ((MASK64, Purpose.SAMPLE, MASK64, MASK31), 0x5C963E903006F73C),
        ((1 << 32, Purpose.DATA, 1 << 32), 0x7C035B5ACC079F7E),
    ],
)
def test_derive_gives_the_golden_keys(args, key):
    assert derive(*args) == key


def test_purposes_are_never_renumbered():
    names = (
        "SUBSPACE ROUTE SAMPLE ATTEND DROP INIT AUGMENT PARTITION LOCAL "
        "SIGNS_ROW SIGNS_COLUMN OFFSET BIJECTION NORMALS RUN ROUNDING DATA"
    )
    assert [p.name for p in Purpose][:17] == names.split()
    assert sorted(Purpose) == list(range(1, len(Purpose) + 1))


@pytest.mark.parametrize(("a", "b"), [(-1, 0), (MASK64 + 1, 0), (0, -1), (0, MASK31 + 1)])
def test_derive_refuses_numbers_that_do_not_fit(a, b):
    with pytest.raises(ValueError, match="derive takes"):
        derive(0, Purpose.RUN, a, b)


@pytest.mark.parametrize("b", [-1, MASK31 + 1])
def test_derive_many_refuses_numbers_that_do_not_fit(b):
    with pytest.raises(ValueError, match="derive takes"):
        derive_many(0, Purpose.RUN, 0, np.array([0, b]))


@pytest.mark.parametrize("key", [-1, MASK64 + 1])
@pytest.mark.parametrize(
    "use",
    [
        split,
        lambda key: words(key, Purpose.RUN, 4),
        lambda key: derive(key, Purpose.RUN),
        lambda key: permuted(key, 10),
    ],
    ids=["split", "words", "derive", "permuted"],
)
def test_a_key_has_64_bits(use, key):
    with pytest.raises(ValueError, match=r"64 bits|2\^64"):
        use(key)


@settings(deadline=None)
@given(KEYS, st.integers(1, 2**40))
def test_below_is_below(key, n):
    assert 0 <= below(key, n) < n


# Bijections.


@pytest.mark.parametrize("key", [0, 1, 12345, MASK64])
@pytest.mark.parametrize("sizes", [range(1, 301), [4095, 4096, 4097, 32_771]], ids=str)
@pytest.mark.parametrize("pi", [permuted, scattered])
def test_both_are_bijections(pi, sizes, key):
    for n in sizes:
        assert np.array_equal(np.sort(pi(key, n)), np.arange(n)), n


@pytest.mark.parametrize("pi", [permuted, scattered])
def test_both_are_bijections_of_many(pi):
    for n in (65_537, 999_983):
        assert np.array_equal(np.sort(pi(12345, n)), np.arange(n)), n


@settings(deadline=None)
@given(KEYS, st.integers(1, 30_000), st.data())
def test_a_part_of_a_bijection_is_the_slice_of_the_whole(key, n, data):
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    for pi in (permuted, scattered):
        assert np.array_equal(pi(key, n, start, stop), pi(key, n)[start:stop])


@pytest.mark.parametrize(("n", "start", "stop"), [(10, -1, 5), (10, 6, 5), (10, 0, 11), (-1, 0, None)])
def test_permuted_refuses_a_range_outside_of_n(n, start, stop):
    with pytest.raises(ValueError, match="0 <= start <= stop <= n"):
        permuted(0, n, start, stop)
    with pytest.raises(ValueError, match="0 <= start <= stop <= n"):
        scattered(0, n, start, stop)


def test_the_bijections_are_the_golden_ones():
    assert scattered(12345, 10).tolist() == [4, 2, 6, 5, 1, 8, 3, 0, 9, 7]
    assert digest(scattered(12345, 100_003)) == "3987e6effa8f2536"
    assert permuted(12345, 10).tolist() == [1, 5, 6, 2, 0, 3, 9, 8, 7, 4]
    assert digest(permuted(12345, 100_003)) == "126751684e12e753"


def uniform_p_value(cells, count):
    observed = np.bincount(cells, minlength=count)
    expected = len(cells) / count
    return chi2.sf(np.sum((observed - expected) ** 2) / expected, count - 1)


@pytest.mark.parametrize("n", [3, 4, 10, 16, 100, 287])
def test_over_keys_two_elements_land_on_any_two_places_alike(n):
    """Cohorts are drawn with it: each client, and each pair of clients, must come as often as any other."""
    a, b = np.array([permuted(derive(n, Purpose.SAMPLE, i), n, 0, 2) for i in range(20_000)]).T
    p_values = {
        "element 0": uniform_p_value(a, n),
        "element 1": uniform_p_value(b, n),
        "the pair": uniform_p_value(a * (n - 1) + b - (b > a), n * (n - 1)),
        "their distance": uniform_p_value((b - a) % n - 1, n - 1),
    }
    assert min(p_values.values()) > ALPHA, p_values


# Normals.


def test_the_table_of_normals_has_variance_one_and_nearly_the_fourth_moment_of_a_normal():
    table = normal_table().astype(np.float64)
    assert np.all(np.diff(table) > 0)
    assert table[0] > 0
    assert abs(np.mean(table**2) - 1) < 1e-6
    assert abs(np.mean(table**4) - 3) < 0.05
    assert not normal_table().flags.writeable


def test_normals_have_the_moments_and_the_law_of_a_normal():
    count = 1_000_000
    z = normals(12345, Purpose.NORMALS, count).astype(np.float64)
    bound = NormalDist().inv_cdf(1 - ALPHA / 2) / np.sqrt(count)  # of a mean of variables of variance 1
    assert abs(np.mean(z)) < bound
    assert abs(np.mean(z**2) - 1) < bound * np.sqrt(2)
    assert abs(np.mean(z**3)) < bound * np.sqrt(15)
    assert abs(np.mean(np.sign(z))) < bound
    assert abs(np.mean(z[1:] * z[:-1])) < bound
    assert kstest(z, "norm").pvalue > ALPHA


def test_normals_are_symmetric_and_uniform_on_their_table():
    """All 2^13 values +-table[i] come alike."""
    z = normals(54321, Purpose.NORMALS, 1_000_000)
    index = np.searchsorted(normal_table(), np.abs(z))
    assert np.array_equal(normal_table()[index], np.abs(z))
    assert uniform_p_value(2 * index + (z < 0), 2 * normal_table().size) > ALPHA


def test_normals_are_the_golden_ones():
    z = normals(12345, Purpose.NORMALS, 100_001)
    assert z.dtype == np.float32
    assert digest(z) == "1dbd87b6a74d0f9c"


# Threads.


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_no_bit_depends_on_the_number_of_threads(threads):
    def everything():
        return (
            digest(words(9, Purpose.RUN, 200_003, 2**32 - 11)),
            digest(normals(9, Purpose.NORMALS, 200_003)),
            digest(permuted(9, 100_003)),
            digest(scattered(9, 100_003)),
        )

    pool.set_threads(1)
    alone = everything()
    pool.set_threads(threads)
    assert everything() == alone


@pytest.mark.parametrize("count", [0, -1])
def test_no_threads_at_all_is_refused(count):
    with pytest.raises(ValueError, match="at least 1"):
        pool.set_threads(count)
