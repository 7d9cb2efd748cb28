"""What clients say of the model that they trained from, and how far it is believed: one decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

FEW = 5  # clients whose losses say what it was at first


class Hearsay:
    """What was said so far in a run of so many clients."""

    def __init__(self, clients: int) -> None:
        self.enough = min(FEW, clients)
        self.losses: dict[int, float] = {}  # client -> its first

    def first(self, said: Mapping[int, float]) -> float | None:
        """The median of five clients' first losses, or of all clients' where there are fewer."""
        self.losses = {**said, **self.losses}
        return median(self.losses.values()) if len(self.losses) >= self.enough else None
