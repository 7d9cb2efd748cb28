"""The search for a rate: a coarse geometric grid, the same small budget for everyone.

Rates are centre * factor^i. Three runs, i = -1, 0, 1; while the best lies on the border, the grid grows by
one there, to `most` runs at most. A run that diverged counts as the worst there can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from narrowcast.rounds.records import Natural

START = (0, -1, 1)


@dataclass(frozen=True)
class Grid:
    centre: float
    factor: float = 3.0
    most: int = 5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.centre) and self.centre > 0):
            raise ValueError(f"the centre of a grid is a positive number, got {self.centre}")
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ValueError(f"the factor of a grid is above 1, got {self.factor}")
        if self.most < len(START):
            raise ValueError(f"a grid has at least {len(START)} points, got {self.most}")

    def rate(self, i: int) -> float:
        """centre * factor^i in three digits: a rate that can be read, and typed."""
        return float(f"{self.centre * self.factor**i:.3g}")

    def below(self, rate: float) -> float:
        """The next lower rate than one of the grid's."""
        return self.rate(round(math.log(rate / self.centre, self.factor)) - 1)

    def next(self, scores: Mapping[int, float]) -> int | None:
        """The next i to try, from the scores so far (higher is better); None: the search is over."""
        for i in START:
            if i not in scores:
                return i
        if len(scores) >= self.most:
            return None
        best = best_of(scores)
        if best in (low := min(scores), high := max(scores)):
            return low - 1 if best == low else high + 1
        return None


def best_of(scores: Mapping[int, float]) -> int:
    """Where the score is highest; of equals the smallest rate, so that a grid that diverged moves down."""
    return min(scores, key=lambda i: (-scores[i], i))


def search(grid: Grid, score: Callable[[float], float]) -> dict[int, float]:
    """Every point that was tried and its score; -inf is a run that diverged."""
    scores: dict[int, float] = {}
    while (i := grid.next(scores)) is not None:
        value = score(grid.rate(i))
        scores[i] = value if math.isfinite(value) else -math.inf
    return scores


class Found(msgspec.Struct, frozen=True):
    """What a search found, and what it cost: its rounds are none of the run's."""

    rate: float
    trials: dict[str, float | None] = {}  # the longest: rate -> loss; None: it diverged
    short: dict[str, float | None] = {}  # those before, which say where to look
    rounds: Natural = 0
    up: Natural = 0
    down: Natural = 0
    seconds: float = 0.0
