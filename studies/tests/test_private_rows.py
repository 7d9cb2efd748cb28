"""Rows of private runs, which tell neither bytes nor seconds: nowhere does that look like nothing."""

import math
from pathlib import Path

from narrowcast.runs import make_config
from narrowcast_studies import ran
from narrowcast_studies.conducting import Known
from narrowcast_studies.ran import Ran
from narrowcast_studies.reproduce import results, status, table
from narrowcast_studies.study import Outcome, Row


def outcome(name: str, method: str = "uncompressed", **more: object) -> Outcome:
    config = make_config({"task": "digits", "method": method, "rounds": 1, "lr": 1.0, **more})
    told = {} if "dp_noise" in more else {"bytes_up": 300, "bytes_down": 600, "seconds": 2.0}
    run = Ran(name, 0, config=config.model_dump(exclude_none=True), curve={1: {"accuracy": 0.5}}, **told)
    return Outcome(Row(name, config, {}), {}, 1.0, 1.0, [run], {}, {})


def test_what_a_private_run_hides_is_not_shown_as_nothing() -> None:
    rows = [outcome("private", dp_noise=1.0), outcome("plain"), outcome("static", "static", dim=16)]
    lines = {line.name: line for line in table.lines(rows)}
    private = lines["private"]
    assert all(map(math.isnan, (private.up, private.down, private.seconds)))
    assert private.ratio is None
    assert (table.size(private.up), table.size(lines["plain"].up)) == ("-", "300 B")
    assert lines["static"].ratio is not None, "what others are compared with is a run that tells its bytes"
    assert lines["static"].ratio.up == 1.0
    again = table.from_csv(table.as_csv(rows))[0]
    assert math.isnan(again.up)
    assert "0.0" not in table.as_csv(rows[:1]).splitlines()[1].split(",")[8:10]


def test_private_runs_say_nothing_of_the_pace() -> None:
    timed, hidden = (
        Ran("a", 0, config={"epochs": 2.0}, seconds=4.0),
        Ran("a", 1, config={"epochs": 2.0, "dp_noise": 1.0}),
    )
    assert status._timed([hidden, timed]) == [timed]


def test_a_row_that_is_not_complete_keeps_the_lines_it_has_not_come_to(tmp_path: Path) -> None:
    """Its tuning is still going on, and the final runs at some rate were made before."""
    done, begun = outcome("done"), outcome("begun", "static", dim=16)
    rows = [Known(o.row, o.runs, o) for o in (done, begun)]
    results.keep(rows, tmp_path)
    assert {run.row for run in ran.read(tmp_path / results.RUNS)} == {"done", "begun"}
    results.keep([rows[0], Known(begun.row)], tmp_path)
    assert [run.row for run in ran.read(tmp_path / results.RUNS)] == ["done", "begun"]
    results.keep([Known(done.row, [], done), rows[1]], tmp_path)
    assert [run.row for run in ran.read(tmp_path / results.RUNS)] == ["begun"], "what nobody asks for goes"
