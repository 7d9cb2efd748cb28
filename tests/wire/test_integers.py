"""Integers as rANS: equal to the plain twin, the same on every machine, tight, and deaf to hostile bytes."""

from __future__ import annotations

import hashlib
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import rans as twin
from narrowcast.numerics import keyed
from narrowcast.numerics.kernels import rans
from narrowcast.numerics.keyed import Purpose
from narrowcast.wire.codes import gaussian, integers
from narrowcast.wire.formats import FormatError

FAMILIES = pytest.mark.parametrize("dithered", [False, True])


def drawn(deviation: float, count: int, key: int = 1, dithered: bool = True):
    """Integers of a rounded Gaussian and the bins of their dither, the same on every machine."""
    x = keyed.normals(key, Purpose.NORMALS, count) * np.float32(deviation)
    words = keyed.words(key, Purpose.DITHER, count)
    numbers, bins = np.empty(count, np.int32), np.empty(count, np.uint8)
    assert rans.quantise(x, 1.0, words, numbers, bins)
    return numbers, bins if dithered else None


@FAMILIES
def test_the_tables_never_change(dithered):
    """They are part of the format. Tables of another digest are another format."""
    held = hashlib.sha256()
    for j in range(gaussian.TABLES):
        held.update(gaussian.table(j, dithered).frequency.astype("<u2").tobytes())
    expected = {False: "482018246a37b07c", True: "3f2c03ddaa057be7"}
    assert held.hexdigest()[:16] == expected[dithered]


@FAMILIES
def test_no_entry_lies_where_another_mathematics_library_could_tip_it(dithered):
    """erfc differs between libraries by about 1e-16; frequencies tip at halves of 2^-12, or at RARE."""
    nearest = 1.0
    for j in range(gaussian.TABLES):
        table = gaussian.table(j, dithered)
        shares = gaussian.expected(j, dithered, table.middle) * 4096
        large = shares[shares > 1]
        edges = np.abs(large - np.floor(large) - 0.5).min(initial=1.0)
        nearest = min(nearest, float(edges), float(np.abs(shares - gaussian.RARE).min()))
    assert nearest > 1e-9


@FAMILIES
def test_a_table_has_all_slots_and_room_for_what_is_rare(dithered):
    for j in range(gaussian.TABLES):
        table = gaussian.table(j, dithered)
        assert (table.frequency.sum(axis=1) == 4096).all()
        assert (table.frequency[:, -1] == 1).all()
        assert table.frequency.shape == (16 if dithered else 1, 2 * table.middle + 2)
        assert table.middle <= 127
        assert (table.symbols == [np.repeat(np.arange(len(f)), f) for f in table.frequency]).all()


@FAMILIES
@pytest.mark.parametrize("j", [0, 30, 55, 80, 95])
def test_the_compiled_code_is_the_plain_one(j, dithered):
    numbers, bins = drawn(1 / gaussian.width(j), 300, j + 1, dithered)
    numbers[::50] = [5000, -5000, (1 << 30) - 1, -(1 << 30) + 1, 128, -128]
    places = np.zeros(300, np.uint8) if bins is None else bins
    table, words = gaussian.table(j, dithered), np.empty(2000, np.uint16)
    start = rans.write(numbers, places, table.middle, table.frequency, table.below, words)
    code = words[start:].astype("<u2").tobytes()
    assert code == twin.write(numbers.tolist(), places.tolist(), j, dithered)
    assert twin.read(code, places.tolist(), j, dithered) == numbers.tolist()
    found = np.empty(300, np.int32)
    assert rans.read(words[start:], places, table.middle, table.symbols, table.frequency, table.below, found)
    assert (found == numbers).all()


@pytest.mark.parametrize(("deviation", "kinds", "digest"), [
    (0.02, (21, 20), "89f6e002c80fe769"),
    (0.5, (56, 56), "a168044bc8e85f56"),
    (3.0, (77, 77), "c0cc741abf39cfc9"),
    (700.0, (140, 140), "9a9072a082e6f78f"),
    (100000000.0, (254, 254), "99f5470a5dac7ffe"),
])  # fmt: skip
def test_the_bytes_of_integers_never_change(deviation, kinds, digest):
    numbers, bins = drawn(deviation, 1000)
    dithered, plain = integers.pack(numbers, bins), integers.pack(numbers)
    assert (dithered[0], plain[0]) == kinds
    assert hashlib.sha256(dithered + plain).hexdigest()[:16] == digest


ANY = st.lists(st.integers(-rans.MOST, rans.MOST), max_size=60)
SMALL = st.lists(st.integers(-9, 9), max_size=200)


@settings(max_examples=200, deadline=None)
@given(st.one_of(ANY, SMALL), st.integers(0, 30), st.booleans())
def test_unpack_undoes_pack_and_no_code_is_longer_than_plain(numbers, shift, dithered):
    k = np.array(numbers, np.int32) >> shift
    bins = (np.arange(k.size) * 7 % 16).astype(np.uint8) if dithered else None
    data = integers.pack(k, bins)
    assert (integers.unpack(data, k.size, bins) == k).all()
    assert len(data) <= 1 + 4 * k.size
    for wrong in (data + b"\0", data[:-1]):
        with pytest.raises(FormatError):
            integers.unpack(wrong, k.size, bins)


def test_integers_that_are_too_large_are_refused():
    for bad in (1 << 30, -(1 << 30), -(1 << 31)):
        with pytest.raises(FormatError):
            integers.pack(np.array([0, bad], np.int32))


@pytest.mark.parametrize("dithered", [True, False])
@pytest.mark.parametrize("deviation", [0.003, 0.2, 1.0, 9.0, 300.0, 3e7])
def test_every_flipped_bit_gives_as_many_numbers_or_an_error(deviation, dithered):
    numbers, bins = drawn(deviation, 70, dithered=dithered)
    data = integers.pack(numbers, bins)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = integers.unpack(bytes(flipped), 70, bins)
        except FormatError:
            continue
        assert found.shape == (70,)
        assert np.abs(found.astype(np.int64)).max() <= rans.MOST
        assert (integers.unpack(integers.pack(found, bins), 70, bins) == found).all()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 255), st.binary(max_size=80), st.integers(0, 50), st.booleans())
def test_whatever_bytes_give_as_many_numbers_or_an_error(kind, body, count, dithered):
    bins = np.zeros(count, np.uint8) if dithered else None
    try:
        found = integers.unpack(bytes([kind]) + body, count, bins)
    except FormatError:
        return
    assert found.shape == (count,)
    assert found.dtype == np.int32


def test_few_bytes_for_many_numbers_cost_what_the_numbers_cost():
    """Four bytes may stand for a million zeros, never for more than were asked for; nor do they take long."""
    numbers = np.zeros(1_000_000, np.int32)
    started = time.perf_counter()
    for kind in range(96):
        with pytest.raises(FormatError):
            integers.unpack(bytes([kind, 255, 255, 255, 255]), numbers.size)
    assert time.perf_counter() - started < 5


@FAMILIES
@pytest.mark.parametrize("deviation", [0.19, 0.39, 0.62, 1.0, 2.0, 3.9])
def test_a_gaussian_takes_its_entropy(deviation, dithered):
    """Within one per cent and the bytes of a state."""
    count = 40_000
    numbers, bins = drawn(deviation, count, 3, dithered)
    most, us = math.ceil(7 * deviation) + 2, (np.arange(200) + 0.5) / 400
    p = np.stack([gaussian.density(1 / deviation, u, most) for u in us])
    if not dithered:
        p = (p + p[:, ::-1]).mean(axis=0, keepdims=True) / 2
    entropy = -(p * np.log2(np.maximum(p, 1e-300))).sum(axis=1).mean()
    places = bins if dithered else np.zeros(count, np.uint8)
    ideal = _ideal(numbers, places, deviation, dithered)
    size = 8 * len(integers.pack(numbers, bins))
    assert size <= 1.01 * ideal + 8 * 7
    assert abs(size / count - entropy) < 0.02 * entropy + 0.01


def _ideal(numbers, bins, deviation, dithered):
    """Bits of these very numbers in the density that they were drawn from, u known to 1/32."""
    most, points = int(np.abs(numbers).max()), 64
    us = (np.arange(16 * points) + 0.5) / (32 * points)
    p = np.stack([gaussian.density(1 / deviation, u, most) for u in us])
    p = (
        p.reshape(16, points, -1).mean(axis=1)
        if dithered
        else (p + p[:, ::-1]).mean(axis=0, keepdims=True) / 2
    )
    return float(-np.log2(p[bins, numbers + most]).sum())
