"""Curves of rows: by epochs, and by the bytes that were counted until each evaluation."""

from pathlib import Path

import pytest

from narrowcast.runs import make_config
from narrowcast_studies.ran import Ran
from narrowcast_studies.reproduce import curves
from narrowcast_studies.study import Outcome, Row

CURVE = {2: {"accuracy": 0.5}, 4: {"accuracy": 0.75}}


def row(*runs: Ran, **more: object) -> Outcome:
    config = make_config({"task": "digits", "method": "static", "dim": 16, "rounds": 4, "lr": 1.0, **more})
    return Outcome(Row("a row", config, {}), {}, 1.0, 1.0, list(runs), {}, {})


def ran(seed: int = 0, **more: object) -> Ran:
    told = {"rounds": 4, "rounds_per_epoch": 2, "bytes_up": 300, "bytes_down": 500, "curve": CURVE}
    return Ran("a row", seed, **told | more)  # type: ignore[arg-type]


def test_bytes_are_those_counted_until_an_evaluation() -> None:
    assert ran(spent={2: 300, 4: 800}).by_bytes() == [(300, 0.5), (800, 0.75)]
    assert ran().by_epoch() == [(1, 0.5), (2, 0.75)]


def test_an_older_line_shares_the_bytes_of_its_run_among_rounds_that_are_alike() -> None:
    assert ran(bytes_up=400, bytes_down=400).by_bytes() == [(400, 0.5), (800, 0.75)]
    assert ran().by_bytes() == []  # a new subspace is more to catch up with: none knows when


def test_a_private_run_tells_no_bytes() -> None:
    assert ran(config={"dp_noise": 1.0}).by_bytes() == []


def test_a_picture_has_the_rows_that_were_evaluated_on_their_way(tmp_path: Path) -> None:
    ends = ran(curve={4: {"accuracy": 0.75}})
    assert curves.draw([row(ends)], tmp_path / "none.png", "a title") is None
    drawn = curves.draw([row(ends), row(ran(), ran(1))], tmp_path / "some.png", "a title")
    assert drawn
    assert drawn.stat().st_size > 1000


def test_a_picture_of_private_rows_alone_can_be_drawn(tmp_path: Path) -> None:
    assert curves.draw([row(ran(config={"dp_noise": 1.0}))], tmp_path / "private.png", "a title")


def test_runs_of_a_row_meet_at_the_evaluations_that_all_have() -> None:
    where, means, errors = curves._along([[(1.0, 0.5), (3.0, 1.0)], [(2.0, 0.7)]])
    assert where == [1.5]
    assert means == pytest.approx([0.6])
    assert errors == pytest.approx([0.1])
