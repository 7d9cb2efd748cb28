"""examples/my_method, installed as a stranger's package: its own tests, the command, a fleet, a resume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT

TRAIN = """
import sys
from pathlib import Path
import torch
from narrowcast.cli.app import app
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.server import begin_or_resume, driver
from narrowcast.flower.settings import run_settings
from narrowcast.rounds import records
from narrowcast.runs import run_folder, runner
from fake_grid import FakeGrid

out = Path(sys.argv[1])
def narrowcast(*words):
    try:
        app([str(word) for word in words])
    except SystemExit as end:
        assert not end.code, words
    assert "my_method" in sys.modules or words[0] == "--help"

flags = ["--pool", 4, "--turns", 0.5, "--clients", 8, "--cohort", 4, "--rounds", 30, "--lr", 0.5]
narrowcast("methods", "pooled")
narrowcast("run", "spirals", "--method", "pooled", *flags, "--out", out / "run")
config, whole = run_folder.load_config(out / "run"), records.read(out / "run/records.jsonl")
assert whole[-1].metrics["accuracy"] > 0.8, whole[-1]
left = iter(range(3))
runner.start(config, out / "cut", until=lambda: next(left, None) is None)
narrowcast("run", "--resume", out / "cut")
theta = runner.rebuild(out / "run")[1]
assert torch.equal(runner.rebuild(out / "cut")[1], theta)

own = {name[2:]: value for name, value in zip(flags[::2], flags[1::2], strict=True)}
table = {"task": "spirals", "method": "pooled", **own}
run_config = {f"narrowcast.{name}": value for name, value in table.items()}
grid = FakeGrid(client_app(), 8)
for context in grid.contexts.values():
    context.run_config = run_config
fleet = FleetSettings(folder=str(out / "fleet"), wait=600.0, min_clients=8)
folder = begin_or_resume(run_settings(run_config), fleet, driver(grid, fleet), None)
torch.testing.assert_close(runner.rebuild(folder)[1], theta, rtol=1e-3, atol=1e-4)
assert [r.up for r in records.read(folder / "records.jsonl")] == [r.up for r in whole]
print("trained, resumed, on a fleet")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the example, and the package as pip installs it, in `site`."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(
        ROOT / "examples" / "my_method",
        folder / "source",
        ignore=shutil.ignore_patterns("__pycache__", "build"),
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--no-compile", "--target", str(folder / "site"), str(folder / "source")],
        check=True,
    )  # fmt: skip
    return folder


def python(installed: Path, *words: str, also: str = "") -> str:
    """In an empty folder, so that nothing is found but what is installed."""
    place = installed / "empty"
    place.mkdir(exist_ok=True)
    path = os.pathsep.join(filter(None, (str(installed / "site"), also)))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_its_own_tests_pass(installed: Path) -> None:
    """All laws of a method and of a task, and the naive twin."""
    told = python(
        installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(installed),
        "-c", os.devnull, str(installed / "source" / "test_my_method.py"),
    )  # fmt: skip
    assert "22 passed" in told, told


def test_it_trains_by_the_command_on_a_fleet_and_goes_on(installed: Path) -> None:
    told = python(installed, "-c", TRAIN, str(installed / "runs"), also=str(ROOT / "tests"))
    assert "trained, resumed, on a fleet" in told
    assert "b: neighbours that share a number" in told
    assert "pooled b=4" in told
