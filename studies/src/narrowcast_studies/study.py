"""A study: rows of one TOML file, each with its rate tuned by the same small budget, then run over seeds.

At the top the settings that all rows share, and `seeds`; `[tune]` says how rates are found; a `[[run]]` is a
row, whose `lr` is the centre of its grid, or, with a table `each` of lists, a row for every combination of
them, whose `name` has their values in braces. Tuning is done with another seed on a held-out part of the
training set, in shorter runs. A rate found so may lie on the edge of stability: when any final run diverges,
or ends worse than the untrained model, all seeds are run again at the next lower rate (this alone is decided
by the test set). `conducting` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from narrowcast.errors import ConfigError, located
from narrowcast.rounds import Grid, best_of, search
from narrowcast.runs import RunConfig, make_config, read_toml, refuse_unused
from narrowcast_studies.ran import Metrics, Ran
from narrowcast_studies.untrained import harmed

Attempt = Callable[[RunConfig], Ran]  # the run with these settings, at its end
Began = Callable[[RunConfig], Metrics]  # the metrics of the untrained model; {}: not known


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tune]: the budget that every row has."""

    seed: Annotated[int, Meta(ge=0)] = 100
    epochs: Annotated[float, Meta(gt=0)] = 1.0  # of a tuning run; no row is tuned for longer than it runs
    factor: Annotated[float, Meta(gt=1)] = 3.0
    most: Annotated[int, Meta(ge=3)] = 5
    retreats: Annotated[int, Meta(ge=0)] = 3  # lower rates than the tuned one that a row may go down to


@dataclass(frozen=True)
class Row:
    """One line of the study. `config.lr` is the centre of its grid, or its rate where that is known."""

    name: str
    config: RunConfig
    settings: dict[str, Any]  # what the row says beside its name, method and rate
    tuned: bool = False  # in another study of the same task: the rate is the one it says


@dataclass(frozen=True)
class Study:
    title: str
    rows: list[Row]
    seeds: list[int]
    tuning: Tuning | None  # None: every row runs at the rate it says

    @property
    def tunes(self) -> bool:
        """Whether any row has its rate from a search; else all have the one that the file says."""
        return self.tuning is not None and not all(row.tuned for row in self.rows)

    def grid(self, row: Row) -> Grid:
        assert self.tuning is not None
        return Grid(row.config.rate, self.tuning.factor, self.tuning.most)

    def trial(self, row: Row, rate: float) -> RunConfig:
        """A tuning run: another seed, a held-out part of the training set, and shorter."""
        assert self.tuning is not None
        epochs = min(self.tuning.epochs, row.config.epochs or math.inf)
        update = {"lr": rate, "seed": self.tuning.seed, "validation": True, "epochs": epochs}
        return row.config.model_copy(update=update)

    def final(self, row: Row, rate: float, seed: int) -> RunConfig:
        return row.config.model_copy(update={"lr": rate, "seed": seed})


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    row: Row
    trials: dict[float, float]  # rate -> the metric of the tuning run, nan where it diverged
    tuned: float | None  # the best of them; None: all diverged
    rate: float | None  # that of the final runs: lower than the tuned one where a run diverged at it
    runs: list[Ran]  # the final runs at `rate` that came to their end
    diverged: dict[float, int]  # rate -> final runs that did not, or went wrong at a rate that was given up
    untrained: dict[int, Metrics]  # seed -> what its models were worth before; {}: not known


def load(path: Path) -> Study:
    """The study of a file, every row of it checked."""
    return parse(read_toml(path), str(path))


def parse(table: dict[str, Any], path: str) -> Study:
    """The study in a table that comes from the file at `path`."""
    table = dict(table)
    title, runs = table.pop("title", Path(path).stem), table.pop("run", None)
    try:
        seeds = msgspec.convert(table.pop("seeds", [0, 1, 2]), Annotated[list[int], Meta(min_length=1)])
        tuning = msgspec.convert(table.pop("tune", {}), Tuning)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: seeds or [tune]: {error}") from None
    if not isinstance(runs, list) or not runs or not all(isinstance(r, dict) for r in runs):
        raise ConfigError(f"{path} has no rows: it needs a [[run]] table for each")
    if tuning.seed in seeds:
        raise ConfigError(f"{path}: rates must be tuned with another seed than {tuning.seed} of the results")
    rows: dict[str, Row] = {}
    numbered = [(number, one) for number, given in enumerate(runs, 1) for one in every(given)]
    for number, run in numbered:
        row = _row(f"{path}, run {number}", table, run)
        if row.name in rows:
            raise ConfigError(f"{path}, run {number}: another row is called {row.name!r} too")
        rows[row.name] = row
    with located(path):
        refuse_unused(table, *(row.config for row in rows.values()))
    return Study(title, list(rows.values()), seeds, tuning)


def every(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a `[[run]]`: itself, or one for every combination of what `each` lists."""
    run = dict(run)
    each = run.pop("each", {})
    if not isinstance(each, dict) or not all(isinstance(values, list) for values in each.values()):
        raise ConfigError(f"each is a table of lists, got {each!r}")
    rows = [dict(zip(each, values, strict=True)) for values in product(*each.values())]
    return [{**run, **row, "name": str(run["name"]).format(**row)} if row else run for row in rows]


def _row(where: str, shared: dict[str, Any], run: dict[str, Any]) -> Row:
    own = {k: v for k, v in run.items() if k not in ("name", "tuned")}  # a name is for readers alone
    tuned = run.get("tuned", False)
    if not isinstance(tuned, bool):
        raise ConfigError(f"{where}: tuned is true or false, got {tuned!r}")
    if wrong := {"seed", "validation", "threads"} & {*shared, *own}:
        raise ConfigError(f"{where}: {', '.join(sorted(wrong))} are the study's to set")
    if "lr" not in own:
        raise ConfigError(f"{where}: needs lr, the centre of its grid")
    with located(where):
        config = make_config({**shared, **own, "threads": 1})
        refuse_unused(own, config)
    settings = {k: v for k, v in own.items() if k not in ("method", "lr")}
    return Row(str(run.get("name", config.label)), config, settings, tuned)


def follow(study: Study, row: Row, attempt: Attempt, began: Began, tune_only: bool = False) -> Outcome:
    """Tune the row, then run it over the seeds, at lower rates while any of them goes wrong."""
    trials: dict[float, float] = {}
    tuned = _tuned(study, row, attempt, trials) if study.tuning and not row.tuned else row.config.rate
    if tune_only or tuned is None:
        return Outcome(row, trials, tuned, tuned, [], {}, {})
    rate, diverged = tuned, dict[float, int]()
    before = {seed: began(study.final(row, tuned, seed)) for seed in study.seeds}
    while True:
        runs = [attempt(study.final(row, rate, seed)) for seed in study.seeds]
        ended = [run for run in runs if not run.diverged]
        wrong = len(runs) - sum(not harmed(run, before[run.seed]) for run in ended)
        if not wrong or study.tuning is None or len(diverged) == study.tuning.retreats:
            lost = len(runs) - len(ended)
            lost_here = {rate: lost} if lost else {}
            return Outcome(row, trials, tuned, rate, ended, diverged | lost_here, before)
        diverged[rate] = wrong
        rate = lower(study.grid(row), rate, trials)


def lower(grid: Grid, rate: float, trials: dict[float, float]) -> float:
    """The next rate down the grid that is not known to diverge."""
    rate = grid.below(rate)
    while math.isnan(trials.get(rate, 0.0)):
        rate = grid.below(rate)
    return rate


def _tuned(study: Study, row: Row, attempt: Attempt, trials: dict[float, float]) -> float | None:
    """The best rate of the row's grid; None: all diverged."""

    def score(rate: float) -> float:
        run = attempt(study.trial(row, rate))
        if run.diverged or run.value is None:
            trials[rate] = math.nan
            return -math.inf
        trials[rate] = run.value
        return run.value if run.higher_is_better else -run.value

    grid = study.grid(row)
    scores = search(grid, score)
    best = best_of(scores)
    return grid.rate(best) if math.isfinite(scores[best]) else None
