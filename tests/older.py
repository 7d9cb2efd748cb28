"""What this version writes, to be committed when the next one writes something else.

python tests/older.py tests/compatibility/format-N makes two runs that were stopped half way, their models in
the end, what nodes keep, and a message.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from fake_grid import FakeGrid
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.federation import Federation
from narrowcast.rounds import exchange
from narrowcast.runs import RunConfig, make_config, runner
from narrowcast.tasks import build

COMMON = {
    "task": "quadratic", "width": 20, "clients": 6, "cohort": 3, "rounds": 6, "lr": 0.05, "partition": "iid",
    "threads": 1,
}  # fmt: skip
METHODS: dict[str, dict[str, object]] = {"time-varying": {"dim": 4, "refresh": "2"}, "topk": {"k": 3}}
RUN = b"the run."


def config_of(method: str) -> RunConfig:
    return make_config({**COMMON, "method": method, **METHODS[method]})


def runs(out: Path) -> None:
    for method in METHODS:
        left = iter(range(2))
        folder = runner.start(
            config_of(method), out / method, until=lambda left=left: next(left, None) is None
        )
        with tempfile.TemporaryDirectory() as other:
            whole = Path(shutil.copytree(folder, Path(other) / "whole"))
            runner.resume(whole)
            shutil.copy(whole / "model.narrowcast", out / f"{method}.narrowcast")
        (folder / ".lock").unlink(missing_ok=True)


def shelf_and_message(out: Path) -> None:
    config = config_of("topk")
    grid = FakeGrid(client_app(config=config), 2, {"narrowcast-folder": str(out / "shelf")})
    task = build(config.task, config.task_options())
    method, plan = config.build_method(6), dataclasses.replace(config.plan(6), run=RUN)
    federation = Federation(task, method, plan, grid, FleetSettings(wait=60.0))
    for _ in range(3):
        federation.step()
    zero = torch.zeros(20)
    server = method.server(zero, task.layout)
    round = exchange.Round(RUN, 5, 0, 0, exchange.digest_of(method, server, zero))
    model = method.newcomer(zero, task.layout)
    (out / "upload").write_bytes(exchange.send_up(method, None, torch.arange(20.0), model, round, 2, 1)[1])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    runs(target)
    shelf_and_message(target)
