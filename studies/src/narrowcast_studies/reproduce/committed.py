"""The results of an experiment as they were committed: what a page of results is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from narrowcast.errors import ConfigError
from narrowcast_studies import ran
from narrowcast_studies.ran import Ran
from narrowcast_studies.reproduce import table
from narrowcast_studies.reproduce.table import Line
from narrowcast_studies.study import Outcome, Row, Study

RUNS, TABLE, PAGE = "runs.jsonl", "results.csv", "README.md"


@dataclass(frozen=True)
class Committed:
    lines: dict[str, Line]  # by the row's name, in the order of the file
    runs: list[Ran]  # final ones that came to their end

    def of(self, study: Study) -> Committed | None:
        """What was run with the settings and all the seeds that the study has now; None: nothing of it."""
        lines: dict[str, Line] = {}
        runs: list[Ran] = []
        for row in study.rows:
            own = [run for run in self.runs if run.row == row.name and _asked(row, run)]
            line = self.lines.get(row.name)
            if line is not None and _complete(line, own, study.seeds):
                lines[row.name] = line
                runs += [run for run in own if run.config["lr"] == line.rate]
        order = [name for name in self.lines if name in lines]
        return Committed({name: lines[name] for name in order}, runs) if runs else None

    @property
    def metric(self) -> str:
        return self.runs[0].metric

    @property
    def higher_is_better(self) -> bool:
        return self.runs[0].higher_is_better


def _asked(row: Row, run: Ran) -> bool:
    """Whether the run is one of the row's: its rate, its seed and the place of its data aside."""
    update = {"lr": run.config["lr"], "seed": run.seed, "data": None}
    return row.config.model_copy(update=update).agrees_with(run.asked)


def _complete(line: Line, own: list[Ran], seeds: list[int]) -> bool:
    """Whether the line has all of these seeds, in their order: rows are compared seed by seed.

    A row that diverged with every seed has no runs to tell its settings by, and stands as it is.
    """
    there = [run.seed for run in own if run.config["lr"] == line.rate]
    ended = [seed for seed in seeds if seed in there]
    return not line.values or (
        there == ended and len(line.values) == len(there) == len(seeds) - line.diverged
    )


def read(folder: Path) -> Committed | None:
    """What `results.write` left in the folder; None: nothing yet, or no row is complete."""
    runs = lines(folder)
    if not runs or not (folder / TABLE).is_file():
        return None
    with _damage(folder):
        rows = table.from_csv((folder / TABLE).read_text(encoding="utf-8"))
    final = [run for run in runs if not run.tuning and not run.diverged]
    return Committed({line.name: line for line in rows}, final) if final else None


def lines(folder: Path) -> list[Ran]:
    """Every run in the folder's runs.jsonl: tuning runs and those that diverged too."""
    with _damage(folder):
        return ran.read(folder / RUNS)


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{folder} is damaged ({error}): write it again with narrowcast reproduce {folder.name}"
        ) from None


def settled(folder: Path, study: Study) -> dict[str, Outcome]:
    """The rows that are complete as committed: results from before tuning runs had lines are such."""
    found = read(folder)
    results = found.of(study) if found else None
    if results is None:
        return {}
    page = folder / PAGE
    swept = table.swept(page.read_text(encoding="utf-8")) if page.is_file() else {}
    tuned = [run for run in lines(folder) if run.tuning]
    return {
        row.name: _outcome(study, row, results, _trials(study, row, tuned) or swept.get(row.name, {}))
        for row in study.rows
        if row.name in results.lines and results.lines[row.name].values
    }


def _trials(study: Study, row: Row, tuned: list[Ran]) -> dict[float, float]:
    if study.tuning is None:
        return {}
    rates = [run for run in tuned if study.trial(row, run.config["lr"]).agrees_with(run.asked)]
    return {run.config["lr"]: math.nan if run.value is None else run.value for run in rates}


def _outcome(study: Study, row: Row, results: Committed, trials: dict[float, float]) -> Outcome:
    line = results.lines[row.name]
    runs = [run for run in results.runs if run.row == row.name]
    return Outcome(
        row,
        trials,
        next(iter(line.given_up), line.rate),
        line.rate,
        runs,
        line.given_up | ({line.rate: line.diverged} if line.diverged else {}),
        {run.seed: run.untrained for run in runs if run.untrained},
    )
