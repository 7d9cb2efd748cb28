"""Random masks: a client sends k coordinates of its update, at random places that both sides know.

send v_i for i in S,  S a fair set of k positions from the client's key;  the server adds (D/k) v_S
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import Accumulator, Model, Private, Where, only_block, own_route
from narrowcast.methods.changes import Changes
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.topk import check_k, count
from narrowcast.numerics import keyed
from narrowcast.numerics.kernels.subsets import subset
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="k values",
    down="the coordinates changed since the last visit, or all D",
    client="nothing",
    server="D numbers, and when each changed",
    formula="send v_S, S random from the key;  theta <- theta - lr mean((D/k) v_S)",
    source="Konecny et al. 2016, structured updates",
    text="""
In every round each client has a random set S of k positions of its own, from a key that both sides know, so
no positions are sent. The server adds `(D/k) v_S`, which is `v` on average: the estimate is unbiased, and its
error is `E|(D/k) v_S - v|^2 = (D/k - 1) |v|^2`, whatever v is. It is the simplest of the unbiased methods and
learns accordingly: the noise of a mean over W clients falls only as `D / (k W)`, so rates must be small.
Where W k is near D most coordinates change in every round, and the download is the whole model.
""",
)


@dataclass(frozen=True)
class RandomMask(Changes):
    name: ClassVar[str] = "random-mask"
    key: Key = 0
    k: int | None = None
    uplink: str = "f32"

    def __post_init__(self) -> None:
        check_k(self.k)
        formats.by_name(self.uplink)

    @property
    def linear(self) -> bool:
        return False  # every client has its own positions: payloads do not add up

    @property
    def setting(self) -> str:
        return f"k={self.k}" if self.k else ""

    def route(self, key: Key) -> int:
        return own_route(key)

    def positions(self, route: int, D: int) -> Tensor:
        """S: k positions below D, rising."""
        key = keyed.derive(self.key, Purpose.SUBSPACE, route)
        return torch.from_numpy(subset(D, keyed.words(key, Purpose.SAMPLE, 2 * count(self.k, D))))

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        route = self.route(key)
        values = v[self.positions(route, v.numel())]
        return private, wire.payload([wire.block(values, self.uplink, key)], route=route)

    def upload_numbers(self, D: int) -> int:
        return count(self.k, D)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        D = acc.total.shape[1]
        k = count(self.k, D)
        values = only_block(up).numbers(k)
        return (0, self.positions(up.route, D)), values * (D / k)


ENTRY = Entry(RandomMask, ABOUT)
