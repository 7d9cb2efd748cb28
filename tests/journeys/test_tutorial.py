"""docs/tutorial.md, step by step: its files are written, its commands run, its claims hold."""

import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
pytest.importorskip("sklearn", reason="the tutorial's digits are scikit-learn's")
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from doors import Doors
from fake_grid import FakeGrid
from narrowcast.cli.app import app
from narrowcast.flower import fleet
from narrowcast.rounds import records
from narrowcast.runs import run_folder
from places import DOCS

PAGE = (DOCS / "tutorial.md").read_text()
BLOCK = re.compile(r"(?:^`([\w./-]+)`:\n\n)?^```(\w*)\n(.*?)^```", re.S | re.M)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doors: Doors):  # type: ignore[no-untyped-def]
    """And `mine:task` is forgotten afterwards."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in {"app", "mine"}]:
        del sys.modules[name]


def narrowcast(line: str) -> str:
    done = CliRunner().invoke(app, shlex.split(line)[1:], env={"COLUMNS": "100"})
    assert done.exit_code == 0, f"{line}: {done.output}"
    return done.output


def on_a_fleet(folder: Path, nodes: int = 2) -> None:
    """What `flwr run` does, without Flower's processes (tests/journeys/test_fleet_engineer.py has them)."""
    table = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config: dict[str, Any] = {f"narrowcast.{k}": v for k, v in table["narrowcast"].items()}
    client, server = (importlib.import_module(f"app.{half}") for half in ("client", "server"))
    grid = FakeGrid(client.app, nodes)
    for context in grid.contexts.values():
        context.run_config = config
    server.app._main(grid, Context(1, 0, node_config={}, state=RecordDict(), run_config=config))


def test_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    files, said, scope = [], {}, dict[str, Any]()
    for path, kind, text in BLOCK.findall(PAGE):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
            files.append(path)
        elif kind == "python":
            exec(text, scope)
        else:
            for line in text.splitlines():
                if "runs/flower" in line:  # the fleet's step comes before it is shown
                    _set_up(monkeypatch)
                    on_a_fleet(Path("my-app"))
                said[line.split()[1]] = narrowcast(line)
    assert files == ["mine.py", "compare.toml", "my-app/app/task.py"]
    assert list(said) == ["run", "compare", "page", "flower", "show"]

    # What the page says of them.
    first = Path("runs/first")
    last = records.read(first / "records.jsonl")[-1]
    assert last.metrics["accuracy"] > 0.6
    assert scope["accuracy"] == pytest.approx(last.metrics["accuracy"])
    assert "found by" in said["run"]
    assert isinstance(run_folder.load_config(first).lr, float)
    assert run_folder.load_facts(first).parameters == 4810
    assert (first / "model.narrowcast").stat().st_size < 20_000
    assert "uncompressed" in said["compare"]
    assert Path("page.html").stat().st_size > 10_000
    assert "at the nodes" in said["show"]
    assert records.read(Path("runs/flower/records.jsonl"))[-1].node_examples == 150


def _set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 4 by hand: the copy, and the two settings."""
    monkeypatch.syspath_prepend("my-app")
    Path("my-app/app/mine.py").write_text(Path("mine.py").read_text())
    settings = Path("my-app/pyproject.toml")
    rate = run_folder.load_config(Path("runs/first")).rate / 8
    text = settings.read_text().replace("dim = 512 ", "dim = 128 ").replace("lr = 40.0 ", f"lr = {rate} ")
    assert "dim = 128" in text
    assert f"lr = {rate}" in text
    settings.write_text(text)
