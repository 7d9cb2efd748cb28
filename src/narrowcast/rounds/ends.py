"""Whether a run has come to anything: training may blow up without a NaN, and end in finite nonsense.

What a run ends with is held against the model before its first round. Three things are no result, whatever
else is said of them:
- the loss is 10 000 times what it was;
- it is ten times what it was, and the metric is no better;
- the weights have left all proportion (root mean square, 10 000 times theta0's, and 10 000 at least), and the
  loss has not even halved: a net that died gives the loss of a constant.
A run that learned too surely (a high loss, a good metric) is none of these, nor a linear model whose weights
must be large, nor one that learned nothing. Losses far below those of theta0 are what weights are large for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from narrowcast.numerics.devices import names

BEYOND, FAR = 1e4, 10.0


@dataclass(frozen=True)
class Ending:
    """What is known of theta0 and of the last model: what was measured on the same data, and the weights."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    metric: str
    higher_is_better: bool
    grown: bool

    @property
    def ruined(self) -> str:
        """What is wrong with it; "": nothing that is beyond doubt."""
        old, new = self.before.get("loss"), self.after.get("loss")
        if old is None or new is None or old <= 0:
            return ""
        said = f"the loss is {new:.3g} where it was {old:.3g} before the first round"
        if beyond(old, new) or (new > FAR * old and not self.better):
            return said
        return f"{said}, and the weights have left all proportion" if self.grown and new > old / 2 else ""

    @property
    def better(self) -> bool:
        """Whether the metric is better than before; one that is not known counts as such."""
        if self.metric not in self.before or self.metric not in self.after:
            return True
        gain = self.after[self.metric] - self.before[self.metric]
        return gain > 0 if self.higher_is_better else gain < 0


def beyond(first: float | None, loss: float) -> bool:
    """Whether a loss is nonsense, whatever the metric; of one that was not positive nothing is known."""
    return first is not None and first > 0 and loss > BEYOND * first


def suspect(first: float | None, loss: float | None, grown: bool) -> bool:
    """Whether it is worth measuring theta0: of most runs it is not."""
    return grown or (first is not None and loss is not None and loss > FAR * first)


def grown(theta: Tensor, theta0: Tensor) -> bool:
    """Whether theta has left all proportion to theta0."""
    return _rms(theta) > BEYOND * max(_rms(theta0), 1.0)


def _rms(x: Tensor) -> float:
    return float(names.wide(x).norm()) / math.sqrt(max(1, x.numel()))
