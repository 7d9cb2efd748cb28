"""Two attacks that look for the picture whose upload is the one seen.

dlg     Zhu, Liu and Han 2019: L-BFGS on |predict(x) - target|^2 / |target|^2
invert  Geiping et al. 2020: 1 - cos(predict(x), target) + weight TV(x), Adam on the signs of its gradient, a
        falling rate, pixels kept in their range, restarts of which the one that fits best is kept
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from narrowcast.numerics import Key, Purpose, keyed
from narrowcast_studies.attacks.attackers import View
from narrowcast_studies.attacks.images import HIGH, LOW
from narrowcast_studies.attacks.models import SIDE, Net

ENOUGH = 1e-10  # of a relative squared distance: far below what can be seen in a picture
HISTORY = 50  # vectors of L-BFGS
FAINT = 0.1  # DLG starts from grey with a little noise: what the upload leaves open stays grey
RATE = 0.1  # Adam's, in deviations of a pixel


@dataclass(frozen=True)
class Effort:
    """How long an attack tries."""

    iterations: int
    restarts: int = 1
    variation: float = 0.01  # weight of the total variation


@dataclass(frozen=True)
class Found:
    """A picture, (B, 3, 32, 32) in normalised pixels, and how far its upload is from the one seen."""

    x: Tensor
    loss: float


def start(batch: int, key: Key, scale: float) -> Tensor:
    """Normal noise, from the key."""
    noise = keyed.normals(key, Purpose.NORMALS, batch * 3 * SIDE * SIDE) * scale
    return torch.from_numpy(noise.astype("float32")).view(batch, 3, SIDE, SIDE)


def total_variation(x: Tensor) -> Tensor:
    """The mean step between neighbours, down and across."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def within(x: Tensor) -> Tensor:
    """Pixels cut to what a picture can have."""
    return torch.minimum(torch.maximum(x, LOW), HIGH)


def dlg(net: Net, view: View, y: Tensor, effort: Effort, key: Key) -> Found:
    """L-BFGS with a line search; `iterations` counts evaluations of the distance."""
    x = start(len(y), key, FAINT).requires_grad_()
    # Without a line search, as in DLG's own code, a step that is too long is never taken back.
    search = torch.optim.LBFGS(
        [x],
        max_iter=effort.iterations,
        max_eval=effort.iterations,
        history_size=HISTORY,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    length = view.target.square().sum()
    best = Found(x.detach().clone(), math.inf)

    def distance() -> Tensor:
        nonlocal best
        loss = (view.predict(net, x, y, graph=True) - view.target).square().sum() / length
        (x.grad,) = torch.autograd.grad(loss, x)
        value = float(loss.detach())
        if value < best.loss:
            best = Found(x.detach().clone(), value)
        if value < ENOUGH or not math.isfinite(value):
            raise _Ended
        return loss.detach()

    with contextlib.suppress(_Ended):
        search.step(distance)
    return Found(within(best.x), best.loss)


class _Ended(Exception):
    """The search has found it, or has left the numbers."""


def invert(net: Net, view: View, y: Tensor, effort: Effort, key: Key) -> Found:
    """The best of `restarts` descents from noise."""
    keys = [keyed.derive(key, Purpose.DATA, number) for number in range(effort.restarts)]
    return min((_descent(net, view, y, effort, k) for k in keys), key=lambda found: found.loss)


def _descent(net: Net, view: View, y: Tensor, effort: Effort, key: Key) -> Found:
    x = start(len(y), key, 1.0).requires_grad_()
    adam = torch.optim.Adam([x], lr=RATE)
    milestones = [effort.iterations * part // 8 for part in (3, 5, 7)]
    falling = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, gamma=0.1)
    value = math.inf
    for _ in range(effort.iterations):
        v = view.predict(net, x, y, graph=True)
        apart = 1 - (v @ view.target) / (v.norm() * view.target.norm())
        loss = apart + effort.variation * total_variation(x)
        x.grad = torch.autograd.grad(loss, x)[0].sign()
        adam.step()
        falling.step()
        with torch.no_grad():
            x.copy_(within(x))
        value = float(loss.detach())
    return Found(x.detach(), value)


Attack = Callable[[Net, View, Tensor, Effort, Key], Found]
ATTACKS: dict[str, Attack] = {"dlg": dlg, "invert": invert}
