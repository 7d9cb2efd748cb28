"""The ledger: what it counts, what it refuses to go on from, and what a kill leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from narrowcast.errors import ConfigError
from narrowcast.privacy.ledger import FILE, Ledger


def written(folder: Path, rounds: int) -> Ledger:
    ledger = Ledger(folder)
    for round in range(rounds):
        ledger.spend(round)
        ledger.release(round, f"model {round}", 0.5 * round)
    return ledger


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    written(tmp_path, 3)
    ledger = Ledger(tmp_path)
    assert (ledger.spent, ledger.released, ledger.digest) == (3, 3, "model 2")
    ledger.check(3, "model 2")


def test_a_line_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.spend(0)
    assert (tmp_path / FILE).read_text() == '{"spend":0}\n'
    assert (Ledger(tmp_path).spent, Ledger(tmp_path).released) == (1, 0)


def test_a_round_that_was_spent_and_came_to_nothing_is_held_again_and_counts_once(tmp_path: Path) -> None:
    written(tmp_path, 2).spend(2)
    ledger = Ledger(tmp_path)
    ledger.check(2, "model 1")
    ledger.spend(2)
    assert ledger.spent == 3
    assert len((tmp_path / FILE).read_text().splitlines()) == 5


def test_a_state_on_disk_that_was_not_released_yet_may_be(tmp_path: Path) -> None:
    written(tmp_path, 2).spend(2)
    Ledger(tmp_path).check(3, "whatever it led to")


@pytest.mark.parametrize(("round", "digest"), [(2, "model 1"), (0, ""), (3, "another model")])
def test_an_older_or_another_state_is_refused(tmp_path: Path, round: int, digest: str) -> None:
    written(tmp_path, 3)
    with pytest.raises(ConfigError, match="release rounds twice"):
        Ledger(tmp_path).check(round, digest)


def test_a_ledger_that_lacks_lines_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with pytest.raises(ConfigError, match="lines are missing"):
        Ledger(tmp_path).check(4, "model 3")
    with pytest.raises(ConfigError, match="cannot be next"):
        Ledger(tmp_path).spend(1)
    with pytest.raises(ConfigError, match="not the last"):
        Ledger(tmp_path).release(2, "", None)


def test_half_a_line_announced_nothing(tmp_path: Path) -> None:
    written(tmp_path, 2)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + b'{"spe')
    assert Ledger(tmp_path).released == 2
    assert (tmp_path / FILE).read_bytes() == whole


def test_a_damaged_one_is_not_guessed_at(tmp_path: Path) -> None:
    written(tmp_path, 2)
    (tmp_path / FILE).write_bytes(b'{"spend":-\n')
    with pytest.raises(ConfigError, match="damaged"):
        Ledger(tmp_path)
