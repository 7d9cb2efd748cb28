"""A study: rows of one TOML file, each with its rate tuned by the same small budget, then run over seeds.

At the top the settings that all rows share, and `seeds`; `[tune]` says how rates are found; a `[[run]]` is a
row, whose `lr` is the centre of its grid. Tuning is done with another seed on a held-out part of the training
set, in shorter runs. A rate found so may lie on the edge of stability: when any final run diverges, or ends
worse than the untrained model, all seeds are run again at the next lower rate (this alone is decided by the
test set). Every run has a folder of its own, named by its settings: what is finished is never repeated, and a
changed setting is another run.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from narrowcast.cli import give_back, keep_memory
from narrowcast.errors import ConfigError, Interrupted, located
from narrowcast.runs import (
    Grid,
    RunConfig,
    Summary,
    attempts,
    best_of,
    make_config,
    read_toml,
    refuse_unused,
    search,
    summarise,
)
from narrowcast.units import format_seconds
from narrowcast_studies import untrained
from narrowcast_studies.untrained import Metrics, harmed

Say = Callable[[str], None]
Attempt = Callable[[RunConfig], Path | None]  # the folder of a finished run; None: it diverged
Began = Callable[[RunConfig], Metrics]  # the metrics of the untrained model; {}: not known
RETREATS = 3  # lower rates than the tuned one that a row may go down to


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[tune]: the budget that every row has."""

    seed: Annotated[int, Meta(ge=0)] = 100
    epochs: Annotated[float, Meta(gt=0)] = 1.0  # of a tuning run; no row is tuned for longer than it runs
    factor: Annotated[float, Meta(gt=1)] = 3.0
    most: Annotated[int, Meta(ge=3)] = 5


@dataclass(frozen=True)
class Row:
    """One line of the study. `config.lr` is the centre of its grid."""

    name: str
    config: RunConfig
    settings: dict[str, Any]  # what the row says beside its name, method and rate


@dataclass(frozen=True)
class Study:
    title: str
    rows: list[Row]
    seeds: list[int]
    tuning: Tuning | None  # None: every row runs at the rate it says

    def grid(self, row: Row) -> Grid:
        assert self.tuning is not None
        return Grid(row.config.lr, self.tuning.factor, self.tuning.most)

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
    runs: list[Summary]  # the final runs at `rate` that came to their end
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
    for number, run in enumerate(runs, 1):
        row = _row(f"{path}, run {number}", table, run)
        if row.name in rows:
            raise ConfigError(f"{path}, run {number}: another row is called {row.name!r} too")
        rows[row.name] = row
    with located(path):
        refuse_unused(table, *(row.config for row in rows.values()))
    return Study(title, list(rows.values()), seeds, tuning)


def _row(where: str, shared: dict[str, Any], run: dict[str, Any]) -> Row:
    own = {k: v for k, v in run.items() if k != "name"}  # a name is for readers: it changes no run
    if wrong := {"seed", "validation", "threads"} & {*shared, *own}:
        raise ConfigError(f"{where}: {', '.join(sorted(wrong))} are the study's to set")
    if "lr" not in own:
        raise ConfigError(f"{where}: needs lr, the centre of its grid")
    with located(where):
        config = make_config({**shared, **own, "threads": 1})
        refuse_unused(own, config)
    settings = {k: v for k, v in own.items() if k not in ("method", "lr")}
    return Row(str(run.get("name", config.label)), config, settings)


def follow(study: Study, row: Row, attempt: Attempt, began: Began, tune_only: bool = False) -> Outcome:
    """Tune the row, then run it over the seeds, at lower rates while any of them goes wrong."""
    trials: dict[float, float] = {}
    tuned = _tuned(study, row, attempt, trials) if study.tuning else row.config.lr
    if tune_only or tuned is None:
        return Outcome(row, trials, tuned, tuned, [], {}, {})
    rate, diverged = tuned, dict[float, int]()
    before = {seed: began(study.final(row, tuned, seed)) for seed in study.seeds}
    while True:
        runs = [_summary(attempt(study.final(row, rate, seed))) for seed in study.seeds]
        ended = [run for run in runs if run]
        wrong = len(runs) - sum(not harmed(run, before[run.facts.seed]) for run in ended)
        if not wrong or study.tuning is None or len(diverged) == RETREATS:
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
        run = _summary(attempt(study.trial(row, rate)))
        if run is None or run.metric is None:
            trials[rate] = math.nan
            return -math.inf
        trials[rate] = run.metric
        return run.metric if run.facts.higher_is_better else -run.metric

    grid = study.grid(row)
    scores = search(grid, score)
    best = best_of(scores)
    return grid.rate(best) if math.isfinite(scores[best]) else None


def _summary(folder: Path | None) -> Summary | None:
    return None if folder is None else summarise(folder)


def conduct(
    study: Study,
    out: Path,
    rows: Collection[str] | None = None,
    *,
    run: attempts.Run = attempts.in_process,
    stop: Callable[[], None] = lambda: None,
    jobs: int = 1,
    tune_only: bool = False,
    say: Say = print,
) -> dict[str, str]:
    """Run what is missing, `jobs` rows at a time; the names of rows that failed, and why.

    When interrupted it begins no more runs, calls `stop` to end those that `run` has going, and waits.
    """
    chosen = [row for row in study.rows if rows is None or row.name in rows]
    failed: dict[str, str] = {}
    started, done, halted = time.monotonic(), 0, threading.Event()
    held: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # rows may share a tuning run

    def one(row: Row) -> None:
        nonlocal done

        def hold(name: str) -> threading.Lock:
            if halted.is_set():
                raise Interrupted("stopped")
            return held[name]

        def attempt(config: RunConfig) -> Path | None:
            with hold(attempts.folder_of(config)):
                return _attempt(row, config, out, run, tell)

        def began(config: RunConfig) -> Metrics:
            with hold(untrained.file_of(config)):
                return untrained.measured(config, out)

        try:
            follow(study, row, attempt, began, tune_only)
        except Interrupted:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # the other rows go on
            failed[row.name] = str(error)
        done += 1
        how = f"FAILED: {failed[row.name]}" if row.name in failed else "done"
        tell(f"{row.name}: {how} ({done} of {len(chosen)} rows)")

    def tell(line: str) -> None:
        say(f"[{format_seconds(time.monotonic() - started):>8}] {line}")

    keep_memory()  # before there are threads
    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(one, row) for row in chosen]:
            future.result()
    except BaseException:
        halted.set()
        stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return failed


def _attempt(row: Row, config: RunConfig, out: Path, run: attempts.Run, tell: Say) -> Path | None:
    folder = out / attempts.folder_of(config)
    known = attempts.outcome(folder) is not None
    started = time.monotonic()
    ended = attempts.attempt(config, folder, run)
    if not known:
        give_back()
        what = f"tune lr {config.lr:g}" if config.validation else f"seed {config.seed} lr {config.lr:g}"
        result = _result(summarise(folder), untrained.known(config, out)) if ended else "diverged"
        tell(f"{row.name}: {what}: {result} ({format_seconds(time.monotonic() - started)})")
    return folder if ended else None


def _result(run: Summary, before: Metrics) -> str:
    return f"{run.metric:.4f}" + (", worse than untrained" if harmed(run, before) else "")


class _NotRun(Exception):
    """A run that a row needs and that has not come to its end."""


def collect(study: Study, out: Path) -> tuple[list[Outcome], list[str]]:
    """(what became of the rows that are complete, the names of the others), from the folders alone."""

    def known(config: RunConfig) -> Path | None:
        folder = out / attempts.folder_of(config)
        if attempts.outcome(folder) is None:
            raise _NotRun(folder)
        return folder if attempts.attempt(config, folder) else None

    complete, missing = [], []
    for row in study.rows:
        try:
            complete.append(follow(study, row, known, lambda config: untrained.known(config, out)))
        except _NotRun:
            missing.append(row.name)
    return complete, missing
