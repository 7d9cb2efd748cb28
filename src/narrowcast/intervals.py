"""Intervals of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from narrowcast.extras import require


def student(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """(mean, half width of Student's interval); of one value alone it is infinite."""
    require("scipy", "measure", "an interval")
    from scipy.stats import t

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, math.inf
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean, float(t.ppf((1 + confidence) / 2, n - 1)) * spread
