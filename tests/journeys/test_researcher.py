"""The first hour of a researcher: an own model, no rate guessed, methods side by side with seeds."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner, Result

import narrowcast as nc
from narrowcast.cli.app import app


def narrowcast(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "60"})


def test_an_own_model_learns_at_a_rate_that_nobody_gave() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 12)
    y = (x @ torch.randn(12, 3)).argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    task = nc.TorchTask(model, train=(x, y), test=(x, y), clients=nc.by_class(y, clients=30))
    for method in ("time-varying", "uncompressed", "signsgd"):  # good rates lie four decades apart
        *_, last = nc.simulate(task, method, cohort=10, epochs=8, seed=1, **_own(method))
        assert last.metrics["accuracy"] > 0.5, method


def _own(method: str) -> dict[str, int]:
    return {"dim": 32} if method == "time-varying" else {}


def test_a_comparison_with_seeds_goes_to_its_end_and_is_one_table(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'task = "quadratic"\nrounds = 8\ndim = 8\nseeds = [0, 1, 2]\n'
        '[[run]]\nmethod = "static"\n'
        '[[run]]\nmethod = "uncompressed"\nname = "too fast"\nlr = 1e12\n'
        '[[run]]\nmethod = "uncompressed"\n'
    )
    made = narrowcast("compare", file, "--out", tmp_path / "out")
    assert made.exit_code == 0, made.output
    shown = narrowcast("show", tmp_path / "out").output
    assert "static d=8 (3 seeds)" in shown
    assert "uncompressed (3 seeds)" in shown
    assert shown.count("±") >= 2
    assert "too fast, seed 0: diverged" in " ".join(shown.split())
