"""Killed at any moment, a run resumes to the records and the model of an undisturbed one."""

import itertools
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

import children
import ended_runs
from narrowcast.errors import ConfigError
from narrowcast.methods import METHODS
from narrowcast.rounds import records
from narrowcast.rounds.training import Training
from narrowcast.runs import checkpoints, run_folder, runner
from narrowcast.runs.reading import make_config

pytestmark = children.GROUP  # they also share an undisturbed run
SETTINGS = {
    "task": "digits",
    "method": "k-subspace-time-varying",
    "dim": 32,
    "subspaces": 3,
    "width": 24,
    "lr": 10.0,
    "epochs": 20,
    "cohort": 29,
    "optimiser": "adam",
    "carry": True,
    "dropout": 0.2,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner.start(make_config(SETTINGS), tmp_path_factory.mktemp("undisturbed") / "run")


def assert_same(a: Path, b: Path) -> None:
    first, second = records.read(a / "records.jsonl"), records.read(b / "records.jsonl")
    assert len(first) == len(second)
    assert all(x.same_as(y) for x, y in zip(first, second, strict=True))
    assert (a / "model.narrowcast").read_bytes() == (b / "model.narrowcast").read_bytes()


def test_kill_9_and_resume(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for number, seconds in ((5, 0.0), (37, 0.004), (61, 0.011)):  # inside later rounds, or a checkpoint
        process = children.start(ended_runs.killed, folder, SETTINGS, number, seconds)
        process.join()
        assert process.exitcode == -(signal.SIGPROF if seconds else signal.SIGKILL)
        assert not run_folder.finished(folder)
    runner.resume(folder)
    assert_same(folder, undisturbed)


BRIEF = {
    **SETTINGS,
    "epochs": 3,
    "cohort": 60,
    "width": 16,
    "optimiser": "sgd",
    "lr": 0.05,
    "rank": 1,
    "seeds": 16,
}


class Enough(Exception):
    """The run ends here without a word."""


def stop_at(number: int) -> runner.OnRecord:
    def stop(facts: run_folder.Facts, record: records.RoundRecord) -> None:
        if record.round == number:
            raise Enough

    return stop


@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_as_if_nothing_had_happened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Private state and all: a run stopped between two checkpoints goes back to the first of them."""
    rate = {"lr": 1e-4} if name == "fedkseed" else {}  # at the others' its model is nonsense
    config = make_config({**BRIEF, "method": name, "clients": 60, "cohort": 12, **rate})
    whole = runner.start(config, tmp_path / "whole")
    ticks = itertools.count()  # a checkpoint is taken every few rounds
    monkeypatch.setattr(Training, "checkpoint_seconds", 10.0)
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: float(next(ticks)))
    for last in (8, 11):
        with pytest.raises(Enough):
            (runner.resume if last > 8 else partial(runner.start, config))(tmp_path / "run", stop_at(last))
    runner.resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)
    assert not (tmp_path / "run" / "private").exists()


STATEFUL = [name for name, row in METHODS.items() if row.make().stateful]


@pytest.mark.parametrize("name", STATEFUL)
def test_lost_and_damaged_private_state_is_begun_anew_and_counted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = (
        make_config({**BRIEF, "method": name, "dropout": 0.0, "local_steps": 1}),
        tmp_path / "run",
    )
    monkeypatch.setattr(Training, "checkpoint_seconds", 0.0)
    monkeypatch.setattr(checkpoints, "COSTS", 0.0)
    with pytest.raises(Enough):
        runner.start(config, folder, stop_at(8))
    saved = checkpoints.read(folder / "checkpoint.pt")["simulation"]["private"]["generations"]
    assert len(saved) > 200
    damaged = 0
    for client, generation in saved.tolist():
        path = folder / "private" / f"{client}-{generation}"
        if client % 2:
            path.unlink()
        elif client % 4:
            path.write_bytes(path.read_bytes()[:-1] + b"xx")
        damaged += client % 4 > 0
    runner.resume(folder)
    assert sum(record.lost for record in records.read(folder / "records.jsonl")) == damaged


def test_an_interrupt_finishes_the_round_and_says_how_to_go_on(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (tmp_path / "c.toml").write_text(tomli_w.dumps(SETTINGS))
    words = ["run", str(tmp_path / "c.toml"), "--out", str(folder)]
    process = children.start(ended_runs.interrupted, words, 3, log=tmp_path / "said")
    process.join()
    error = (tmp_path / "said").read_text()
    assert process.exitcode == 130, error
    assert f"narrowcast run --resume {folder}" in error.replace("\n", "")
    kept = len(records.read(folder / "records.jsonl"))
    runner.resume(folder)
    assert len(records.read(folder / "records.jsonl")) > kept
    assert_same(folder, undisturbed)


def test_a_half_written_last_line_and_lines_beyond_the_checkpoint_are_dropped(
    undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Enough):
        runner.start(make_config(SETTINGS), folder, stop_at(30))
    with (folder / "records.jsonl").open("ab") as log:
        log.write(b'{"round": 31, "epo')
    runner.resume(folder)
    assert_same(folder, undisturbed)


def test_what_lies_beyond_the_checkpoint_may_be_anything(undisturbed: Path, tmp_path: Path) -> None:
    """A file system that lost power may leave holes in what was not synced yet."""
    folder = tmp_path / "run"
    with pytest.raises(Enough):
        runner.start(make_config(SETTINGS), folder, stop_at(30))
    with (folder / "records.jsonl").open("ab") as log:
        log.write(b"\0" * 50 + b"\n{}\n")
    runner.resume(folder)
    assert_same(folder, undisturbed)


def test_a_finished_run_is_left_alone(undisturbed: Path) -> None:
    before = (undisturbed / "records.jsonl").stat().st_mtime_ns
    assert runner.resume(undisturbed) == undisturbed
    assert (undisturbed / "records.jsonl").stat().st_mtime_ns == before


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process, told = children.telling(ended_runs.stopped, folder, SETTINGS, 3)
    assert next(told) == 3
    with pytest.raises(RuntimeError, match="in use by another narrowcast process"):
        runner.resume(folder)
    children.kill(process)
    runner.resume(folder)  # the lock ended with the process


def test_a_run_that_another_finished_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the folder empty, and one took longer to read its data."""
    folder, prepare = tmp_path / "run", runner.prepare
    config = make_config({**SETTINGS, "rounds": 2, "epochs": None})

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(runner, "prepare", prepare)
        runner.start(config, folder)
        return prepare(*arguments)

    monkeypatch.setattr(runner, "prepare", slow)
    with pytest.raises(ConfigError, match="holds a run already"):
        runner.start(config.model_copy(update={"seed": 9}), folder)
    assert run_folder.load_config(folder).seed == config.seed
    assert run_folder.finished(folder)


def test_what_writing_takes_puts_the_next_checkpoint_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a dense model of gigabytes the state is there at once, and its writing takes long."""
    training = SimpleNamespace(checkpoint_seconds=1.0, state=dict, settle=lambda state: None, releases=None)
    clock = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    writes = []

    def write(path: Path, data: bytes) -> None:
        writes.append(clock[0])
        clock[0] += 5.0

    monkeypatch.setattr(checkpoints.files, "write_atomically", write)
    with (tmp_path / "log").open("ab") as log:
        keeper = checkpoints.Checkpoints(training, b"run", tmp_path, log)
        while clock[0] < 200.0:
            clock[0] += 1.0
            keeper.went_well()
            keeper.take_if_due()
    assert writes[0] <= 4.0
    assert all(
        later - earlier >= 5.0 * (1 + checkpoints.COSTS) for earlier, later in itertools.pairwise(writes)
    )
