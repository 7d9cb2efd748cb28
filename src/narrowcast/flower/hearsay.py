"""What clients say of the model that they trained from, and how far it is believed: one decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from narrowcast.flower.uploads import Uploads
from narrowcast.rounds import ends

FEW = 5  # clients whose losses say what it was at first


class Hearsay:
    """What was said so far in a run of so many clients."""

    def __init__(self, clients: int) -> None:
        self.enough = min(FEW, clients)
        self.losses: dict[int, float] = {}  # client -> its first
        self.doubting: set[int] = set()  # nodes that could not train, since others last could

    def first(self, said: Mapping[int, float]) -> float | None:
        """The median of five clients' first losses, or of all clients' where there are fewer."""
        self.losses = {**said, **self.losses}
        return median(self.losses.values()) if len(self.losses) >= self.enough else None

    def doubted(self, nodes: set[int], present: int) -> bool:
        """Whether two nodes are doubting now, or the only one there is; then they are heard anew."""
        doubting = self.doubting | nodes
        enough = len(doubting) >= min(2, present)
        self.doubting = set() if enough else doubting
        return enough


def doubts(uploads: Uploads, loss: float | None, first: float | None) -> tuple[str, set[int]]:
    """(what is wrong with the model that clients trained from, who says so); none where nothing is."""
    if ruined := uploads.ruined:
        return "every client's loss or update was not finite: lower lr", ruined
    if loss is None or not ends.beyond(first, loss):
        return "", set()
    saying = {client for client, said in uploads.said.items() if ends.beyond(first, said)}
    return f"the loss is {loss:.3g} where it was {first:.3g} at first: lower lr", saying
