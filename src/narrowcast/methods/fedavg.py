"""FedAvg (McMahan et al. 2017): uncompressed, but every client takes several local steps before it sends.

Any method can be fed such an update with `--local-steps`; this one does so by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from narrowcast.methods.entry import About, Entry
from narrowcast.methods.uncompressed import Uncompressed

ABOUT = About(
    up="D numbers",
    down="D numbers",
    client="nothing",
    server="D numbers",
    formula="v_w = (theta - theta_w) / r after S local steps of rate r",
    source="McMahan et al. 2017",
    text="""
Client w walks S steps (`--local-steps`, 5 by default) of rate r from `theta_t` to `theta_w` and sends `v_w
= (theta_t - theta_w) / r`; with the server's rate equal to r the step is the mean of the clients' models.
It saves bytes by needing fewer rounds. Clients of one class walk apart, and more local steps hurt there.
""",
)


@dataclass(frozen=True)
class FedAvg(Uncompressed):
    name: ClassVar[str] = "fedavg"
    local_steps: ClassVar[int] = 5


ENTRY = Entry(FedAvg, ABOUT)
