"""A colour and a marker for every method: the family's are loud, the others' are derived from the table."""

from __future__ import annotations

import zlib

from narrowcast.methods.table import METHODS

FAMILY = {
    "static": ("#1f77b4", "o"),
    "time-varying": ("#d62728", "s"),
    "k-subspace": ("#2ca02c", "^"),
    "k-subspace-time-varying": ("#9467bd", "D"),
    "narrow": ("#8c564b", "v"),
}
YARDSTICKS = {"uncompressed": ("#333333", "*"), "fedavg": ("#ff7f0e", "P")}
COLOURS = ("#8c564b", "#5f9ea0", "#bc8f8f", "#6b8e23", "#708090", "#b8860b", "#7b68ee", "#c71585")
MARKERS = ("v", "X", "<", "p", ">", "h", "d", "8", "H")  # 8 and 9 share no factor: 72 different pairs


class _Styles(dict[str, tuple[str, str]]):
    """Of others' methods, and of those of the past: by their name."""

    def __missing__(self, name: str) -> tuple[str, str]:
        number = zlib.crc32(name.encode())
        return COLOURS[number % len(COLOURS)], MARKERS[number // 8 % len(MARKERS)]


_fixed = FAMILY | YARDSTICKS
_others = [name for name in METHODS.own if name not in _fixed]
STYLE = _Styles(
    _fixed
    | {
        name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)])
        for i, name in enumerate(_others, start=1)
    }
)
