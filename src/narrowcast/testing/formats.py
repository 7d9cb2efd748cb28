"""The laws of a number format: the bytes it states, numbers near those sent, nothing hostile let in."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.testing.contract import Contract
from narrowcast.wire.formats import Format, FormatError

COUNTS = (0, 1, 2, 7, 63, 255, 256, 257, 1000)
SCALES = (1.0, 1e-30, 1e30)


class FormatContract(Contract):
    """Of the format that `make` returns."""

    def make(self) -> Format:
        raise NotImplementedError("say which format: def make(self): return Mine()")

    def numbers(self) -> list[Any]:
        """Normal numbers of several counts and scales, and zeros."""
        drawn = [keyed.normals(count, Purpose.DATA, count) for count in COUNTS]
        return [np.float32(scale) * x for x in drawn for scale in SCALES] + [np.zeros(5, np.float32)]

    def test_it_writes_the_size_it_states_and_reads_float32(self) -> None:
        made = self.make()
        for x in self.numbers():
            data = made.pack(x.copy(), 1)
            assert isinstance(data, bytes), f"pack returns {type(data).__name__}, not bytes"
            assert len(data) == made.size(x.size), (
                f"{x.size} numbers: {len(data)} bytes, not {made.size(x.size)}"
            )
            back = made.unpack(data, x.size)
            assert back.dtype == np.float32, f"it reads {back.dtype}"
            assert back.shape == x.shape, f"it reads {back.shape} of {x.shape}"
            assert back.flags.writeable, "what it reads cannot be written to: return a copy"
            assert np.isfinite(back).all(), "it reads numbers that are not finite"

    def test_it_is_exact_as_declared(self) -> None:
        """`exact` is kept and not kept back: the sum of payloads is then the payload of the sum."""
        made = self.make()
        same = all(np.array_equal(made.unpack(made.pack(x.copy(), 1), x.size), x) for x in self.numbers())
        assert same == made.exact, (
            f"exact is {made.exact}, and numbers come back {'' if same else 'not '}equal"
        )

    def test_the_key_decides_and_the_numbers_are_left_alone(self) -> None:
        made, x = self.make(), keyed.normals(9, Purpose.DATA, 300)
        before = x.copy()
        assert made.pack(x, 5) == made.pack(x, 5), "the same numbers and key give other bytes"
        assert np.array_equal(x, before), "pack has changed the numbers"

    def test_numbers_come_back_near(self) -> None:
        """Within a quarter of the largest, each; twice as near in the mean over many keys."""
        made, x = self.make(), keyed.normals(10, Purpose.DATA, 300)
        largest = np.abs(x).max()
        each = np.array([made.unpack(made.pack(x.copy(), key), x.size) for key in range(64)])
        assert np.abs(each - x).max() <= largest / 4, "a number is off by more than a quarter of the largest"
        assert np.abs(each.mean(0) - x).max() <= largest / 8, "the mean over many keys is off"

    def test_a_number_that_is_not_finite_is_not_sent_as_one_that_is(self) -> None:
        made = self.make()
        for bad in (np.nan, np.inf, -np.inf):
            x = np.array([1.0, bad, 2.0], np.float32)
            try:
                back = made.unpack(made.pack(x, 1), 3)
            except FormatError:
                continue
            assert not np.isfinite(back).all(), f"{bad} was sent and came back finite"

    def test_hostile_bytes_are_numbers_or_a_format_error(self) -> None:
        """Of the right length, which the reader checks first; numbers that are not finite it refuses."""
        made, chance = self.make(), Random(3)
        for count in COUNTS:
            size = made.size(count)
            ends = [b"\0" * size, b"\xff" * size]
            for data in (*ends, *(chance.randbytes(size) for _ in range(40))):
                try:
                    with np.errstate(all="ignore"):
                        back = made.unpack(data, count)
                except FormatError:
                    continue
                assert torch.from_numpy(back).shape == (count,), f"{count} numbers became {back.shape}"

    def test_sizes_are_whole_and_grow(self) -> None:
        made = self.make()
        sizes = [made.size(count) for count in range(600)]
        assert all(isinstance(size, int) for size in sizes), "a size is an int"
        assert sizes == sorted(sizes), "more numbers take fewer bytes"
        most = 8 * 599 + 1024  # what `Method.upload_bound` allows
        assert sizes[-1] <= most, f"599 numbers take {sizes[-1]} bytes, more than the {most} that are read"
