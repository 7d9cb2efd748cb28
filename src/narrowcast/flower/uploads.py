"""The uploads of a round at the server: checked as they come, added in the order of the clients' numbers.

What is kept of an upload until then is its payload, still encoded: it is no longer than the method can need,
and decoded it may be thirty times that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from narrowcast.aggregates.base import Aggregate
from narrowcast.flower.messages import Upload
from narrowcast.methods.base import Accumulator, Method
from narrowcast.numerics.process import own_settings
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.norms import NormBound
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import Payload, WireError

OVERHEAD = 1024  # bytes of an answer, and of each upload in it, beside the core's messages
MAX_LOSS = 2.0**128  # beyond every float32: sums of these stay finite
Drop = Callable[[str, list[int], str], None]  # (why, who, in detail)


@dataclass(frozen=True)
class Update:
    """What is known of an upload that was found right."""

    payload: Payload
    norm: float
    loss: float
    lost: bool


class Uploads:
    """Those of one round. `weights` has the clients that were asked, and what each of them must weigh."""

    def __init__(
        self,
        method: Method[Any],
        aggregate: Aggregate,
        acc: Accumulator,
        round: Round,
        weights: Mapping[int, int],
        D: int,
        drop: Drop,
    ) -> None:
        self.method, self.aggregate, self.acc = method, aggregate, acc
        self.round, self.weights, self.drop = round, weights, drop
        self.bound = OVERHEAD + method.upload_bound(D)  # bytes of one
        self.bytes = self.lost = 0
        self.losses = 0.0  # summed by weight
        self.said: dict[int, float] = {}  # client -> its loss, of those counted
        self.counted: list[int] = []  # in the order of their numbers
        self._updates: dict[int, Update] = {}
        self._not_finite: set[int] = set()
        self._refused = 0

    @property
    def ruined(self) -> set[int]:
        """Who sent an update that is none of numbers, where all did: the model has left all bounds."""
        return set() if self._updates or len(self._not_finite) < self._refused else self._not_finite

    def take(self, uploads: list[Upload], clients: list[int]) -> list[int]:
        """Check what a node sent for these of its clients; who of them sent nothing."""
        if len(uploads) > len(clients):
            raise WireError(f"{len(uploads)} uploads of {len(clients)} clients")
        heard = set[int]()
        for upload in uploads:
            if upload.client not in clients or upload.client in heard:
                continue
            heard.add(upload.client)
            self.bytes += len(upload.data)
            try:
                self._updates[upload.client] = self._read(upload)
            except (WireError, FormatError) as error:
                self._refused += 1
                self.drop("refused", [upload.client], str(error))
        return sorted(set(clients) - heard)

    @own_settings()
    def _read(self, upload: Upload) -> Update:
        if not upload.data or not abs(upload.loss) <= MAX_LOSS:
            self._not_finite.add(upload.client)
            raise WireError(upload.why or f"its loss is {upload.loss}")
        if len(upload.data) > self.bound:
            raise WireError(f"{len(upload.data)} bytes: an update of this method takes at most {self.bound}")
        client = upload.client
        message = exchange.check_up(self.method, upload.data, self.round, client, self.weights[client])
        norm = self.method.norm(self.acc, message.payload)
        return Update(message.payload, norm, upload.loss, upload.lost)

    @own_settings()
    def added(self, norms: NormBound, max_weight: float) -> Accumulator:
        """Their sum; an update whose norm is out of all proportion has no say in it."""
        acc, limit = self.acc, norms.limit([update.norm for update in self._updates.values()])
        for client, update in sorted(self._updates.items()):
            weight = min(self.weights[client], max_weight)
            try:
                if update.norm > limit:
                    raise WireError(f"its norm is {update.norm:.3g}, others of late are below {limit:.3g}")
                acc = self.aggregate.add(self.method, acc, update.payload, weight)
            except WireError as error:
                self.drop("refused", [client], str(error))
                continue
            self.counted.append(client)
            self.losses += weight * update.loss
            self.said[client] = update.loss
            self.lost += update.lost
        norms.learn([update.norm for update in self._updates.values()], limit)
        return acc
