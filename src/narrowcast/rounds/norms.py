"""A bound on the norm of one client's update: so many times the median of what came before.

One client's finite numbers may be a million times those of all others, and a mean takes them as they are. The
median does not move for a minority, so whoever is far beyond it has no say. What is beyond the bound enters
the history as the bound itself: should all norms grow for good, the median follows, slowly.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

KEPT = 200  # norms
ENOUGH = 5  # norms, before a median says anything


class NormBound:
    """`factor` times the running median; a factor of 0 bounds nothing."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.history: deque[float] = deque(maxlen=KEPT)

    def limit(self, norms: Sequence[float]) -> float:
        """The largest norm that is taken, for a round whose updates have these."""
        known = list(self.history) if len(self.history) >= ENOUGH else [*self.history, *norms]
        usual = median(known) if len(known) >= ENOUGH else 0.0
        return self.factor * usual if self.factor and usual else math.inf

    def learn(self, norms: Sequence[float], limit: float) -> None:
        """These were the norms of a round."""
        if self.factor:
            self.history.extend(min(norm, limit) for norm in norms)
