"""The laws of number formats: sizes, exactness, error bounds, unbiasedness, and what they refuse."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.numerics.keyed import MASK64, Purpose, derive
from narrowcast.wire.formats import FORMATS, GROUP, FormatError, Integer, by_name

NAMES = list(FORMATS)
LOSSY = [name for name, codec in FORMATS.items() if not codec.exact]
INTEGERS = [name for name, codec in FORMATS.items() if isinstance(codec, Integer)]
ALPHA = 1e-6  # chance that a true law of chance looks broken; keys are fixed, so there is no flicker
KEYS = st.integers(0, MASK64)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
TINY = 2.0**-149  # the smallest float32: below the normal range numbers are multiples of it
COUNTS = st.integers(1, 40) | st.sampled_from([GROUP - 1, GROUP, GROUP + 1, 2 * GROUP + 1])
NUMBERS = arrays(np.float32, COUNTS, elements=FINITE | st.floats(-1, 1, width=32))
law = settings(deadline=None, max_examples=80)


def there_and_back(name, x, key=0):
    codec = by_name(name)
    return codec.unpack(codec.pack(x, key), x.size)


def largest(x):
    return float(np.abs(x).max(initial=0.0))


def steps(name, x):
    """What one unit of an integer format is worth, for each number: its group's largest over `top`."""
    top = by_name(name).top
    groups = [x[i : i + GROUP] for i in range(0, x.size, GROUP)]
    return np.concatenate([np.full(g.size, (largest(g) or 1.0) / top) for g in groups])


@pytest.mark.parametrize("name", NAMES)
@law
@given(NUMBERS, KEYS)
def test_every_format_writes_the_size_it_states_and_reads_finite_float32(name, x, key):
    codec = by_name(name)
    data = codec.pack(x, key)
    back = codec.unpack(data, x.size)
    assert len(data) == codec.size(x.size)
    assert back.dtype == np.float32
    assert back.shape == x.shape
    assert back.flags.writeable
    assert np.isfinite(back).all()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("f32", {1: 4, 7: 28, 256: 1024, 257: 1028}),
        ("f16", {1: 6, 7: 18, 256: 516, 257: 518}),
        ("int8", {1: 5, 7: 11, 256: 260, 257: 265}),
        ("int4", {1: 5, 7: 8, 256: 132, 257: 137}),
    ],
)
def test_sizes(name, sizes):
    assert {count: by_name(name).size(count) for count in sizes} == sizes


@law
@given(arrays(np.uint32, COUNTS, elements=st.integers(0, 2**32 - 1)))
def test_f32_keeps_every_bit_even_of_nan_which_the_receiver_refuses(bits):
    """F32 cannot notice: it copies. Block.numbers is where a NaN or an infinity ends (test_wire)."""
    assert there_and_back("f32", bits.view(np.float32)).view(np.uint32).tolist() == bits.tolist()


@law
@given(NUMBERS)
def test_f16_is_within_eleven_bits_of_the_largest_and_keeps_the_largest(x):
    back = there_and_back("f16", x)
    assert np.abs(back.astype(np.float64) - x).max() <= 2.0**-11 * largest(x)
    assert largest(back) == largest(x)


SMALL = arrays(np.float32, COUNTS, elements=st.integers(-5000, 5000).map(lambda n: np.float32(n * TINY)))


@law
@given(NUMBERS | SMALL)
@example((np.array([3953, -1977]) * TINY).astype(np.float32))
def test_f16_decodes_to_numbers_that_it_carries_exactly(x):
    """A finished Sigma is sent again and again, and must stay what it is: unpack(pack(z)) == z, every bit.

    The bytes are the same too where the steps of f16, 2^-24 of the largest and more, are not finer than TINY;
    below 2^-125 two of them may mean one float32.
    """
    codec = by_name("f16")
    data = codec.pack(x, 0)
    z = codec.unpack(data, x.size)
    again = codec.pack(z, 0)
    assert codec.unpack(again, x.size).tobytes() == z.tobytes()
    if largest(x) >= 2.0**-125 or not x.any():
        assert again == data


@pytest.mark.parametrize("size", [3.4028234e38, 1e38, 7e4, 1.0, 1e-7, 1.2e-38, 1e-40, 4.2e-45, 1.4e-45])
def test_f16_neither_overflows_nor_underflows_whatever_the_scale(size):
    x = np.array([size, -size, size / 2, size / 3, 0.0], np.float32)
    back = there_and_back("f16", x)
    assert np.isfinite(back).all()
    assert back[:2].tolist() == x[:2].tolist()
    assert np.abs(back.astype(np.float64) - x).max() <= 2.0**-11 * largest(x)


@pytest.mark.parametrize("name", INTEGERS)
@law
@given(NUMBERS, KEYS)
def test_integers_are_within_one_step(name, x, key):
    """The excess is the rounding of float32: 2^-24 of at most 127 steps, twice, and one TINY."""
    error = np.abs(there_and_back(name, x, key).astype(np.float64) - x)
    assert (error <= steps(name, x) * (1 + 2.0**-15) + TINY).all()


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("size", [3.4028234e38, 1.0, 1.2e-38, 1e-40, 1.4e-45])
def test_integers_keep_the_largest_of_a_group_exactly(name, size):
    x = np.zeros(GROUP + 3, np.float32)
    x[5], x[GROUP + 1] = size, -size / 2
    back = there_and_back(name, x, 9)
    assert back[5] == x[5]
    assert back[GROUP + 1] == x[GROUP + 1]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_unbiased(name):
    """The mean over R keys of what comes back. One number's results are one step apart, so by Hoeffding
    |mean - x| <= step sqrt(log(2 n / alpha) / (2 R)) for all n numbers at once, and the mean of all n R
    errors is within step sqrt(log(2 / alpha) / (2 n R))."""
    repeats, x = 2000, np.random.default_rng(4).normal(size=GROUP + 45).astype(np.float32)
    x[7], x[GROUP + 2] = 0.0, 1e-3
    total = sum(there_and_back(name, x, derive(5, Purpose.RUN, i)).astype(np.float64) for i in range(repeats))
    bias = (total / repeats - x) / steps(name, x)
    assert np.abs(bias).max() <= math.sqrt(math.log(2 * x.size / ALPHA) / (2 * repeats))
    assert abs(bias.mean()) <= math.sqrt(math.log(2 / ALPHA) / (2 * repeats * x.size))


@pytest.mark.parametrize("name", INTEGERS)
def test_the_key_decides_the_rounding(name):
    x = np.linspace(-1, 1, 500, dtype=np.float32)
    codec = by_name(name)
    assert codec.pack(x, 1) == codec.pack(x, 1)
    assert codec.pack(x, 1) != codec.pack(x, 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, GROUP - 1, GROUP, GROUP + 1])
def test_zeros_stay_zeros(name, count):
    assert there_and_back(name, np.zeros(count, np.float32), 3).tolist() == [0.0] * count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1.0, -3.5, 1e38, -1e-40])
def test_one_number_alone_is_its_own_scale_and_exact(name, value):
    x = np.array([value], np.float32)
    assert there_and_back(name, x, 3).tolist() == x.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_no_numbers_at_all(name):
    assert there_and_back(name, np.zeros(0, np.float32)).size == 0


@pytest.mark.parametrize("count", [1, 2, 5, 6, GROUP + 1])
def test_nibbles_stay_in_their_places(count):
    """Multiples of a step that come back as they are: -7..7 over a largest of 7."""
    x = np.resize(np.array([7, -7, 3, -1, 0, 5, -6], np.float32), count)
    x[GROUP:] = 7.0
    assert there_and_back("int4", x, 11).tolist() == x.tolist()


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 4, GROUP + 1])
def test_lossy_formats_refuse_to_write_nan_and_infinity(name, bad, place):
    x = np.ones(GROUP + 2, np.float32)
    x[place] = bad
    with pytest.raises(FormatError, match="NaN or an infinity"):
        by_name(name).pack(x, 0)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0, np.nan, np.inf, -np.inf])
def test_lossy_formats_refuse_to_read_a_scale_that_is_not_positive(name, scale):
    codec, x = by_name(name), np.ones(GROUP + 2, np.float32)
    data = bytearray(codec.pack(x, 0))
    last = 4 * (-(-x.size // GROUP) - 1) if name in INTEGERS else 0
    data[last : last + 4] = np.array([scale], "<f4").tobytes()
    with pytest.raises(FormatError, match="scale"):
        codec.unpack(bytes(data), x.size)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'f8': choose one of f32, f16, int8, int4"):
        by_name("f8")


@pytest.mark.parametrize(
    ("name", "hexadecimal"),
    [
        ("f32", "0000803f000000c00000003f"),
        ("f16", "00000040003800bc0034"),
        ("int8", "00000040408120"),
        ("int4", "000000409402"),
    ],
)
def test_the_bytes_of_a_format_never_change(name, hexadecimal):
    assert NAMES.index(name) == ["f32", "f16", "int8", "int4"].index(name)
    assert by_name(name).pack(np.array([1.0, -2.0, 0.5], np.float32), 7).hex() == hexadecimal
