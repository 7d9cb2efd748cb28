"""The table of methods: the one place that maps a name to a class, and to what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from narrowcast.methods import (
    dgc,
    drive,
    ef21,
    fedavg,
    fedkseed,
    fedprox,
    fetchsgd,
    intrinsic,
    powersgd,
    qsgd,
    random_low_rank,
    random_mask,
    signsgd,
    stc,
    topk,
    uncompressed,
)  # fmt: skip
from narrowcast.methods.about import About
from narrowcast.methods.base import Diverged, Method, Model, Private, RoundInfo, Server
from narrowcast.methods.dgc import DGC
from narrowcast.methods.drive import Drive
from narrowcast.methods.ef21 import EF21
from narrowcast.methods.fedavg import FedAvg
from narrowcast.methods.fedkseed import FedKSeed
from narrowcast.methods.fedprox import FedProx
from narrowcast.methods.fetchsgd import FetchSGD
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.methods.powersgd import PowerSGD
from narrowcast.methods.qsgd import QSGD
from narrowcast.methods.random_low_rank import RandomLowRank
from narrowcast.methods.random_mask import RandomMask
from narrowcast.methods.signsgd import SignSGD
from narrowcast.methods.stc import STC
from narrowcast.methods.topk import TopK
from narrowcast.methods.uncompressed import Uncompressed
from narrowcast.random import Key
from narrowcast.server_optim import SGD, Optimiser


@dataclass(frozen=True)
class MethodOptions:
    """Every knob a method may read; each takes those that concern it. None: a default that depends on D."""

    key: Key = 0
    clients: int = 1
    dim: int = 1024
    subspaces: int = 8
    refresh: str | int = "epoch"
    subspace: str = "rotation"
    optimiser: Optimiser = field(default_factory=SGD)
    carry: bool = False
    unbiased: bool = False
    uplink: str = "f32"
    downlink: str = "f32"
    k: int | None = None
    error_feedback: bool = True
    momentum: float = 0.9
    warmup: int = 0
    sketch_rows: int = 5
    sketch_columns: int | None = None
    rank: int = 2
    levels: int = 7
    seeds: int = 1024
    epsilon: float = 1e-3


class Row(NamedTuple):
    make: Callable[[MethodOptions], Method[Any]]
    about: About


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


METHODS: dict[str, Row] = {
    "static": Row(_intrinsic(k_subspace=False, time_varying=False), intrinsic.STATIC),
    "time-varying": Row(_intrinsic(k_subspace=False, time_varying=True), intrinsic.TIME_VARYING),
    "k-subspace": Row(_intrinsic(k_subspace=True, time_varying=False), intrinsic.K_SUBSPACE),
    "k-subspace-time-varying": Row(_intrinsic(k_subspace=True, time_varying=True), intrinsic.COMBINATION),
    "uncompressed": Row(lambda o: Uncompressed(o.optimiser), uncompressed.ABOUT),
    "fedavg": Row(lambda o: FedAvg(o.optimiser), fedavg.ABOUT),
    "fedprox": Row(lambda o: FedProx(o.optimiser), fedprox.ABOUT),
    "topk": Row(lambda o: TopK(o.optimiser, o.k, o.error_feedback, o.uplink), topk.ABOUT),
    "signsgd": Row(lambda o: SignSGD(), signsgd.ABOUT),
    "fetchsgd": Row(
        lambda o: FetchSGD(
            key=o.key,
            k=o.k,
            rows=o.sketch_rows,
            columns=o.sketch_columns,
            momentum=o.momentum,
            uplink=o.uplink,
        ),
        fetchsgd.ABOUT,
    ),
    "fedkseed": Row(
        lambda o: FedKSeed(key=o.key, seeds=o.seeds, epsilon=o.epsilon, optimiser=o.optimiser), fedkseed.ABOUT
    ),
    "stc": Row(lambda o: STC(k=o.k, error_feedback=o.error_feedback), stc.ABOUT),
    "dgc": Row(lambda o: DGC(k=o.k, momentum=o.momentum, warmup=o.warmup, uplink=o.uplink), dgc.ABOUT),
    "qsgd": Row(lambda o: QSGD(o.optimiser, o.levels), qsgd.ABOUT),
    "powersgd": Row(
        lambda o: PowerSGD(o.key, o.rank, o.error_feedback, o.uplink, o.downlink), powersgd.ABOUT
    ),
    "random-mask": Row(lambda o: RandomMask(o.optimiser, o.key, o.k, o.uplink), random_mask.ABOUT),
    "random-low-rank": Row(
        lambda o: RandomLowRank(o.optimiser, o.key, o.rank, o.uplink), random_low_rank.ABOUT
    ),
    "ef21": Row(lambda o: EF21(o.optimiser, o.clients, o.k, o.uplink), ef21.ABOUT),
    "drive": Row(lambda o: Drive(o.optimiser, o.key), drive.ABOUT),
}


def method(name: str, **options: Any) -> Method[Any]:
    """A method by its name in the table, e.g. method("time-varying", dim=1024, key=7)."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}")
    return METHODS[name].make(MethodOptions(**options))


__all__ = [
    "METHODS", "Diverged", "Method", "MethodOptions", "Model", "Private", "RoundInfo", "Row", "Server",
    "method",
]  # fmt: skip
