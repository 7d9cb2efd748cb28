"""How far an experiment has come: what is done, what it cost, and what is left at the pace so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from narrowcast.runs import RunConfig
from narrowcast.tables import markdown_table
from narrowcast_studies.conducting import Known
from narrowcast_studies.ledger import Going, Ledger
from narrowcast_studies.ran import Ran
from narrowcast_studies.study import Study

FIRST = 3  # rates that a search begins with


@dataclass(frozen=True)
class Progress:
    """A row. Seconds are those of one core by the clock: what else the machine did meanwhile is in them."""

    name: str
    trials: int  # tuning runs that ended
    rate: float | None  # that of its final runs; None: not known yet
    seeds: int  # of them, those that ended
    of: int
    spent: float
    done: bool
    left: float  # 0 where done, but for rates that turn out too high; nan: nothing was run yet to tell it by
    going: Going | None  # the run that was begun here and not ended; its seconds are not in `spent`


class Pace:
    """Seconds an epoch, of a row's own runs, or of all while it has none."""

    def __init__(self, rows: Sequence[Known]) -> None:
        self._runs = {row.row.name: row.runs for row in rows}

    def seconds(self, row: str, config: RunConfig) -> float:
        """What a run should take; nan: there is nothing to tell it by."""
        every = [run for runs in self._runs.values() for run in runs]
        runs = _timed(self._runs.get(row, [])) or _timed(every)
        epochs = sum(run.epochs * _share(run.tuning) for run in runs)
        if not epochs:
            return math.nan
        asked = _epochs(config, runs) * _share(config.validation)
        return asked * sum(run.seconds for run in runs) / epochs


def _share(tuning: bool) -> float:
    """Of the training set: a tuning run leaves a tenth of it out."""
    return 0.9 if tuning else 1.0


def _timed(runs: Sequence[Ran]) -> list[Ran]:
    return [run for run in runs if run.epochs and not run.private]  # those tell no times


def _epochs(config: RunConfig, runs: list[Ran]) -> float:
    if config.epochs:
        return config.epochs
    rounds = max(run.rounds_per_epoch for run in runs)
    return config.rounds / rounds if config.rounds and rounds else math.nan


def progress(study: Study, rows: Sequence[Known], ledger: Ledger) -> list[Progress]:
    """Row by row. A tuning run that rows share is counted with the first of them."""
    pace, counted, found = Pace(rows), list[Ran](), list[Progress]()
    for row in rows:
        new = [run for run in row.runs if run not in counted]
        counted += new
        found.append(_progress(study, row, pace, ledger, sum(run.seconds for run in new)))
    return found


def _progress(study: Study, row: Known, pace: Pace, ledger: Ledger, spent: float) -> Progress:
    trials = [run for run in row.runs if run.tuning]
    going = ledger.going(row.next) if row.next else None
    rate = row.outcome.rate if row.outcome else None
    if row.next and not row.next.validation:
        rate = row.next.rate
    ended = [run for run in row.runs if not run.tuning and run.config["lr"] == rate]
    left = 0.0
    if row.next:
        final = study.final(row.row, row.row.config.rate, study.seeds[0])
        left = (len(study.seeds) - len(ended)) * pace.seconds(row.row.name, final)
        if row.next.validation:
            left += max(FIRST - len(trials), 1) * pace.seconds(row.row.name, row.next)
        if going:
            left -= pace.seconds(row.row.name, row.next) * going.rounds / going.of
    return Progress(
        row.row.name, len(trials), rate, len(ended), len(study.seeds), spent, row.next is None, left, going
    )


def text(rows: Sequence[Progress]) -> str:
    """The rows and their sum, in core-hours."""
    head = ["row", "state", "tuning runs", "lr", "seeds", "core-hours", "left"]
    table = [
        [
            row.name,
            _state(row),
            str(row.trials),
            "-" if row.rate is None else f"{row.rate:g}",
            f"{row.seeds} of {row.of}",
            f"{(row.spent + (row.going.seconds if row.going else 0.0)) / 3600:.2f}",
            _hours(row.left),
        ]
        for row in rows
    ]
    spent = sum(row.spent + (row.going.seconds if row.going else 0.0) for row in rows)
    left = [row.left for row in rows if not math.isnan(row.left)]
    unknown = len(rows) - len(left)
    done = sum(row.done for row in rows)
    said = f"{done} of {len(rows)} rows are done, for {spent / 3600:.2f} core-hours by the clock"
    if not left:
        more = "; what is left can be told once a run has ended (or by --dry-run)"
    else:
        more = f"; about {sum(left) / 3600:.2f} are left" + (f" and {unknown} rows" if unknown else "")
    return markdown_table(head, table, left=2) + f"\n\n{said}{more}."


def _state(row: Progress) -> str:
    if row.done:
        return "done"
    if row.going:
        return f"round {row.going.rounds:,} of {row.going.of:,}"
    return "begun" if row.trials or row.seeds else "-"


def _hours(seconds: float) -> str:
    return "?" if math.isnan(seconds) else f"{seconds / 3600:.2f}" if seconds else "0"
