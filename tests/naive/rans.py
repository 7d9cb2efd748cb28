"""The code of integers as its description reads, in plain Python integers: the compiled one's twin."""

from __future__ import annotations

import struct

from narrowcast.wire.codes import gaussian

START = 1 << 16


def write(numbers: list[int], bins: list[int], j: int, dithered: bool) -> bytes:
    """The words of rANS by table j, the last number first."""
    table = gaussian.table(j, dithered)
    rows = table.frequency.tolist()
    x, words = START, []
    for n, b in zip(reversed(numbers), reversed(bins), strict=True):
        symbol = n + table.middle
        if not 0 <= symbol < len(rows[b]) - 1 or rows[b][symbol] == 0:
            symbol = len(rows[b]) - 1
            words += [n >> 16 & 0xFFFF, n & 0xFFFF]
        f, c = rows[b][symbol], sum(rows[b][:symbol])
        while x >= f << 20:
            words.append(x & 0xFFFF)
            x >>= 16
        x = x // f * 4096 + x % f + c
    words += [x >> 16, x & 0xFFFF]
    return struct.pack(f"<{len(words)}H", *reversed(words))


def read(data: bytes, bins: list[int], j: int, dithered: bool) -> list[int] | None:
    """The numbers; None where the words do not end where a writer begins."""
    table = gaussian.table(j, dithered)
    rows = table.frequency.tolist()
    words = list(struct.unpack(f"<{len(data) // 2}H", data))
    x, words = words[0] | words[1] << 16, words[2:]
    numbers = []
    for b in bins:
        slot, c, symbol = x % 4096, 0, 0
        while c + rows[b][symbol] <= slot:
            c, symbol = c + rows[b][symbol], symbol + 1
        x = rows[b][symbol] * (x // 4096) + slot - c
        if x < START:
            x = x << 16 | words.pop(0)
        n = symbol - table.middle
        if symbol == len(rows[b]) - 1:
            n, words = words[0] | words[1] << 16, words[2:]
            n -= (n >> 31) << 32
        numbers.append(n)
    return numbers if x == START and not words else None
