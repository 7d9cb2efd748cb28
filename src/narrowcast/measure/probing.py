"""The measurement: uncompressed runs set the target, then a search over d, seed by seed.

How a run is made is the trainer's business (`trainers.py`): in a folder of its own, or in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from narrowcast.measure import rules
from narrowcast.measure.results import Baseline, Measured, Probe, Seed, Trained
from narrowcast.measure.searching import search
from narrowcast.methods.table import METHODS

UNCOMPRESSED = "uncompressed"
# How long a run is unless its user says so; other tasks need a length.
LENGTH: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 24, "cohort": 29},
    "mnist": {"epochs": 10, "cohort": 100, "evaluate_every": 60},
}
FAMILY = ("static", "time-varying", "k-subspace", "k-subspace-time-varying")
RETRIES = 2  # smaller rates for a run that diverged: a rate too large says nothing about d
Say = Callable[[str], None]


class About(NamedTuple):
    """What is trained."""

    parameters: int
    metric: str
    higher_is_better: bool
    rounds: int
    epochs: float


class Trial(NamedTuple):
    """One training run. d is None when nothing is compressed."""

    method: str
    d: int | None
    rate: float
    seed: int


class Trainer(Protocol):
    def about(self) -> About: ...

    def train(self, trial: Trial, target: float | None) -> Trained:
        """The run to its end, or with a target until `rules.verdict` says what became of it."""


@dataclass(frozen=True)
class Spec:
    """What is asked. `start`: the first d, by default sqrt(D), the middle of 1 .. D on the log scale."""

    method: str = "static"
    threshold: float = 0.9
    seeds: tuple[int, ...] = (0, 1, 2)
    start: int | None = None
    factor: float = 4.0
    tolerance: float = 1.1
    rates: int = 1  # rates that the baseline, and every probe, may try
    full_rate: float = rules.FULL_RATE
    rate: float | None = None  # of every probe, over the rule

    def __post_init__(self) -> None:
        others = [name for name in METHODS.others if name == self.method]  # of which only this one is loaded
        if self.method not in [*FAMILY, *(name for name in others if "dim" in METHODS[name].options)]:
            raise ValueError(f"{self.method!r} has no d to measure: choose one of {', '.join(FAMILY)}")
        if not self.seeds:
            raise ValueError("a measurement needs at least one seed")
        rules.target(1.0, self.threshold)


def conduct(trainer: Trainer, spec: Spec, say: Say = lambda line: None) -> list[Seed]:
    """All seeds, one after the other; each starts its search anew, so that they are independent."""
    return [one_seed(trainer, spec, seed, say) for seed in spec.seeds]


def one_seed(trainer: Trainer, spec: Spec, seed: int, say: Say) -> Seed:
    about = trainer.about()
    up = about.higher_is_better
    baseline = _baseline(trainer, spec, seed)
    target = rules.target(baseline.best, spec.threshold, up)
    say(f"seed {seed}: uncompressed {about.metric} {baseline.best:.4f}, to reach: {target:.4f}")
    probes: list[Probe] = []

    def reaches(d: int) -> bool:
        made = probe(trainer, spec, seed, d, target)
        probes.append(made)
        say(f"seed {seed}: {line(made, about, target)}")
        return made.reached

    start = spec.start or max(1, round(math.sqrt(about.parameters)))
    found = search(
        reaches, min(start, about.parameters), about.parameters, factor=spec.factor, tolerance=spec.tolerance
    )
    say(f"seed {seed}: d = {found.d}" if found.d else f"seed {seed}: not reached by any d")
    return Seed(seed, baseline, target, probes, found.d, found.failed)


def _baseline(trainer: Trainer, spec: Spec, seed: int) -> Baseline:
    """Uncompressed training, whole, at every rate."""
    about = trainer.about()
    rates, runs = _attempts(
        rules.rates(spec.full_rate, spec.rates),
        lambda rate: trainer.train(Trial(UNCOMPRESSED, None, rate, seed), None),
        lambda run: False,
    )
    values = [rules.best(run.curve, about.higher_is_better) for run in runs if run.curve and not run.diverged]
    if not values:
        raise ValueError(f"uncompressed training diverged at rates {rates}: give a smaller --full-lr")
    return Baseline(rates, runs, max(values) if about.higher_is_better else min(values))


def probe(trainer: Trainer, spec: Spec, seed: int, d: int, target: float) -> Probe:
    """Train at d, at one rate after the other until one reaches the target."""
    about = trainer.about()
    centre = spec.rate or rules.rate(d, about.parameters, spec.full_rate)

    def reached(run: Trained) -> bool:
        return rules.verdict(run.curve, run.rounds, target, about.higher_is_better) == rules.REACHED

    rates, runs = _attempts(
        rules.rates(centre, spec.rates),
        lambda rate: trainer.train(Trial(spec.method, d, rate, seed), target),
        reached,
    )
    return Probe(d, reached(runs[-1]), rates, runs)


def _attempts(
    rates: list[float], train: Callable[[float], Trained], enough: Callable[[Trained], bool]
) -> tuple[list[float], list[Trained]]:
    """(rates, runs) in order, until one is enough; where all diverge, smaller rates are tried too."""
    tried: list[float] = []
    runs: list[Trained] = []
    waiting, retries = list(rates), RETRIES
    while waiting:
        tried.append(waiting.pop(0))
        runs.append(train(tried[-1]))
        if enough(runs[-1]):
            break
        if not waiting and retries and all(run.diverged for run in runs):
            waiting.append(float(f"{min(tried) / rules.SPREAD:.3g}"))
            retries -= 1
    return tried, runs


def line(made: Probe, about: About, target: float) -> str:
    """A probe in a line."""
    best = made.best(about.higher_is_better)
    sign = "<>"[made.reached == about.higher_is_better] + "=" * made.reached
    how = "diverged" if best is None else f"{best:.4f} {sign} {target:.4f}"
    rates = ", ".join(f"{rate:g}" for rate in made.rates)
    verdict = rules.REACHED if made.reached else rules.FAILED
    budget = sum(run.rounds for run in made.runs)
    return f"d = {made.d}: {verdict}, {about.metric} {how}, {made.used} of {budget} rounds, lr {rates}"


def measured(
    about: About, spec: Spec, seeds: list[Seed], task: str, settings: Mapping[str, object]
) -> Measured:
    """The result, with what it was made of."""
    others = {name: str(value) for name, value in settings.items() if name != "subspace"}
    return Measured(
        task=task,
        method=spec.method,
        subspace=str(settings.get("subspace", "rotation")),
        parameters=about.parameters,
        metric=about.metric,
        higher_is_better=about.higher_is_better,
        threshold=spec.threshold,
        tolerance=spec.tolerance,
        rounds=about.rounds,
        epochs=about.epochs,
        seeds=seeds,
        settings=others,
        torch=torch.__version__.split("+")[0],
    )
