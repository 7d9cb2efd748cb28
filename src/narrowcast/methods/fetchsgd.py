"""FetchSGD: clients send count sketches; momentum and error are sketches on the server, and steps are sparse.

u <- rho u + mean S v,  e <- e + lr u,  delta = top_k(estimate(e)),  theta <- theta - delta
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from narrowcast.methods.base import (
    Accumulator,
    Model,
    Private,
    RoundInfo,
    Where,
    finite,
    mean,
    only_block,
)
from narrowcast.methods.changes import Changes, ChangesServer
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.optimisers import SGD, State
from narrowcast.methods.topk import check_k, count
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.largest import largest
from narrowcast.numerics.sketch import MAX_COLUMNS, MAX_ROWS, CountSketch
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload

ABOUT = About(
    up="r c numbers: a sketch",
    down="the coordinates changed since the last visit, or all D",
    client="nothing",
    server="D numbers, when each changed, two sketches",
    formula="u <- rho u + S(v);  e <- e + lr u;  theta <- theta - top_k(estimate(e))",
    source="Rothchild et al. 2020",
    text="""
A count sketch `S` maps D numbers to r rows of c cells: in each row a coordinate falls into one cell with a
random sign, and the median over the rows of what its cells hold estimates it. `S` is linear, so the mean of
the clients' sketches is the sketch of their mean, and momentum and error are kept as sketches on the server:
`u <- rho u + mean_w S(v_w)`, `e <- e + lr u`, `delta = top_k(estimate(e))`, `theta <- theta - delta`. The
cells that `S(delta)` touches are then set to zero in both `e` and `u`, as the authors' code does; the paper
prints `e <- e - S(delta)`.

The difference matters. Coordinates that share the cell of their median have equal estimates x: if m of them
are chosen, the printed rule leaves x - m x in the cell, for m > 2 more than there was. With few columns for k
the error then grows by itself, without any gradient. At lr 0.4 the printed rule diverged in all settings we
tried but one; zeroing trained at the published one (lr 0.4, rho 0.9, k = D/130, 5 rows of D/20 columns).
Zeroing has its bounds too. With rho = 0.9 and lr 0.4 it diverged with a tenth of those columns, and with k =
D/650, and trained in both without momentum. To be safe: c at D/20 or more (the default with 5 rows), k at
D/130 or more, no rate that uncompressed training would not bear, and for less of either a lower rate or
`--momentum 0`. Tables: `studies/experiments/results/fetchsgd-stability.md`.
""",
)
_sketch = lru_cache(maxsize=64)(CountSketch)  # it holds no numbers, only settings


@dataclass(frozen=True)
class FetchSGD(Changes):
    """`printed`: subtract S(delta) from e and let u be, as the paper prints it, instead of zeroing cells."""

    name: ClassVar[str] = "fetchsgd"
    key: Key = 0
    k: int | None = None
    sketch_rows: int = 5
    sketch_columns: int | None = None
    momentum: float = 0.9
    uplink: str = "f32"
    printed: bool = False

    def __post_init__(self) -> None:
        check_k(self.k)
        formats.by_name(self.uplink)
        if not 1 <= self.sketch_rows <= MAX_ROWS or not 1 <= (self.sketch_columns or 1) <= MAX_COLUMNS:
            raise ValueError(
                f"a sketch has 1 to {MAX_ROWS} rows and 1 to {MAX_COLUMNS} columns, "
                f"got {self.sketch_rows} and {self.sketch_columns}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in 0 .. 1, below 1, got {self.momentum}")

    @property
    def linear(self) -> bool:
        return formats.by_name(self.uplink).exact

    @property
    def setting(self) -> str:
        c, k = (f"{letter}={n}" if n else "" for letter, n in (("c", self.sketch_columns), ("k", self.k)))
        return f"{c} {k}".strip()

    def sketch(self, D: int) -> CountSketch:
        """S, from the run's key; a quarter of D numbers unless the columns are given."""
        columns = self.sketch_columns or max(1, D // (4 * self.sketch_rows))
        return _sketch(D, self.sketch_rows, columns, keyed.derive(self.key, Purpose.SUBSPACE))

    def initial(self, theta0: Tensor) -> State:
        empty = torch.zeros(self.sketch(theta0.numel()).size)
        return {"momentum": empty, "error": empty}

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        return private, wire.payload([wire.block(self.sketch(v.numel()).sketch(v), self.uplink, key)])

    def upload_numbers(self, D: int) -> int:
        return self.sketch(D).size

    def zero(self, server: ChangesServer) -> Accumulator:
        return Accumulator(torch.zeros(1, self.sketch(server.weights.numel()).size))

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return 0, only_block(up).numbers(acc.total.shape[1])

    def delta(self, state: State, acc: Accumulator, D: int, round: RoundInfo) -> tuple[State, Tensor]:
        sketch = self.sketch(D)
        u = finite(state["momentum"] * self.momentum + mean(acc)[0])
        e = finite(state["error"] + u * round.rate)
        found = sketch.estimate(e)
        where = largest(found, count(self.k, D))  # coordinates whose medians lie in one cell are equal
        delta = torch.zeros(D).index_copy_(0, where, found[where])
        sent = sketch.sketch(delta)
        if self.printed:
            return {"momentum": u, "error": e - sent}, delta
        left = sent == 0
        return {"momentum": u * left, "error": e * left}, delta


ENTRY = Entry(FetchSGD, ABOUT, fixes={"optimiser": SGD()})  # its momentum is a sketch, and its own
