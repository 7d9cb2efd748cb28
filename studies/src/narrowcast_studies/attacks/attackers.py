"""Who attacks: the vector each takes from the upload, and the function of x that should match it.

paper   takes the re-expanded vector (A A^T g; the sparse vector; the unsketched estimate) for the gradient
honest  knows A, theta and the key, and matches M grad(x) to the numbers sent, M being what the method applies
blind   sees noise as long as the gradient: what an attack makes of nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from narrowcast.numerics import Key, Purpose, keyed
from narrowcast_studies.attacks import maps
from narrowcast_studies.attacks.maps import LinearMap
from narrowcast_studies.attacks.models import Net
from narrowcast_studies.attacks.uploads import Observation


@dataclass(frozen=True)
class View:
    """Rounds stacked: target = (M_1 grad_1(x), M_2 grad_2(x), ...), which gains rank with every new M."""

    thetas: tuple[Tensor, ...]
    maps: tuple[LinearMap, ...]
    target: Tensor  # (m_1 + m_2 + ...,)

    def predict(self, net: Net, x: Tensor, y: Tensor, graph: bool = False) -> Tensor:
        """What the attacker would have seen, had the data been (x, y)."""
        at: dict[int, Tensor] = {}
        for theta in self.thetas:
            if id(theta) not in at:
                at[id(theta)] = net.gradient(theta, x, y, graph)
        parts = [through(at[id(theta)]) for theta, through in zip(self.thetas, self.maps, strict=True)]
        return torch.cat(parts)


def paper(seen: Sequence[Observation], key: Key) -> View:
    target = torch.cat([o.expanded for o in seen])
    return View(tuple(o.theta for o in seen), (maps.whole(),) * len(seen), target)


def honest(seen: Sequence[Observation], key: Key) -> View:
    return View(tuple(o.theta for o in seen), tuple(o.map for o in seen), torch.cat([o.sent for o in seen]))


def blind(seen: Sequence[Observation], key: Key) -> View:
    view = paper(seen, key)
    noise = torch.from_numpy(keyed.normals(key, Purpose.NORMALS, view.target.numel()))
    return View(view.thetas, view.maps, noise * (view.target.norm() / noise.norm()))


ATTACKERS: dict[str, Callable[[Sequence[Observation], Key], View]] = {
    "paper": paper,
    "honest": honest,
    "blind": blind,
}
