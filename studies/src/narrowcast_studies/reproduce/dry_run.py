"""How long an experiment would take: a round of every row, timed, times the rounds it would run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from narrowcast.runs import prepare, using_threads
from narrowcast_studies.study import Row, Study

WARM = 1  # rounds before the timed ones
TIMED = 2


@dataclass(frozen=True)
class Estimate:
    row: str
    round_s: float
    runs: int  # tuning included
    core_hours: float


def estimate(study: Study, row: Row) -> Estimate:
    """With one thread, evaluation left out; the search for a rate is taken at its longest."""
    run = prepare(row.config).simulation()
    with using_threads(1):
        for _ in range(min(WARM, run.rounds - 1)):
            run.step()
        started, timed = time.perf_counter(), min(TIMED, run.rounds - run.round)
        for _ in range(timed):
            run.step()
        seconds = (time.perf_counter() - started) / timed
    rounds = run.rounds * len(study.seeds)
    runs = len(study.seeds)
    if study.tuning:
        epochs = run.rounds / run.cohorts.rounds_per_epoch
        share = min(1.0, study.tuning.epochs / epochs)
        rounds += study.tuning.most * math.ceil(share * run.rounds)
        runs += study.tuning.most
    return Estimate(row.name, seconds, runs, seconds * rounds / 3600)
