"""The table of methods: the one place that maps a name to a class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from narrowcast.methods.base import Diverged, Method, Model, RoundInfo, Server
from narrowcast.methods.fedavg import FedAvg
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.methods.uncompressed import Uncompressed
from narrowcast.random import Key
from narrowcast.server_optim import SGD, Optimiser


@dataclass(frozen=True)
class MethodOptions:
    """Every knob a method may read; each takes those that concern it."""

    key: Key = 0
    dim: int = 1024
    subspaces: int = 8
    refresh: str | int = "epoch"
    subspace: str = "rotation"
    optimiser: Optimiser = field(default_factory=SGD)
    carry: bool = False
    unbiased: bool = False
    uplink: str = "f32"
    downlink: str = "f32"


def _intrinsic(k_subspace: bool, time_varying: bool) -> Callable[[MethodOptions], Method[Any]]:
    def make(o: MethodOptions) -> Method[Any]:
        return Intrinsic(
            key=o.key,
            dim=o.dim,
            subspaces=o.subspaces if k_subspace else 1,
            refresh=o.refresh if time_varying else 0,
            kind=o.subspace,
            optimiser=o.optimiser,
            carry=o.carry,
            unbiased=o.unbiased,
            uplink=o.uplink,
            downlink=o.downlink,
        )

    return make


METHODS: dict[str, Callable[[MethodOptions], Method[Any]]] = {
    "static": _intrinsic(k_subspace=False, time_varying=False),
    "time-varying": _intrinsic(k_subspace=False, time_varying=True),
    "k-subspace": _intrinsic(k_subspace=True, time_varying=False),
    "k-subspace-time-varying": _intrinsic(k_subspace=True, time_varying=True),
    "uncompressed": lambda o: Uncompressed(o.optimiser),
    "fedavg": lambda o: FedAvg(o.optimiser),
}


def method(name: str, **options: Any) -> Method[Any]:
    """A method by its name in the table, e.g. method("time-varying", dim=1024, key=7)."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name](MethodOptions(**options))


__all__ = [
    "METHODS", "Diverged", "FedAvg", "Intrinsic", "Method", "MethodOptions", "Model", "RoundInfo", "Server",
    "Uncompressed",
    "method",
]  # fmt: skip
