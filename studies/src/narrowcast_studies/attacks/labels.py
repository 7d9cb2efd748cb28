"""Labels from an upload alone.

The last layer's gradient is (p - e_y) h^T, so an upload says which y it came from long before it shows x. A
template t_c is what the attacker would see of a grey picture of class c. The labels of a batch are
taken one by one, each time the class whose template, at 1/B, brings the sum nearest to the upload.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowcast_studies.attacks.attackers import View
from narrowcast_studies.attacks.models import CLASSES, SIDE, Net


class Greys:
    """The gradients of a grey picture of every class; kept for as long as theta is the same."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self._theta: Tensor | None = None
        self._found: list[Tensor] = []

    def at(self, theta: Tensor) -> list[Tensor]:
        if self._theta is None or not torch.equal(theta, self._theta):
            x = torch.zeros(1, 3, SIDE, SIDE)
            self._theta = theta
            self._found = [self.net.gradient(theta, x, torch.tensor([c])) for c in range(CLASSES)]
        return self._found

    def templates(self, view: View) -> Tensor:
        """t_c for every class, (classes, m)."""
        rounds = [
            torch.stack([through(v) for v in self.at(theta)])
            for theta, through in zip(view.thetas, view.maps, strict=True)
        ]
        return torch.cat(rounds, dim=1)


def infer(greys: Greys, view: View, batch: int) -> Tensor:
    """The labels of a batch, rising, (B,)."""
    t = greys.templates(view) / batch
    rest, found = view.target, []
    for _ in range(batch):
        nearest = int((rest - t).square().sum(1).argmin())
        found.append(nearest)
        rest = rest - t[nearest]
    return torch.tensor(sorted(found))


def agreeing(found: Tensor, true: Tensor) -> int:
    """How many labels are right, order aside."""
    a, b = (torch.bincount(y, minlength=CLASSES) for y in (found, true))
    return int(torch.minimum(a, b).sum())
