"""The number formats by name. The place in the table is the number on the wire: only append."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.wire.formats import Format

FORMATS: Registry[Format] = Registry(
    "number format",
    {name: f"narrowcast.wire.formats:{name.upper()}" for name in ("f32", "f16", "int8", "int4")},
)
