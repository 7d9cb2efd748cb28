"""The downloads of a round: each distinct one is encoded once, every one that is sent is counted."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from narrowcast.methods.base import Method, Server
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.records import RoundRecord


class Downloads:
    """What clients are sent in a round, by the version they have."""

    def __init__(self, method: Method[Any], server: Server, round: Round, record: RoundRecord) -> None:
        self.method, self.server, self.round, self.record = method, server, round, record
        self._made: dict[Hashable, tuple[bytes, bool]] = {}  # by lag: (message, is it a fallback?)

    def message(self, have: int | None) -> bytes:
        """What a client at this version lacks, encoded; None: a newcomer."""
        return self._lacking(have)[0]

    def send(self, have: int | None, theta0: bytes = b"", clients: int = 1) -> bytes:
        """The same, counted as sent to so many; with it went theta0, where they had another."""
        data, fallback = self._lacking(have)
        size = clients * (len(data) + len(theta0))
        self.record.down += size
        self.record.down_first += size if have is None else 0
        dense = clients * (len(theta0) + (len(data) if fallback else 0))
        self.record.down_dense += dense
        if have is not None:
            self.record.down_dense_again += dense
            self.record.down_catch_up += 0 if fallback else clients * max(0, len(data) - self._present())
        return data

    def _present(self) -> int:
        """Bytes of the download of a client that was here at the last step."""
        return len(self.message(self.server.version))

    def _lacking(self, have: int | None) -> tuple[bytes, bool]:
        lag = self.method.lag(self.server, have)
        if lag not in self._made:
            data = exchange.send_down(self.method, self.server, self.round, have)
            self._made[lag] = data, exchange.is_fallback(self.method, data)
        return self._made[lag]
