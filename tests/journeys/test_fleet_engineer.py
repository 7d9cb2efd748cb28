"""The first hour of an engineer with a fleet: an app, an own model, a run, what is watched, what is left."""

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
pytest.importorskip("sklearn", reason="the app's digits are scikit-learn's")
from flwr.app import Context, RecordDict
from torch import nn
from typer.testing import CliRunner

import narrowcast as nc
from fake_grid import FakeGrid
from flower_runs import finish
from narrowcast.cli.app import app
from narrowcast.flower import LocalFleet, fleet
from narrowcast.rounds import records
from narrowcast.runs import run_folder

NODES = 2


def narrowcast(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "100"})


@pytest.fixture
def own_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What `narrowcast flower new` writes, importable as Flower's processes import it."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    folder = tmp_path / "my-app"
    assert narrowcast("flower", "new", folder).exit_code == 0
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]


def settings(folder: Path, **more: object) -> dict[str, Any]:
    """The app's own, as Flower hands them to both halves."""
    table = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return {f"narrowcast.{k}": v for k, v in {**table["narrowcast"], **more}.items()}


def run(folder: Path, config: dict[str, Any]) -> FakeGrid:
    """The app's two halves, without Flower's processes between them."""
    client, server = (importlib.import_module(f"app.{half}") for half in ("client", "server"))
    grid = FakeGrid(client.app, NODES)
    for context in grid.contexts.values():
        context.run_config = config
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    server.app._main(grid, context)
    return grid


def test_from_a_new_app_to_a_model_that_others_open(
    own_app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr")  # as an app has it, whatever ran in this process before
    log, out = tmp_path / "log.jsonl", tmp_path / "runs/flower"
    run(own_app, settings(own_app, **{"json-log": str(log)}))

    # It learned, and both the server and the nodes say so.
    last = records.read(out / "records.jsonl")[-1]
    assert last.metrics["accuracy"] > 0.8
    assert last.node_metrics["accuracy"] > 0.8
    assert last.node_examples == 150
    shown = narrowcast("show", out)
    assert "at the nodes" in shown.output
    assert f"{last.node_metrics['accuracy']:.4f}" in shown.output

    # It can be watched, and rounds have one number everywhere.
    assert "narrowcast_rounds_done 12\n" in (out / "metrics.prom").read_text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["round"] for line in lines if line.get("event") == "round"] == list(range(1, 13))
    assert any(line["message"].startswith("round 12 of 12  loss") for line in lines)

    # Whoever has make_model and the file has the model.
    task = importlib.import_module("app.task")
    model = nc.apply(task.make_model(), out / "model.narrowcast")
    assert task.evaluate(model)["accuracy"] == pytest.approx(last.metrics["accuracy"])
    torch.save(task.make_model().state_dict(), tmp_path / "initial.pt")
    words = ("--base", tmp_path / "initial.pt", "--to", tmp_path / "whole.safetensors")
    done = narrowcast("export", out, *words)
    assert done.exit_code == 0, done.output
    without = narrowcast("export", out, "--to", tmp_path / "w.pt")
    assert "nc.apply(module, file)" in without.output


@pytest.mark.parametrize("part", ["dropout", "batch norm", "group norm"])
def test_an_own_model_trains_or_says_why_not(own_app: Path, tmp_path: Path, part: str) -> None:
    parts = {"dropout": nn.Dropout(0.2), "batch norm": nn.BatchNorm1d(64), "group norm": nn.GroupNorm(4, 64)}

    def make_model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), parts[part], nn.ReLU(), nn.Linear(64, 10))

    for half in ("task", "client", "server"):
        importlib.import_module(f"app.{half}").make_model = make_model  # type: ignore[attr-defined]
    config = settings(own_app, rounds=3, refresh="1", lr="auto")
    if part == "batch norm":
        with pytest.raises(ValueError, match="freeze_batch_norm"):
            run(own_app, config)
        return
    run(own_app, config)
    last = records.read(tmp_path / "runs/flower/records.jsonl")[-1]
    assert last.node_metrics
    assert not last.dropped
    assert run_folder.load_config(tmp_path / "runs/flower").lr != "auto"  # what was found, not what was asked


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_the_same_on_real_processes(own_app: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with LocalFleet(tmp_path / "fleet") as local:
        for part in range(NODES):
            local.start_node(part, NODES, **{"narrowcast-folder": str(tmp_path / "shelf")})
        done = finish(local, out, local.run(own_app, folder=str(out), rounds=4, timeout=600.0))
    assert [record.node_examples for record in done] == [150] * 4
    assert done[-1].evaluate_down > 0
    assert "narrowcast_rounds_done 4\n" in (out / "metrics.prom").read_text()
    task = importlib.import_module("app.task")
    model = nc.apply(task.make_model(), out / "model.narrowcast")
    assert task.evaluate(model) == pytest.approx(done[-1].metrics)
