"""The library's run is the command's: the same settings make the same records, on the same threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import narrowcast as nc
from narrowcast.errors import ConfigError
from narrowcast.rounds import records
from narrowcast.runs import make_config, run_folder, runner
from narrowcast.tasks.table import build


def _task(seed: int):  # type: ignore[no-untyped-def]
    return build("quadratic", make_config({"task": "quadratic", "rounds": 1, "seed": seed}).task_options())


@pytest.mark.parametrize("lr", [0.1, "auto"])
def test_library_and_command_make_the_same_run(tmp_path: Path, lr: float | str) -> None:
    settings = {"method": "time-varying", "dim": 8, "epochs": 2, "lr": lr, "seed": 3}
    folder = runner.start(make_config({"task": "quadratic", **settings}), tmp_path / "run")
    theirs = records.read(folder / run_folder.RECORDS)
    method = settings.pop("method")
    ours = list(nc.simulate(_task(3), method, **settings))
    keys = ("rate", "loss", "up", "down", "metrics")
    assert [[getattr(r, k) for k in keys] for r in ours] == [[getattr(r, k) for k in keys] for r in theirs]
    assert sum(bool(r.metrics) for r in ours) == 2  # an epoch


def test_the_threads_are_the_runs_in_a_round_and_the_callers_between() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        task, seen = _task(0), []
        gradient = task.gradient
        task.gradient = lambda *a: seen.append(torch.get_num_threads()) or gradient(*a)
        for _ in nc.simulate(task, nc.method("static", dim=8), nc.Plan(cohort=5, lr=0.1, rounds=3)):
            assert torch.get_num_threads() == 2
        assert set(seen) == {1}
    finally:
        torch.set_num_threads(before)


def test_a_seed_is_everything() -> None:
    one, two, other = ([r.loss for r in nc.simulate(_task(0), "k-subspace", dim=4, rounds=4, lr=0.1, seed=s)]
                       for s in (1, 1, 2))  # fmt: skip
    assert one == two
    assert one != other


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="--levels"):
        nc.simulate(_task(0), "static", levels=3, rounds=1)
    with pytest.raises(ConfigError, match="did you mean 'static'"):
        nc.simulate(_task(0), "statik", rounds=1)
    for plan in ({"rounds": 1}, {"plan": nc.Plan(cohort=1, lr=1.0, rounds=1)}):
        with pytest.raises(TypeError, match=r"takes a task, got Linear, which lacks .*nc\.TorchTask\(model"):
            nc.simulate(torch.nn.Linear(2, 2), nc.method("static", dim=2), **plan)
    with pytest.raises(TypeError, match="takes a method that is made"):
        nc.simulate(_task(0), "static", nc.Plan(cohort=1, lr=1.0, rounds=1))
