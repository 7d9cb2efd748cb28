"""Bound against measured: what the theorems say of a result's runs. Reads results only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from narrowcast_studies.theory import bounds
from narrowcast_studies.theory.dimension import proportion
from narrowcast_studies.theory.programme import KINDS, Result


class Check(NamedTuple):
    """One inequality, counted over independent runs. Losses are in units of g(theta0) - g*."""

    problem: str
    kind: str
    theorem: str
    rho: float
    bound: float
    losses: list[float]  # where each run ended
    promised: float  # the probability that the theorem gives
    confidence: float
    steps: float  # of a run, on average
    reached: float  # the mean share of the steps after which the bound was reached
    reading: bool = True  # the reading of the theorem that is taken; False: one shown for comparison

    @property
    def hits(self) -> int:
        return sum(loss <= self.bound for loss in self.losses)

    @property
    def verdict(self) -> str:
        """holds: the share is above the promise with confidence; fails: below it with confidence.

        A bound of 1 or more is met before the first step: it says nothing, and the verdict is "empty".
        """
        if self.bound >= 1:
            return "empty"
        low, high = proportion(self.hits, len(self.losses), self.confidence)
        return "holds" if low >= self.promised else "fails" if high < self.promised else "not refuted"

    @property
    def low(self) -> float:
        return proportion(self.hits, len(self.losses), self.confidence)[0]


def path_rho(result: Result, kind: str) -> float:
    """The largest rho along the way, each an upper bound with confidence."""
    return max(q.high for q in result.pilots[kind].path)


def everywhere_rho(result: Result, kind: str) -> float:
    """rho next to the optimum in the worst direction: no rho for all theta0 is below it."""
    drawn = "rotation" if kind == "rotation" else "uniform"
    return next(r.worst.value for r in result.dimension.rows if r.kind == drawn and r.d == result.spec.dim)


def epoch_bounds(result: Result, kind: str) -> list[float]:
    """Theorem 3 with each epoch's own rho: b_0 = 1, b_{e+1} = rho_e b_e + epsilon sqrt(E)."""
    s = result.spec
    b = [1.0]
    for q in result.pilots[kind].path:
        b.append(q.high * b[-1] + s.epsilon * s.E**0.5)
    return b


def checks(results: Sequence[Result]) -> list[Check]:
    return [c for result in results for kind in KINDS for c in _checks(result, kind)]


def _checks(r: Result, kind: str) -> list[Check]:
    s, rho = r.spec, r.pilots[kind].rho.high
    sure, chain = 1 - s.delta, (1 - s.delta) ** s.E
    rows = [
        ("1", rho, bounds.static(rho, 1, s.epsilon), "static", sure, True),
        ("2", rho, bounds.static(rho, 1, s.epsilon_k), "k-subspace", sure, True),
    ]
    epochs = epoch_bounds(r, kind)[-1]
    for name, value, reading in (
        ("3", path_rho(r, kind), True),
        ("3, rho at theta0", rho, False),
        ("3, rho for all theta0", everywhere_rho(r, kind), False),
    ):
        rows.append(
            (name, value, bounds.time_varying(value, 1, s.epsilon, s.E), "time-varying", chain, reading)
        )
    rows.append(("3, an epoch's own rho", path_rho(r, kind), epochs, "time-varying", chain, True))
    return [
        Check(
            problem=s.problem,
            kind=kind,
            theorem=theorem,
            rho=value,
            bound=bound,
            losses=[t.curve[-1] for t in r.trials[kind][method]],
            promised=promised,
            confidence=s.confidence,
            steps=statistics.mean(t.steps for t in r.trials[kind][method]),
            reached=statistics.mean(_reached(t.curve, bound) for t in r.trials[kind][method]),
            reading=reading,
        )
        for theorem, value, bound, method, promised, reading in rows
    ]


def _reached(curve: list[float], bound: float) -> float:
    """The share of the run after which it was first at or below the bound; 1 where it never was."""
    return next((i for i, loss in enumerate(curve) if loss <= bound), len(curve) - 1) / (len(curve) - 1)
