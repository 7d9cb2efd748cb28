"""The house itself: which room knows which, what is public, what an import costs."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import narrowcast
from narrowcast.cli import app
from places import EXPERIMENTS, ROOT

SRC, STUDIES = ROOT / "src" / "narrowcast", ROOT / "studies" / "src" / "narrowcast_studies"
ROOMS = sorted(p.parent.name for p in SRC.glob("*/__init__.pyi"))
BASE = sorted(p.stem for p in SRC.glob("*.py") if not p.stem.startswith("__"))


def test_few_modules_stand_in_the_hall_and_few_names_are_public() -> None:
    assert len(list(SRC.glob("*.py"))) <= 12
    assert len(narrowcast.__all__) <= 28


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_every_public_name_is_there_and_none_is_hidden_by_a_module_of_its_name(room: str) -> None:
    if room == "flower":
        pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
    package = import_module(f"narrowcast.{room}".rstrip("."))
    assert package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    stub = ast.parse((SRC / room / "__init__.pyi").read_text())
    own = {
        alias.name
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert not own & {p.stem for p in (SRC / room).glob("*.py")}


def test_the_studies_use_public_names_only() -> None:
    for path in [*STUDIES.rglob("*.py"), *EXPERIMENTS.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("narrowcast.") for alias in node.names), path
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != "narrowcast":
                continue
            _, *rest = str(node.module).split(".")
            for name in (alias.name for alias in node.names):
                where = f"{path.name}:{node.lineno}: from {node.module} import {name}"
                if rest and rest[0] in BASE:
                    assert len(rest) == 1, where
                    assert not name.startswith("_"), where
                elif rest:
                    assert len(rest) == 1, where
                    assert name in import_module(f"narrowcast.{rest[0]}").__all__, where
                else:
                    assert name in {*narrowcast.__all__, *ROOMS, *BASE}, where


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    """What `make lint` runs, on a copy of the house with one wrong import in it."""
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copytree(
        STUDIES.parent, tmp_path / "studies", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "narrowcast" / "numerics" / "pool.py").open("a") as file:
        file.write("\n\ndef wrong() -> None:\n    import narrowcast.rounds.plan\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path / 'studies'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert re.search(r"narrowcast\.numerics\.pool -> narrowcast\.rounds\.plan", done.stdout)


COMMANDS = [*app.COMMANDS, "flower demo", "flower new", *app.STUDIES]
COUNT = """
import json, sys
from narrowcast.cli.app import app
for words in json.loads(sys.argv[1]):
    sys.argv = ["narrowcast", *words.split()]
    try:
        app()
    except SystemExit as end:
        assert end.code == 0, (words, end.code)
    heavy = sorted({"torch", "numba", "scipy", "matplotlib", "flwr", "transformers"} & sys.modules.keys())
    print("HEAVY", words, heavy, file=sys.stderr)
"""


def test_help_and_show_import_neither_torch_nor_numba(tmp_path: Path) -> None:
    from narrowcast.runs import make_config, runner

    runner.start(make_config({"task": "quadratic", "rounds": 1, "dim": 8, "width": 100}), tmp_path / "run")
    asked = ["--help", *(f"{command} --help" for command in COMMANDS), f"show {tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, "-c", COUNT, json.dumps(asked)], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("HEAVY")]
    assert lines == [f"HEAVY {words} []" for words in asked], done.stderr


def test_the_constraints_pin_what_is_installed() -> None:
    pinned = {line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    pinned |= {f"{line}+cpu" for line in pinned if line.startswith("torch==")}
    freeze = subprocess.run(
        [sys.executable, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    others = {line for line in freeze.stdout.splitlines() if line not in pinned}
    unexpected = {line for line in others if not line.startswith(("-e ", "#")) and "narrowcast" not in line}
    known = {line.split("==")[0] for line in pinned}
    # What somebody installed beside it (benchmarks, a debugger) is theirs; what we pin has our version.
    assert not {line for line in unexpected if line.split("==")[0] in known}
    if os.environ.get("CI"):
        assert not unexpected


@pytest.mark.xdist_group("house")
def test_tests_that_share_something_are_kept_together(request: pytest.FixtureRequest) -> None:
    """Real processes one after the other, and what takes seconds to make once: if xdist sees the groups."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("not run by several workers in groups")
    assert request.node.nodeid.endswith("@house")
