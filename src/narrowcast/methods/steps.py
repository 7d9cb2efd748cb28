"""The step of a lattice on which Sigma is published: it follows the size of what changes between two visits.

A client that comes every P versions lacks a change of size E. At the step s = E r(b) such a change takes b
bits a number, r from the entropy of rounded Gaussians (`gaussian.step_for`). E is measured over the last P
versions of the stage. While the run's first stage is younger than that, whoever comes lacks all of Sigma,
and E is the size of that: theta moves from the first round on. Where a later stage is younger, of a versions,
E is taken to grow in proportion, and for the share 1 - a/P of its logarithm to end where the stage before
did. So s shrinks with the rate, which E is proportional to.

What such a client is really sent is counted at every version. Bits that are owed, or were spent beyond those
asked for, are made up within a quarter of a period: b above is the asked plus owed / (P/4). A step is kept as
long as it is within a factor 2^HOLD of the right one: while it stays, who comes pays for nothing but the
change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from narrowcast.numerics.kernels.rans import GREATEST
from narrowcast.wire.codes import gaussian
from narrowcast.wire.codes.lattice import LEAST, OVERHEAD

HOLD = 0.35  # octaves
MAKE_UP = 0.25  # of a period
LIMIT = 2.0  # bits that are made up at most
FINEST = 2.0**-28  # of the largest number: what integers can say


@dataclass(frozen=True)
class Pace:
    step: float = 0.0  # 0: none yet
    size: float = 0.0  # E
    owed: float = 0.0  # bits a number, summed over the versions
    age: int = 0  # versions of this stage
    length: int = 0  # versions of the stage before; 0: there was none
    ended: float = 0.0  # bits a number of the stage before, from nothing to its end

    def horizon(self, period: int) -> int:
        """Versions over which a change in one stage is looked at."""
        return max(1, min(period, self.length or period))

    def after(self, change: float, largest: float, count: int, bits: float, period: int) -> Pace:
        """For the next version, whose numbers came `change` far (rms) within the horizon, or this stage."""
        horizon = self.horizon(period)
        a = min(self.age + 1, horizon)
        size = change * horizon / a if self.length else change
        if self.length and a < horizon and self.size > 0:
            size = self.size ** (1 - a / horizon) * size ** (a / horizon) if size else self.size
        owed = min(max(self.owed / (MAKE_UP * period), -LIMIT), LIMIT)
        right = size * gaussian.step_for(max(own(bits, count) + owed, 0.05), False)
        right = max(right, largest * FINEST, LEAST)
        step = self.step
        if right > LEAST and not (step and abs(math.log2(right / step)) < HOLD and step >= largest * FINEST):
            step = right
        kept = size if a >= horizon else self.size
        step = float(np.float32(min(step or 1.0, GREATEST)))
        return replace(self, step=step, size=kept or size, age=self.age + 1)

    def paid(self, took: float, count: int, bits: float, period: int) -> Pace:
        """A client that comes every `period` versions was sent so many bits a number."""
        asked, most = own(bits, count), LIMIT * MAKE_UP * period
        return replace(self, owed=min(max(self.owed + asked - took, -most), most))

    def restarted(self, ended: float) -> Pace:
        """A stage begins; the one before took so many bits a number."""
        return replace(self, age=0, length=self.age, ended=ended)


def own(bits: float, count: int) -> float:
    """The bits of a number that are its own, where a block takes `bits` a number with all that is in it."""
    return max(bits - OVERHEAD / max(1, count), bits / 2)
