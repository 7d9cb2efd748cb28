"""Local Top-K: each client sends the k largest coordinates of its update, and keeps the rest for next time.

x = v + error,  send x on the k places where |x| is largest,  error <- x - what was sent
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where, blocks
from narrowcast.methods.changes import Changes
from narrowcast.methods.entry import About, Entry
from narrowcast.numerics.keyed import Key
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import sparse
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="k values and their positions",
    down="the coordinates changed since the last visit, or all D",
    client="D numbers of error",
    server="D numbers, and when each changed",
    formula="send top_k(v + e);  e <- v + e - sent",
    source="Aji and Heafield 2017; error feedback: Stich et al. 2018",
    text="""
Client i keeps an error `e_i`, zero at first. With `x = v + e_i` it sends the k coordinates of largest size,
`s_i = top_k(x)`, and keeps `e_i <- x - s_i`, so nothing is lost: sent + kept = update + kept before. The
server steps on the mean of the `s_i`. The error stands in units of v, so the rate of the round in which it
is finally sent applies to it. Without error feedback (`--no-error-feedback`) what is not sent is forgotten.
""",
)


@dataclass(frozen=True)
class TopK(Changes):
    name: ClassVar[str] = "topk"
    k: int | None = None
    error_feedback: bool = True
    uplink: str = "f32"

    def __post_init__(self) -> None:
        check_k(self.k)
        formats.by_name(self.uplink)

    @property
    def linear(self) -> bool:
        return False

    @property
    def stateful(self) -> bool:
        return self.error_feedback

    @property
    def setting(self) -> str:
        return f"k={self.k}" if self.k else ""

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        x = v + private["error"] if private else v
        packed, where, sent = sparse.pack_largest(x, count(self.k, v.numel()), self.uplink, key)
        if self.error_feedback:  # where it was sent, what rounding kept back: nothing for f32
            private = {"error": x.index_copy(0, where, x[where] - sent)}
        return private, wire.payload(packed)

    def upload_numbers(self, D: int) -> int:
        return count(self.k, D)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return sparse_terms(acc, up, count(self.k, acc.total.shape[1]))


def check_k(k: int | None) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def count(k: int | None, D: int) -> int:
    """How many of D coordinates are sent: k, or one in a hundred."""
    return min(k or max(1, D // 100), D)


def sparse_terms(acc: Accumulator, up: Payload, k: int) -> tuple[Where, Tensor]:
    """The terms of an upload of k positions and values."""
    positions, values = blocks(up, 2)
    where, numbers = sparse.read(positions, values, acc.total.shape[1], k)
    return (0, where), numbers


ENTRY = Entry(TopK, ABOUT)
