"""Runs of these tests are tiny: giving memory back after each, which walks all objects, is most of it."""

import contextlib
import shutil
from pathlib import Path

import pytest

from narrowcast.runs import RunConfig, attempts
from narrowcast_studies import conducting, untrained
from narrowcast_studies.reproduce import running
from sessions import FILE, RESULTS, Cut, call, stand


def give_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (conducting, untrained):
        monkeypatch.setattr(module, "give_back", lambda: None)


@pytest.fixture(autouse=True)
def _nothing_to_give_back(monkeypatch: pytest.MonkeyPatch) -> None:
    give_nothing_back(monkeypatch)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(stand(tmp_path, FILE))
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which all was run at once."""
    folder = stand(tmp_path_factory.mktemp("finished"), FILE)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        give_nothing_back(patch)
        call("tiny")
    return folder


@pytest.fixture
def committed_alone(clone: Path, finished: Path) -> Path:
    """The same on another machine: its results are there, its runs are not."""
    shutil.copytree(finished / RESULTS, clone / RESULTS)
    return clone


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The runs that are begun or gone on with, in this process."""
    seen: list[RunConfig] = []
    here = attempts.in_process

    def noted(config: RunConfig, folder: Path) -> None:
        seen.append(config)
        here(config, folder)

    monkeypatch.setattr(attempts, "in_process", noted)
    return seen


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> type[Cut]:
    monkeypatch.setattr(running, "Processes", Cut)
    monkeypatch.setattr(Cut, "ended", [])
    monkeypatch.setattr(Cut, "rounds", 10**9)
    return Cut
