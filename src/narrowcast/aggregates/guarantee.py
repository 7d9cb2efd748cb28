"""What is guaranteed to every client of a run, as its folder and its table say it. Needs no torch to read."""

from __future__ import annotations

import msgspec


class Guarantee(msgspec.Struct, frozen=True):
    """(epsilon, delta) differential privacy of one client, after the run's last round."""

    epsilon: float
    renyi: float  # the same by Renyi's, which is larger and holds as well
    delta: float
    noise: float  # sigma, in clipping bounds
    clip: str  # the bound, or "adaptive"
    sampling: str

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.4g} for every client at delta {self.delta:g}, with noise of "
            f"{self.noise:.4g} clipping bounds (clip {self.clip}, sampling {self.sampling}; by Renyi "
            f"{self.renyi:.4g})"
        )
