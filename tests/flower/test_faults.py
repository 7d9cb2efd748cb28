"""Nodes and servers that fail, with real processes: every fault of issue 5, and what the run makes of it.

In each, the round goes on with whoever is left, the dropped are counted (records) and named (log), and the
theta that clients trained on is the server's: both sides note its digest, see `faulty_app`.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
import faulty_app
from fake_grid import FakeGrid
from flower_runs import (
    TOPK,
    app,
    assert_equal_thetas,
    begun,
    finish,
    held,
    is_free,
    noted,
    rounds,
    table,
    until,
)
from forking_fleet import ForkingFleet
from narrowcast.flower import FleetSettings, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.flower.security import certify, make_key
from narrowcast.flower.settings import run_settings
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import modelfile
from narrowcast.runs.config import RunConfig
from narrowcast.tasks import build
from narrowcast.wire.messages import MAX_WEIGHT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]
BAD = [1, 3, 5]  # the clients of node 1 of 2


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def theta_of(run: Path, **settings: object) -> torch.Tensor:
    config = config_of(**settings)
    return modelfile.load_model(run / "model.narrowcast", build(config.task, config.task_options()).theta0())


def config_of(**settings: object) -> RunConfig:
    return run_settings({f"narrowcast.{name}": value for name, value in table(**settings).items()})


# One run, in which node 1 does something else wrong in every round.
FAULTS = {
    1: "exception", 2: "garbage", 3: "rubbish", 4: "nan", 5: "another-run", 6: "old-round", 7: "billion",
    8: "sleep",
}  # fmt: skip
DROPPED = {
    "exception": "failed", "garbage": "failed", "rubbish": "refused", "nan": "refused",
    "another-run": "refused", "old-round": "refused", "billion": "refused", "sleep": "no answer",
}  # fmt: skip
SAID = {
    "exception": "the disk is full",
    "garbage": "not a narrowcast Answer",
    "rubbish": "message format 255, this version speaks",
    "nan": "a NaN or an infinity",
    "another-run": "a message of another run",
    "old-round": "an update of round 1,",
    "billion": f"claims a weight of {MAX_WEIGHT}",
    "sleep": "",
}
LIAR = {"rounds": 10, "weighting": "examples", "timeout": 100.0}


class Liar:
    """The run, when it is over."""

    def __init__(self, folder: Path, done: list[RoundRecord], log: str) -> None:
        self.folder, self.records, self.log = folder, done, log


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Liar]:
    folder = tmp_path_factory.mktemp("liar")
    faults = " ".join(f"{round}:{fault}" for round, fault in FAULTS.items())
    with pytest.MonkeyPatch.context() as patch, ForkingFleet(folder / "fleet") as fleet:
        patch.setenv("OMP_NUM_THREADS", "1")
        fleet.start_node(0, 2, notes=str(folder / "notes"))
        fleet.start_node(1, 2, notes=str(folder / "notes"), faults=faults, late=130.0)
        done = finish(fleet, folder / "run", fleet.run(app(folder, **LIAR)))
        yield Liar(folder, done, fleet.log("run"))


@pytest.mark.parametrize("fault", DROPPED)
def test_a_node_at_fault_is_dropped_counted_and_named(fault: str, liar: Liar) -> None:
    round = next(number for number, name in FAULTS.items() if name == fault)
    record = liar.records[round]
    assert (record.clients, record.dropped) == (3, {DROPPED[fault]: 3})
    # Records count from 0, words from 1.
    named = [line for line in liar.log.splitlines() if f"round {round + 1}, {DROPPED[fault]}: client" in line]
    assert named, liar.log[-5000:]
    assert SAID[fault] in "\n".join(named)
    assert all(str(client) in "\n".join(named).partition("client")[2] for client in BAD)


def test_after_a_fault_the_node_takes_part_again(liar: Liar) -> None:
    assert [r.round for r in liar.records if r.clients == 6] == [0, 9]
    trained = assert_equal_thetas(liar.folder / "run", liar.folder / "notes")
    assert set(trained[0]) == set(range(10))
    assert set(trained[1]) >= set(range(10)) - {1}  # in round 1 it raised before it had a theta


def test_the_model_is_that_of_a_run_in_which_the_node_did_not_answer(
    liar: Liar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run in this process, in which it raises wherever it lied or came too late."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    silent, honest = (_in_process(tmp_path / name, faults) for name, faults in (("a", FAULTS), ("b", {})))
    there = theta_of(liar.folder / "run", **LIAR)
    assert (there - silent).norm() < 1e-4 * silent.norm()
    assert (there - honest).norm() > 1e-3 * silent.norm()


def _in_process(folder: Path, faults: dict[int, str]) -> torch.Tensor:
    config = config_of(**LIAR)
    faults = dict.fromkeys(faults, "exception")
    words = " ".join(f"{round}:{fault}" for round, fault in faults.items())
    grid = FakeGrid(client_app(config=config, mods=[faulty_app.misbehave]), 2, {"notes": str(folder)})
    grid.contexts[101].node_config["faults"] = words
    task = build(config.task, config.task_options())
    plan = config.plan(len(task.clients), b"run-test")
    settings = FleetSettings(min_clients=6, wait=600.0)
    run = Federation(task, config.build_method(len(task.clients)), plan, grid, settings)
    list(run)
    return run.theta


@pytest.mark.parametrize("method", ["topk", "time-varying"])
def test_nodes_killed_in_the_middle_of_a_round_come_back(method: str, tmp_path: Path) -> None:
    """Node 1 keeps model and private states in a folder, node 2 does not; both are killed while they work."""
    more = {"rounds": 10, "min_clients": 2, "timeout": 300.0, **(TOPK if method == "topk" else {})}
    notes, run = tmp_path / "notes", tmp_path / "run"
    shelf = {1: {"narrowcast-folder": str(tmp_path / "shelf")}}
    slow = {
        0: {"faults": "*:wait"},
        1: {"faults": "*:sleep", "late": 15.0},
        2: {"faults": "*:sleep", "late": 15.0},
    }
    with ForkingFleet(tmp_path / "fleet") as fleet:
        nodes = [
            fleet.start_node(part, 3, notes=str(notes), **slow[part], **shelf.get(part, {}))
            for part in range(3)
        ]
        submitted = fleet.run(app(tmp_path, **more))
        until(lambda: _both_at_work(notes), "their second round")
        killed = begun(notes, 1)[-1]
        for part in (1, 2):
            fleet.kill(nodes[part])
        until(lambda: rounds(run) > killed, "the end of that round")
        with held(fleet, run, notes, 1, 2):
            for part in (1, 2):
                fleet.start_node(part, 3, notes=str(notes), **shelf.get(part, {}))
        done = finish(fleet, run, submitted)
        log = fleet.log("run")
    assert (done[killed].clients, done[killed].dropped) == (2, {"no answer": 4})
    for clients in ("1, 4", "2, 5"):
        assert f"round {killed + 1}, no answer: client {clients}" in log
    assert all(sum(r.dropped.values()) + r.clients == 6 for r in done)
    after = done[killed + 1 :]
    assert after[-1].clients == 6
    assert all(set(r.dropped) <= {"absent"} for r in after)
    trained = assert_equal_thetas(run, notes)
    assert all(done[-1].round in trained[part] for part in range(3))
    # Only the node without a folder has lost something, once: two private states, and its place in the log.
    assert sum(r.lost for r in done) == (2 if method == "topk" else 0)
    assert len([r.round for r in after if r.down_first]) == 1


def _both_at_work(notes: Path) -> bool:
    """Nodes 1 and 2 are in the middle of the same round, and it is not their first."""
    one, two = begun(notes, 1), begun(notes, 2)
    return min(len(one), len(two)) >= 2 and one[-1] == two[-1]


@pytest.mark.parametrize("method", ["topk", "time-varying"])
def test_a_killed_superlink_goes_on_to_the_same_model(method: str, tmp_path: Path) -> None:
    """The run is submitted again with the same folder; then once more from the start, undisturbed."""
    more = TOPK if method == "topk" else {"optimiser": "momentum"}
    notes, run, quiet = tmp_path / "notes", tmp_path / "run", tmp_path / "quiet"
    with ForkingFleet(tmp_path / "fleet", certify(tmp_path / "secrets"), authenticate=True) as fleet:
        for part in range(2):
            key = make_key(tmp_path / "secrets" / f"node{part}")
            fleet.register(key)
            config = {"narrowcast-folder": str(tmp_path / "shelf"), "notes": str(notes)}
            fleet.start_node(part, 2, key=key, **config)
        folder = app(tmp_path, **more, rounds=6, min_clients=6, roster=str(tmp_path / "roster.json"))
        fleet.run(folder)
        until(lambda: rounds(run) >= 3 and 3 in begun(notes, 1), "round 3")
        fleet.kill(fleet.superlink)
        until(lambda: is_free(run), "the end of the ServerApp, which has lost its SuperLink")
        assert rounds(run) == 3
        fleet.superlink = fleet.start_superlink()
        done = finish(fleet, run, fleet.run(folder))
        assert "going on with the run in" in fleet.log("run")
        trained = assert_equal_thetas(run, notes)
        for path in notes.iterdir():
            path.unlink()
        undisturbed = finish(fleet, quiet, fleet.run(folder, folder=str(quiet)))
        assert_equal_thetas(quiet, notes)
    assert len(msgspec.json.decode((tmp_path / "roster.json").read_bytes())) == 2  # ids stay with their keys
    assert [r.clients for r in done] == [r.clients for r in undisturbed] == [6] * 6
    assert not any(r.lost or r.dropped for r in (*done, *undisturbed))
    assert noted(Path(f"{run}.thetas")) == noted(Path(f"{quiet}.thetas"))
    assert set(trained[0]) == set(trained[1]) == set(range(6))
    assert torch.equal(theta_of(run, **more, rounds=6), theta_of(quiet, **more, rounds=6))


def test_a_newcomer_in_the_middle_of_time_varying_training(tmp_path: Path) -> None:
    notes, run = tmp_path / "notes", tmp_path / "run"
    with ForkingFleet(tmp_path / "fleet") as fleet:
        fleet.start_node(0, 2, notes=str(notes), faults="*:wait")
        submitted = fleet.run(app(tmp_path, rounds=9, min_clients=3, refresh="1", timeout=600.0))
        until(lambda: rounds(run) >= 3, "round 3")
        with held(fleet, run, notes, 1):
            fleet.start_node(1, 2, notes=str(notes))
        done = finish(fleet, run, submitted)
        log = fleet.log("run")
    came = next(r for r in done if r.clients == 6)
    assert came.round >= 3
    assert all(r.dropped == {"absent": 3} for r in done[: came.round])
    assert f"round {came.round}, absent: client 1, 3, 5" in log
    assert all(not r.dropped for r in done[came.round :])
    assert came.down_first > 64 * 4 * came.round  # the whole log: a Sigma for every subspace it has missed
    trained = assert_equal_thetas(run, notes)
    assert min(trained[1]) == came.round
