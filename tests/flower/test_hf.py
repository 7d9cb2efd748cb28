"""The example for Hugging Face: its app, on nodes in this process."""

import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
pytest.importorskip("transformers", reason="needs transformers")
from fake_grid import FakeGrid
from narrowcast.flower import FleetSettings, fleet
from narrowcast.flower.federation import Federation
from narrowcast.flower.settings import run_settings
from places import EXAMPLES

EXAMPLE = EXAMPLES / "flower_hf"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield EXAMPLE
    for name in [name for name in sys.modules if name == "app" or name.startswith("app.")]:
        del sys.modules[name]


def test_a_transformer_trains(example: Path) -> None:
    project = tomllib.loads((example / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    settings: dict[str, Any] = {f"narrowcast.{k}": v for k, v in project["config"]["narrowcast"].items()}
    parts = (project["components"][name].partition(":")[0] for name in ("clientapp", "serverapp"))
    client, server = map(import_module, parts)
    grid = FakeGrid(client.app, 2)
    for context in grid.contexts.values():
        context.run_config.update(settings)
    config = run_settings(settings, task="custom")
    task = server.build(grid.contexts[100])
    plan = config.plan(2, b"run-test")
    run = Federation(task, config.build_method(2), plan, grid, FleetSettings(min_clients=2, wait=600.0))
    records = list(run)
    assert all((r.clients, r.dropped) == (2, {}) for r in records)
    assert all(r.up < 2 * (4 * 1024 + 100) for r in records)
    assert task.layout.size > 10 * 1024
    assert records[0].metrics["accuracy"] < 0.8
    assert records[-1].metrics["accuracy"] > 0.8
