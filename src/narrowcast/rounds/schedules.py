"""How the rate goes over a run: a piecewise-linear factor of it, by its knots (epoch, factor)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

Knots = list[tuple[float, float]]


def factor(knots: Knots, epoch: float) -> float:
    """The factor at this epoch: straight lines between the knots, constant outside."""
    epochs, factors = zip(*knots, strict=True)
    return float(np.interp(epoch, epochs, factors))


def knots(text: str, epochs: float) -> Knots:
    """The knots of "constant", "triangle" (over so many epochs) or "epoch:factor,..."."""
    if text == "constant":
        return [(0.0, 1.0)]
    if text == "triangle":  # the paper's: up to the peak after 5 of 24 epochs, down to zero
        return [(0.0, 0.0), (epochs * 5 / 24, 1.0), (epochs, 0.0)]
    try:
        parsed = [(float(e), float(f)) for e, f in (knot.split(":") for knot in text.split(","))]
    except ValueError:
        parsed = []
    if not all(math.isfinite(e) and math.isfinite(f) and f >= 0 for e, f in parsed):
        parsed = []
    if not parsed or any(a >= b for (a, _), (b, _) in pairwise(parsed)) or parsed[0][0] < 0:
        raise ValueError(
            f'must be "constant", "triangle" or rising knots such as "0:0,5:1,24:0", got {text!r}'
        )
    return parsed
