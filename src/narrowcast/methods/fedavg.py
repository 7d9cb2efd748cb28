"""FedAvg (McMahan et al. 2017): uncompressed, but every client takes several local steps before it sends.

Any method can be fed such an update with `--local-steps`; this one does so by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from narrowcast.methods.uncompressed import Uncompressed


@dataclass(frozen=True)
class FedAvg(Uncompressed):
    name: ClassVar[str] = "fedavg"
    local_steps: ClassVar[int] = 5
