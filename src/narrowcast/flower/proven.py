"""The last model of a run that is known to be usable, to which a round that spoilt it goes back."""

from __future__ import annotations

from collections.abc import Mapping

from narrowcast.errors import Diverged
from narrowcast.methods.base import Server

FAILURES = 3  # roll-backs in a row: the next would be one too many, and ends the run


class Proven:
    """Clients trained from it, or it was evaluated; `counted` are those whose updates are in it, and when."""

    def __init__(self, server: Server, counted: Mapping[int, int]) -> None:
        self.server, self.counted = server, dict(counted)
        self.failed = 0  # roll-backs to it, in a row

    def now(self, server: Server, counted: Mapping[int, int]) -> None:
        """This one, from here on."""
        if server is not self.server:
            self.server, self.counted, self.failed = server, dict(counted), 0

    def fall_back(self, error: Diverged) -> None:
        """One roll-back more; Diverged, where so many have not helped."""
        self.failed += 1
        if self.failed > FAILURES:
            version = self.server.version
            kept = f": its last good model, of version {version}, is kept" if version else ""
            raise Diverged(
                f"{error} (the model was taken back {FAILURES} times in a row, and it did not help{kept})"
            ) from None
