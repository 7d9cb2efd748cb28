"""A run with differential privacy that is killed anywhere: what was released stays, and counts once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrowcast import files
from narrowcast.errors import ConfigError, Diverged
from narrowcast.privacy.ledger import FILE, Ledger
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.training import Training
from narrowcast.runs import runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.runs.run_folder import CHECKPOINT, RECORDS, Facts, diverged, finished
from narrowcast.testing import toy_task

ROUNDS = 3


class Killed(BaseException):
    """What no handler takes for an error of its own."""


def settings(**more: Any) -> RunConfig:
    table = {
        "task": "custom", "method": "time-varying", "dim": 8, "cohort": 4, "rounds": ROUNDS, "lr": 1.0,
        "dp_noise": 3.0, "dp_clip": "adaptive", "sampling": "poisson", "evaluate_every": 2, "refresh": "2",
    }  # fmt: skip
    return make_config({**table, **more})


class Outside:
    """All that anybody outside has seen: records as they were told, and those in the file at a kill."""

    def __init__(self) -> None:
        self.told: dict[int, RoundRecord] = {}

    def __call__(self, facts: Facts, record: RoundRecord) -> None:
        known = self.told.setdefault(record.round, record)
        assert known == record, "a round that was told is never told otherwise"


def kill_at(monkeypatch: pytest.MonkeyPatch, place: int) -> list[str]:
    """Every write to disk is a place to be killed at, before it and after it; what happened so far."""
    events: list[str] = []

    def guarded(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            for after in (False, True):
                if after:
                    write(*arguments)
                events.append(f"{'after' if after else 'before'} {name}")
                if len(events) == place:
                    raise Killed

        return wrapped

    monkeypatch.setattr(Ledger, "_add", guarded("ledger", Ledger._add))
    monkeypatch.setattr(files, "write_atomically", guarded("file", files.write_atomically))
    monkeypatch.setattr(files, "append", guarded("record", files.append))
    return events


def released(folder: Path) -> list[tuple[int, str]]:
    return [(line.release, line.digest) for line in Ledger(folder).lines if line.release is not None]


def test_killed_at_every_point_of_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        events = kill_at(patch, -1)
        runner.start(settings(), tmp_path / "whole", task=toy_task())
    whole = records.read(tmp_path / "whole" / RECORDS)
    assert len(events) >= 8 * ROUNDS
    for place in range(1, len(events) + 1):
        folder, outside = tmp_path / f"killed-{place}", Outside()
        with monkeypatch.context() as patch:
            kill_at(patch, place)
            with pytest.raises(Killed):
                runner.start(settings(), folder, outside, task=toy_task())
        before = released(folder)
        if not (folder / "config.toml").is_file():
            assert not before
            continue
        for record in records.read(folder / RECORDS) if (folder / RECORDS).is_file() else []:
            assert outside.told.setdefault(record.round, record) == record
        assert len(outside.told) <= len(before), "nothing was told that the ledger does not have"
        runner.resume(folder, outside, task=toy_task())
        after = released(folder)
        assert finished(folder)
        assert after[: len(before)] == before, "what was released stays"
        assert [round for round, _ in after] == list(range(ROUNDS)), "every round once"
        done = records.read(folder / RECORDS)
        assert [r.epsilon for r in done] == [r.epsilon for r in whole], "epsilon is exact"
        assert [r.round for r in done if r.metrics] == [r.round for r in whole if r.metrics]
        shutil.rmtree(folder)


def test_an_older_checkpoint_that_was_put_back_is_refused(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "run", iter(range(5))
    runner.start(settings(rounds=5), folder, until=lambda: next(rounds) == 1, task=toy_task())
    shutil.copy(folder / CHECKPOINT, tmp_path / "older")
    rounds = iter(range(5))
    runner.resume(folder, until=lambda: next(rounds) == 0, task=toy_task())
    newest = (folder / CHECKPOINT).read_bytes()
    shutil.copy(tmp_path / "older", folder / CHECKPOINT)
    with pytest.raises(ConfigError, match="release rounds twice"):
        runner.resume(folder, task=toy_task())
    (folder / CHECKPOINT).unlink()
    with pytest.raises(ConfigError, match="release rounds twice"):
        runner.resume(folder, task=toy_task())
    (folder / CHECKPOINT).write_bytes(newest)
    runner.resume(folder, task=toy_task())
    assert len(released(folder)) == 5


@pytest.mark.parametrize("nonsense", ["judge", "evaluate"])
def test_killed_while_it_looked_at_the_end_a_run_is_still_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    def kill(*_: Any) -> None:
        raise Killed

    def refuse(*_: Any) -> None:
        raise Diverged("nonsense")

    task, folder = toy_task(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "evaluate_if_due", kill)
        with pytest.raises(Killed):
            runner.start(settings(rounds=1), folder, task=task)
    assert len(released(folder)) == 1
    monkeypatch.setattr(Training, nonsense, refuse)
    with pytest.raises(Diverged, match="nonsense"):
        runner.resume(folder, task=task)
    assert not finished(folder)
    assert diverged(folder) == "nonsense"


def test_no_force_removes_a_ledger(tmp_path: Path) -> None:
    runner.start(settings(rounds=1), tmp_path / "run", task=toy_task())
    with pytest.raises(ConfigError, match="stays released"):
        runner.start(settings(rounds=1), tmp_path / "run", force=True, task=toy_task())
    assert (tmp_path / "run" / FILE).is_file()


def test_the_noised_state_is_on_disk_before_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of writing: spend, checkpoint, release, record; and the disk was told to sync each."""
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda f: (synced.append(f), fsync(f))[1])
    events = kill_at(monkeypatch, -1)
    runner.start(settings(rounds=2, evaluate_every=0), tmp_path / "run", task=toy_task())
    writes = [event.removeprefix("after ") for event in events if event.startswith("after")]
    first = writes.index("ledger")
    assert writes[first : first + 8] == ["ledger", "file", "ledger", "record"] * 2
    assert len(synced) >= 6


def test_the_folder_says_what_is_guaranteed(tmp_path: Path) -> None:
    from narrowcast.runs import run_folder, summarise, table

    folder = runner.start(settings(dp_noise=None, dp_epsilon=6.0), tmp_path / "run", task=toy_task())
    facts, config = run_folder.load_facts(folder), run_folder.load_config(folder)
    assert facts.privacy is not None
    assert config.dp_noise == facts.privacy.noise
    assert 5.5 < facts.privacy.epsilon <= 6.0 <= facts.privacy.renyi
    text = table.markdown([summarise(folder)])
    assert "| epsilon |" in text
    assert "0 B" not in text, "what is not told is not told as nothing"
    assert "at delta 0.001" in text
