"""Golden digests: short runs of every method, kind of A, road and driver, as bytes and bits of one commit.

`python tests/golden.py --write` makes golden.json anew: only where a change of bytes or bits is meant.
Without --write it runs them all the same, and so compiles every kernel that there is.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fitting import made
from narrowcast.methods import METHODS
from narrowcast.methods.optimisers import Adam, Momentum
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Batch, Task
from narrowcast.rounds.training import Training
from narrowcast.runs.reading import make_config
from narrowcast.subspaces import KINDS, subspace
from narrowcast.tasks import build
from narrowcast.wire.messages import digest

PATH = Path(__file__).with_suffix(".json")
RUN, KEY = b"golden.1", 5
SMALL: dict[str, Any] = {
    "key": KEY, "dim": 9, "subspaces": 3, "k": 7, "sketch_rows": 3, "sketch_columns": 11, "rank": 2,
    "directions": 9, "clients": 12, "refresh": 4,
}  # fmt: skip
SIZES = [(89, 9), (5_000, 64), (70_001, 4_097)]
KINDS_AND_SIZES = [(kind, D, d) for kind in KINDS for D, d in SIZES if kind != "dense" or D < 70_001]


class Exact(Task):
    """Examples pull theta to themselves. Every operation is one that rounds alike on every machine."""

    name, metric, higher_is_better = "exact", "loss", False

    def __init__(self) -> None:
        self.layout = Layout(("matrix", "vector"), ((12, 7), (5,)))
        D, key = self.layout.size, keyed.derive(KEY, Purpose.DATA)
        made = torch.from_numpy(keyed.normals(key, Purpose.NORMALS, 25 * D)).view(25, D)
        self.centres, self.start = made[:24], made[24]
        self.clients = [np.arange(2 * c, 2 * c + 1 + c % 2) for c in range(12)]
        self._buffer = self.start.clone()

    def theta0(self) -> Tensor:
        return self.start.clone()

    def buffer(self) -> Tensor:
        return self._buffer

    def loss(self, theta: Tensor, batch: Batch) -> float:
        squares = (
            w * math.fsum(((theta - self.centres[i]).double() ** 2).tolist()) / 2
            for i, w in zip(batch.index.tolist(), batch.weight.tolist(), strict=True)
        )
        return math.fsum(squares)

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        total = torch.zeros_like(theta)
        for i, w in zip(batch.index.tolist(), batch.weight.tolist(), strict=True):
            total += (theta - self.centres[i]) * w
        return self.loss(theta, batch), total

    def gradients(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[float, Tensor]]:
        return (self.gradient(theta, batch) for batch in batches)

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        return {"loss": self.loss(theta, Batch(np.arange(24), torch.full((24,), 1 / 24), 0))}

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        return self.layout.split(theta)


def followed(run: Training) -> dict[str, Any]:
    """Bytes and theta of every round."""
    rows = [(r.up, r.down, r.down_first, r.down_dense, r.clients, digest(run.theta).hex()) for r in run]
    return {"bytes": [row[:5] for row in rows], "theta": [row[5] for row in rows]}


class Unjudged(Simulation):
    """What it trains on is noise, at rates that some methods blow up with: bits are asked for, no model."""

    def judge(self, record: RoundRecord) -> None:
        return


def simulated(name: str, per_client: bool, **options: Any) -> dict[str, Any]:
    plan = Plan(
        cohort=5, lr=0.25, rounds=9, key=KEY, run=RUN, per_client=per_client, dropout=0.2, participation=0.9
    )
    return followed(Unjudged(Exact(), made(name, **SMALL | options), plan))


def matrix(kind: str, D: int, d: int) -> str:
    """Digest of A^T g, A x and base + A x."""
    A = subspace(kind, D, d, KEY)
    g, x = (torch.from_numpy(keyed.normals(KEY + i, Purpose.NORMALS, n)) for i, n in ((0, D), (1, d)))
    return "".join(digest(v).hex() for v in (A.project(g), A.expand(x), A.add_expanded(g, x)))


def on_digits(name: str, driver: str) -> dict[str, Any]:
    """A built-in task through the settings of a run: in the simulator, or on Flower's nodes right here."""
    config = make_config({
        "task": "digits", "method": name, "dim": 64, "width": 8, "clients": 12, "partition": "iid",
        "cohort": 5, "rounds": 5, "lr": 0.05, "refresh": "2", "k": 40, "directions": 16, "subspaces": 3,
        "evaluate_every": 0, "schedule": "constant", "sketch_columns": 40,
    })  # fmt: skip
    task = build(config.task, config.task_options())
    method, plan = config.build_method(len(task.clients)), config.plan(len(task.clients), RUN)
    if driver == "simulator":
        return followed(Simulation(task, method, plan))
    from fake_grid import FakeGrid
    from narrowcast.flower import FleetSettings, client_app, fleet
    from narrowcast.flower.federation import Federation

    fleet.POLL_SECONDS = 0.001
    grid: Any = FakeGrid(client_app(config=config), 6)
    return followed(Federation(task, method, plan, grid, FleetSettings(wait=600.0)))


def cases() -> dict[str, Any]:
    """What can be asked, by name: a function and its arguments."""
    found: dict[str, Any] = {}
    for name in METHODS:
        found |= {f"{name}, {road}": (simulated, name, road == "alone") for road in ("summed", "alone")}
        found |= {
            f"{name}, digits, {driver}": (on_digits, name, driver) for driver in ("simulator", "flower")
        }
    for kind in KINDS:
        found[f"time-varying over {kind}"] = (_over, kind)
    for optimiser in (Momentum, Adam):
        found[f"carry with {optimiser.__name__}"] = (_carried, optimiser)
    for format in ("f16", "int8", "int4"):
        found[f"static, uploads as {format}"] = (_formatted, format)
    for name in ("static", "k-subspace-time-varying"):
        found[f"{name}, narrow"] = (_narrow, name)
    found |= {f"{kind} {D} x {d}": (matrix, kind, D, d) for kind, D, d in KINDS_AND_SIZES}
    return found


def _over(kind: str) -> dict[str, Any]:
    return simulated("time-varying", False, subspace=kind)


def _carried(optimiser: Any) -> dict[str, Any]:
    return simulated("time-varying", False, optimiser=optimiser(), carry=True)


def _formatted(format: str) -> dict[str, Any]:
    return simulated("static", True, uplink=format)


def _narrow(name: str) -> dict[str, Any]:
    return simulated(name, True, up_bits=1.5, down_bits=2.5)


def machine() -> dict[str, str]:
    """What the bits of a gradient, and of a method's own sums, may depend on: products differ by CPU."""
    capability, info = torch.backends.cpu.get_cpu_capability(), Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    which = {name.strip(): value.strip() for name, value in told.items()}
    model = "-".join(which.get(name, "?") for name in ("vendor_id", "cpu family", "model"))
    return {"torch": str(torch.__version__), "cpu": f"{capability} {model}"}


def answer(name: str) -> Any:
    call, *arguments = cases()[name]
    return json.loads(json.dumps(call(*arguments)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()  # Flower's
    found = {name: answer(name) for name in cases()}
    if sys.argv[1:] == ["--write"]:
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
        PATH.write_text(f'{{"machine": {json.dumps(machine())},\n"cases": {{\n{rows}\n}}}}\n')
