"""The table of aggregates, name to class. Reading the names imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.aggregates.base import Aggregate

_HERE = "narrowcast.aggregates."

AGGREGATES: Registry[type[Aggregate]] = Registry(
    "aggregate",
    {
        "mean": _HERE + "mean:Mean",
        "clipped": _HERE + "clipped:Clipped",
        "median": _HERE + "median:Median",
        "trimmed-mean": _HERE + "trimmed:TrimmedMean",
        "krum": _HERE + "krum:Krum",
        "multi-krum": _HERE + "krum:MultiKrum",
        "geometric-median": _HERE + "geometric:GeometricMedian",
    },
)
