"""Intervals of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from narrowcast.extras import require

# Student's t at 97.5 %, by degrees of freedom from 1.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def half_width(values: Sequence[float]) -> float | None:
    """Of Student's 95 % interval of the mean, without scipy; None: of one value there is none."""
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return _t(n - 1) * spread


def _t(freedom: int) -> float:
    """The quantile: a table, and beyond it the expansion around the normal one."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def enough(away: float, half: float, n: int, most: int = 100) -> float:
    """How many values would settle on which side of a limit their mean lies; inf: more than `most`.

    So if it stays as far `away` and the values scatter as these n do, whose interval has this half width.
    """
    scatter = half * math.sqrt(n) / _t(n - 1)
    counts = range(n + 1, most + 1)
    return next((m for m in counts if _t(m - 1) * scatter / math.sqrt(m) < abs(away)), math.inf)


def student(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """(mean, half width of Student's interval); of one value alone it is infinite."""
    require("scipy", "measure", "an interval")
    from scipy.stats import t

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, math.inf
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean, float(t.ppf((1 + confidence) / 2, n - 1)) * spread
