"""Differential privacy through Flower's own processes; the kills among them are a slow test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
pytest.importorskip("dp_accounting", reason="needs the extra narrowcast[privacy]")
from flower_runs import finish, is_free, rounds, table, until
from forking_fleet import ForkingFleet
from narrowcast.flower.demo import write_app
from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.privacy.ledger import Ledger
from narrowcast.rounds.records import HIDDEN, RoundRecord
from narrowcast.runs import run_folder

PRIVATE = {"dp_noise": 3.0, "dp_clip": "adaptive", "sampling": "poisson", "cohort": 3}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def app(folder: Path, **more: object) -> Path:
    return write_app(folder / "app", table(folder=str(folder / "run"), **PRIVATE, **more))


def assert_discreet(done: list[RoundRecord], run: Path) -> None:
    """Every round has stepped, epsilon rises to what was promised, and the ledger has each of them once."""
    facts, ledger = run_folder.load_facts(run), Ledger(run)
    assert [record.version for record in done] == list(range(1, facts.rounds + 1))
    for record in done:
        assert {name: getattr(record, name) for name in HIDDEN} == HIDDEN
        assert record.dropped == {}
    told = [record.epsilon for record in done]
    assert told == sorted(told)
    assert facts.privacy is not None
    assert told[-1] == facts.privacy.epsilon
    assert [line.release for line in ledger.lines if line.release is not None] == list(range(facts.rounds))


@pytest.mark.xdist_group("flower")
def test_a_private_run_on_real_processes(tmp_path: Path) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_node(0, 1)
        done = finish(fleet, tmp_path / "run", fleet.run(app(tmp_path, rounds=2)))
        told = f"epsilon {done[-1].epsilon:.4g}"  # in the engine's log, which comes later than the files
        until(lambda: told in fleet.log("run").partition("differential privacy: epsilon")[2], told, 300)
        log = fleet.log("run")
    assert_discreet(done, tmp_path / "run")
    assert not re.search(r"client \d|payload", log.partition("differential privacy")[2]), "nobody is named"


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_node_and_server_killed_release_every_round_once(tmp_path: Path) -> None:
    run, made = tmp_path / "run", app(tmp_path, rounds=8, min_clients=3, timeout=300.0)
    with ForkingFleet(tmp_path / "fleet") as fleet:
        nodes = [fleet.start_node(part, 2) for part in range(2)]
        fleet.run(made)
        until(lambda: rounds(run) >= 1, "the first round")
        fleet.kill(nodes[1])
        until(lambda: rounds(run) >= 3, "rounds without it")
        fleet.kill(fleet.superlink)
        until(lambda: is_free(run), "the end of the ServerApp, which has lost its SuperLink")
        before = Ledger(run).lines
        fleet.superlink = fleet.start_superlink()
        fleet.start_node(1, 2)
        done = finish(fleet, run, fleet.run(made))
    assert Ledger(run).lines[: len(before)] == before, "what was released stays"
    assert_discreet(done, run)
