"""What the page's planner knows: the constants of `narrowcast plan`, and where its sliders stand first."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from narrowcast.bandwidth.hours import FLOPS, sample
from narrowcast.bandwidth.planner import NARROW, ROWS
from narrowcast.methods.intrinsic import Intrinsic
from narrowcast.methods.table import METHODS
from narrowcast.rounds.network import NETWORKS, Network
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import lattice

START = {"params": 124_000_000, "dim": 65_536, "subspaces": 8, "epochs": 24, "clients": 1000, "cohort": 100}
EXAMPLES = 20
PLAIN = re.compile(r"[0-9]{1,12}")  # a run that names code by its place may have any words for numbers
LINK = {"up_bps": 1e6, "down_bps": 1e7}  # as `narrowcast plan` has them


def planner(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Sliders begin at the first run's settings, or at a model of the paper's."""
    start: dict[str, Any] = dict(START)
    if runs:
        settings = runs[0]["settings"]
        start["params"] = runs[0]["parameters"]
        start |= {
            name: int(settings[name])
            for name in ("dim", "subspaces", "clients", "cohort")
            if PLAIN.fullmatch(settings.get(name, ""))
        }
        if runs[0]["network_name"] in NETWORKS:
            start["network"] = runs[0]["network_name"]
        start["epochs"] = max(1, round(runs[0]["epochs"]))
    return {"constants": constants(), "start": {**start, **LINK, "examples": EXAMPLES}}


@cache
def constants() -> dict[str, Any]:
    """Sizes of headers and codes, and what the planner's methods are."""
    return {
        "header": wire.HEADER,
        "short": wire.blocks_size([0]),
        "long": wire.blocks_size([1 << 16]) - (1 << 16),
        "overhead": lattice.OVERHEAD,
        "plain_bits": lattice.PLAIN_BITS,
        "flops": FLOPS,
        "networks": {name: _links(of) for name, of in NETWORKS.items()},
        "sources": {name: of.source for name, of in NETWORKS.items()},
        "methods": [_method(name) for name in (*ROWS, NARROW)],
    }


def _links(of: Network) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in sample(of)._asdict().items()}


def _method(name: str) -> dict[str, Any]:
    entry = METHODS[name]
    made: Any = entry.make(**entry.fitting({"dim": 1}))
    if not isinstance(made, Intrinsic):
        return {"name": name, "family": False, "local": made.local_steps > 1}
    fixed = None if "subspaces" in entry.options else made.subspaces
    return {
        "name": name,
        "family": True,
        "subspaces": fixed,
        "varies": made.refresh != 0,
        "up_bits": made.up_bits,
        "down_bits": made.down_bits,
    }
