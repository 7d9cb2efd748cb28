"""The number formats by name. The place of ours in the table is their number on the wire: only append.

Others join by the entry-point group `narrowcast.formats`, or by `narrowcast.register("format", ...)`. Their
number follows from their name, so that both ends of a link agree on it; and a message can only use one that
this side has asked for already, by its settings.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.wire.formats import Format

OURS, OTHERS = range(32), range(32, 120)  # numbers on the wire; those from 120 on are codes of messages.py
FORMATS: Registry[Format] = Registry(
    "number format",
    {name: f"narrowcast.wire.formats:{name.upper()}" for name in ("f32", "f16", "int8", "int4")},
    group="narrowcast.formats",
    adapt="narrowcast.wire.formats:as_format",
)


def number_of(name: str) -> int:
    """On the wire, of a format that is here."""
    if name in FORMATS.own:
        return FORMATS.own.index(name)
    return OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]


def name_of(number: int) -> str | None:
    """The format of this number: one of ours, or one of others that is in use here; None: there is none."""
    if number < len(FORMATS.own):
        return FORMATS.own[number]
    return next((name for name in FORMATS.loaded if number_of(name) == number), None)
