"""FedProx: FedAvg whose clients are held back from walking away from the server's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from narrowcast.methods.entry import About, Entry
from narrowcast.methods.fedavg import FedAvg

ABOUT = About(
    up="D numbers",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="local steps on f_w(x) + (mu/2) |x - theta|^2",
    source="Li et al. 2020",
    text="""
FedAvg with a proximal term in the local objective: client w takes its steps on `f_w(x) + (mu/2) |x -
theta_t|^2`, so a local gradient gains `mu (x - theta_t)`. The first step is not changed by it; `--prox` is
mu, and can be given to any method whose clients take several steps by gradients.
""",
)


@dataclass(frozen=True)
class FedProx(FedAvg):
    name: ClassVar[str] = "fedprox"
    prox: ClassVar[float] = 0.1


ENTRY = Entry(FedProx, ABOUT)
