"""Integers of |k| < 2^30 to bytes: as the best of the Gaussian tables would have them, or in equal widths.

The first byte says how. 0 .. 95: rANS by that table. 96 .. 223: the deviation is 2^h times that of one of the
last eight tables, h = 1 .. 16, whose numbers are (k + 2^(h-1)) >> h; the h low bits that this leaves stand
before them, as they are. 224 + w: every number in w bits, 0 to 31, where no table does better. Which of them
is taken changes no number: a receiver reads any.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from narrowcast.numerics.kernels import rans
from narrowcast.numerics.kernels.rans import MOST
from narrowcast.wire.codes import bits, gaussian
from narrowcast.wire.codes.gaussian import AN_OCTAVE, TABLES
from narrowcast.wire.formats import FormatError

Integers = NDArray[np.int32]
Bins = NDArray[np.uint8]
EQUAL = 224  # the first byte of numbers of equal width
HIGHEST = (EQUAL - TABLES) // AN_OCTAVE  # low bits that stand as they are
SPARE = 64  # words beyond what a table promises, before equal widths are taken


def pack(numbers: Integers, bins: Bins | None = None) -> bytes:
    """The numbers; `bins` are of the dither that both sides know, if there is one."""
    largest = int(max(-int(numbers.min()), int(numbers.max()))) if numbers.size else 0
    if largest > MOST:
        raise FormatError(f"an integer of size {largest}: at most {MOST} can be sent")
    width = (2 * largest).bit_length()  # two's complement: -2^(w-1) .. 2^(w-1) - 1
    most = (numbers.size * width + 7) // 8
    if largest == 0:
        return bytes([EQUAL])
    j, h = _choose(numbers, bins)
    coded = _coded(numbers, bins, j, h, most)
    if coded is not None and len(coded) < most:
        return bytes([j + AN_OCTAVE * h]) + coded
    return bytes([EQUAL + width]) + _packed(numbers, width)


def unpack(data: bytes, count: int, bins: Bins | None = None) -> Integers:
    """`count` integers; whatever else the bytes may be is a FormatError."""
    if not data:
        raise FormatError("a list of integers has no bytes")
    kind, body = data[0], data[1:]
    numbers: Integers = np.empty(count, np.int32)
    if kind >= EQUAL:
        width = kind - EQUAL
        bits.check_end(body, count * width)
        rans.unpack_bits(bits.to_words(body), width, numbers)
        if width:  # the highest of them is the sign
            numbers = numbers << (32 - width) >> (32 - width)
    else:
        h = 0 if kind < TABLES else (kind - TABLES) // AN_OCTAVE + 1
        low = (count * h + 7) // 8
        if len(body) < low or (len(body) - low) % 2:
            raise FormatError(f"{count} integers cannot be {len(data)} bytes of code {kind}")
        bits.check_end(body[:low], count * h)
        words = np.frombuffer(body, "<u2", offset=low).astype(np.uint16, copy=False)
        table = gaussian.table(kind - AN_OCTAVE * h, bins is not None)
        places = np.zeros(count, np.uint8) if bins is None else bins
        if not rans.read(words, places, table.middle, table.symbols, table.frequency, table.below, numbers):
            raise FormatError(f"the codes of {count} integers break off, go on, or end in no state of theirs")
        if h:
            numbers = _joined(numbers, bits.to_words(body[:low]), h)
    if count and max(-int(numbers.min()), int(numbers.max())) > MOST:
        raise FormatError(f"an integer is larger than {MOST}")
    return numbers


def _choose(numbers: Integers, bins: Bins | None) -> tuple[int, int]:
    """(table, low bits): from the table that the deviation names, downhill to the fewest bits."""
    square = rans.sum_of_squares(numbers) / numbers.size
    fine = math.sqrt(square - 1 / 6) if square > 0.5 else square / 0.8  # rounding adds what it adds
    j = round(AN_OCTAVE * (8 + math.log2(fine)))
    if j >= TABLES:
        h = min(HIGHEST, (j - TABLES) // AN_OCTAVE + 1)
        return min(j - AN_OCTAVE * h, TABLES - 1), h
    counts = np.zeros((1 if bins is None else rans.BINS, 256), np.int64)
    rans.count(numbers, _places(numbers, bins), counts)
    weights = counts.reshape(-1).astype(np.float64)

    def cost(j: int) -> float:
        return float(np.dot(gaussian.table(j, bins is not None).cost.reshape(-1), weights))

    j = max(0, j)
    here = cost(j)
    for way in (1, -1):
        while 0 <= j + way < TABLES and (there := cost(j + way)) < here:
            j, here = j + way, there
    return j, 0


def _coded(numbers: Integers, bins: Bins | None, j: int, h: int, most: int) -> bytes | None:
    """By table j over h low bits; None where that takes more bytes than `most`."""
    low = b""
    if h:
        raised = numbers.astype(np.int64) + (1 << (h - 1))
        low = _packed((raised & ((1 << h) - 1)).astype(np.int32), h)
        numbers = (raised >> h).astype(np.int32)
    table = gaussian.table(j, bins is not None)
    words = np.empty(max(2, (most - len(low)) // 2 + SPARE), np.uint16)
    start = rans.write(numbers, _places(numbers, bins), table.middle, table.frequency, table.below, words)
    return None if start < 0 else low + words[start:].astype("<u2", copy=False).tobytes()


def _places(numbers: Integers, bins: Bins | None) -> Bins:
    return np.zeros(numbers.size, np.uint8) if bins is None else bins


def _packed(numbers: Integers, width: int) -> bytes:
    words = bits.blank(numbers.size * width)
    rans.pack_bits(numbers, width, words)
    return bits.to_bytes(words, numbers.size * width)


def _joined(high: Integers, words: bits.Words, h: int) -> Integers:
    """(high << h) + low - 2^(h-1), where that has a place among 32 bits."""
    low: Integers = np.empty(high.size, np.int32)
    rans.unpack_bits(words, h, low)
    whole = (high.astype(np.int64) << h) + low - (1 << (h - 1))
    if whole.size and max(-int(whole.min()), int(whole.max())) > MOST:
        raise FormatError(f"an integer is larger than {MOST}")
    return whole.astype(np.int32)
