"""The table of methods: the one place that maps a name to a class. Reading the names imports none of them.

Others join by the entry-point group `narrowcast.methods`, or by `narrowcast.register("method", ...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.methods.base import Method
    from narrowcast.methods.entry import Entry
    from narrowcast.methods.optimisers import Optimiser

_HERE = "narrowcast.methods."

METHODS: Registry[Entry] = Registry(
    "method",
    {
        "static": _HERE + "family:STATIC",
        "time-varying": _HERE + "family:TIME_VARYING",
        "k-subspace": _HERE + "family:K_SUBSPACE",
        "k-subspace-time-varying": _HERE + "family:COMBINATION",
        "narrow": _HERE + "family:NARROW",
        "uncompressed": _HERE + "uncompressed:ENTRY",
        "fedavg": _HERE + "fedavg:ENTRY",
        "fedprox": _HERE + "fedprox:ENTRY",
        "topk": _HERE + "topk:ENTRY",
        "signsgd": _HERE + "signsgd:ENTRY",
        "fetchsgd": _HERE + "fetchsgd:ENTRY",
        "fedkseed": _HERE + "fedkseed:ENTRY",
        "stc": _HERE + "stc:ENTRY",
        "dgc": _HERE + "dgc:ENTRY",
        "qsgd": _HERE + "qsgd:ENTRY",
        "powersgd": _HERE + "powersgd:ENTRY",
        "random-mask": _HERE + "random_mask:ENTRY",
        "random-low-rank": _HERE + "random_low_rank:ENTRY",
        "ef21": _HERE + "ef21:ENTRY",
        "drive": _HERE + "drive:ENTRY",
    },
    group="narrowcast.methods",
    adapt=_HERE + "entry:as_entry",
    doc="""name -> `Entry`, of our methods and then of those that others have brought.

    >>> import narrowcast as nc
    >>> "time-varying" in nc.METHODS, nc.METHODS["topk"].options
    (True, ('optimiser', 'k', 'error_feedback', 'uplink'))
    """,
)

OPTIMISERS: Registry[type[Optimiser]] = Registry(
    "optimiser",
    {
        "sgd": _HERE + "optimisers:SGD",
        "momentum": _HERE + "optimisers:Momentum",
        "adam": _HERE + "optimisers:Adam",
    },
)


def method(name: str, **options: Any) -> Method[Any]:
    """A method by its name in the table, with options of its own: those are the fields of its class.

    >>> import narrowcast as nc
    >>> nc.method("time-varying", dim=256, key=7).setting
    'd=256'
    """
    return METHODS.find(name).make(**options)
