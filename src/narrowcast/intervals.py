"""95 % intervals: of a mean, of a rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z = 1.96  # of the normal distribution


def student(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """(mean, half width of Student's interval); of one value alone it is infinite."""
    from scipy.stats import t

    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return mean, math.inf
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean, float(t.ppf((1 + confidence) / 2, n - 1)) * spread


def wilson(right: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a rate: it keeps a width at 0 and at 1."""
    p, z = right / of, Z * Z / of
    middle, half = (p + z / 2) / (1 + z), Z * math.sqrt(p * (1 - p) / of + z / (4 * of)) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)
