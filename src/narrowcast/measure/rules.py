"""When a probe has succeeded or failed, which rates it is given, and what it has to reach. Pure functions.

Everything is said for a metric that is better when higher; `better` turns the others round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Curve = Sequence[tuple[int, float]]  # (rounds done, metric) at every evaluation

REACHED, FAILED = "reached", "failed"
FULL_RATE = 0.3  # of uncompressed training
SPARE = 1 / 100  # see `rate`
SPREAD = 3.0  # between two rates of a probe
HALF = 0.5  # of its rounds, before which no probe is given up
HOPE = 2.0  # times the pace of late
MARGIN = 0.05  # of the target: what the end of the schedule may still add


def target(best: float, threshold: float, higher_is_better: bool = True) -> float:
    """threshold * best, or best / threshold for a metric that is better when lower."""
    if not 0 < threshold <= 1:
        raise ValueError(
            f"the threshold is a share of the uncompressed metric, 0 < share <= 1, got {threshold}"
        )
    if not best > 0:
        raise ValueError(
            f"the uncompressed metric is {best}: a share of it is a target only when it is positive; choose "
            "another metric"
        )
    return threshold * best if higher_is_better else best / threshold


def better(a: float, b: float, higher_is_better: bool = True) -> bool:
    return a >= b if higher_is_better else a <= b


def best(curve: Curve, higher_is_better: bool = True) -> float:
    """The best evaluation."""
    values = [value for _, value in curve]
    return max(values) if higher_is_better else min(values)


def verdict(curve: Curve, rounds: int, target: float, higher_is_better: bool = True) -> str | None:
    """ "reached" at the first evaluation that is as good as the target; "failed" without hope or rounds."""
    if curve and better(best(curve, higher_is_better), target, higher_is_better):
        return REACHED
    if curve and (curve[-1][0] >= rounds or hopeless(curve, rounds, target, higher_is_better)):
        return FAILED
    return None


def hopeless(curve: Curve, rounds: int, target: float, higher_is_better: bool = True) -> bool:
    """After half its rounds: even twice the pace of late, to the end, would leave it short of the target.

    The pace is what the best evaluation gained since half the rounds so far. A curve that flattens out gains
    less than that; the end of a schedule, where the rate goes to zero, can add a little more, for which there
    is a margin.
    """
    done = curve[-1][0]
    if done < HALF * rounds:
        return False
    early = [point for point in curve if point[0] <= done / 2]
    if not early:
        return False
    sign = 1.0 if higher_is_better else -1.0
    now, before = (sign * best(part, higher_is_better) for part in (curve, early))
    pace = (now - before) / (done - early[-1][0])
    return now + max(MARGIN * abs(target), HOPE * pace * (rounds - done)) < sign * target


def rate(d: int, D: int, full: float = FULL_RATE, spare: float = SPARE) -> float:
    """The rate at d: full / (d/D + spare (1 - d/D)), in three digits; at d = D it is `full`, uncompressed.

    In a random subspace of d of D dimensions the largest curvature is about d/D of the whole space's, until
    the mean curvature, which no subspace is rid of, takes over: `spare` is its share, as measured
    (docs/measure.md).
    """
    return float(f"{full / (d / D + spare * (1 - d / D)):.3g}")


def route_factor(K: int) -> float:
    """What the rate of K-subspace methods is multiplied by: a subspace gets 1/K of a round's clients."""
    return math.sqrt(K)


def rates(centre: float, count: int) -> list[float]:
    """`count` rates around a centre, the centre first: c, 3c, c/3, 9c, ..."""
    if count < 1:
        raise ValueError(f"a probe needs at least one rate, got {count}")
    steps = [(i + 1) // 2 * (1 if i % 2 else -1) for i in range(count)]
    return [float(f"{centre * SPREAD**i:.3g}") for i in steps]
