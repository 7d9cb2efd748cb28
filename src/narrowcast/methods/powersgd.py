"""PowerSGD in one trip a round: power iteration across rounds, on the clients' mean matrix of each parameter.

A round has an orthonormal basis of each matrix on one side, which everyone knows. On the right, Q (m, r):
clients send M_w Q (n, r), whose mean P gives the step P Q^T, and orth(P) is the basis on the left of the next
round, in which clients send M_w^T P (m, r), and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast import choices
from narrowcast.methods.base import (
    Accumulator,
    Model,
    Private,
    RoundInfo,
    Where,
    finite,
    mean,
    only_block,
)  # fmt: skip
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.matrices import Matrix, matrices
from narrowcast.methods.optimisers import State
from narrowcast.methods.replay import Replay, ReplayServer, Step
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.kernels.gram_schmidt import orthonormal
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload, WireError

ABOUT = About(
    up="n r or m r numbers of an n x m matrix in turn; vectors whole",
    down="as much for every step missed; or all D numbers and the bases",
    client="D numbers of error",
    server="D numbers, the bases, the last steps",
    formula="M = v + e;  send P = M Q;  e <- M - P Q^T;  theta <- theta - lr mean(P) Q^T;  then orth(P)",
    source="Vogels et al. 2019, here with one trip a round",
    text="""
Every parameter is a matrix `M` (n, m) (first dimension by the rest). The published method needs two trips a
step, `P = M Q` and then `Q = M^T orth(P)`; a federated round has one, so ours takes them in turn. In even
rounds everyone knows an orthonormal `Q` (m, r): clients send `P_w = M_w Q`, the step is `mean(P) Q^T`, and
`P = orth(mean(P))` is the basis of the next, odd round, in which they send `M_w^T P`. This is power iteration
across rounds, and linear in M. Vectors, and matrices whose smaller dimension is no more than r, are sent
whole. Client w keeps what its projection lost, `M_w = v + e_w`, `e_w <- M_w - P_w Q^T`
(`--no-error-feedback` forgets it). The server takes plain steps: momentum would not be of low rank. Known to
work well at ranks 1 to 4 where workers are few and alike. With many clients that come seldom the errors wait
for an epoch, and are then sent through a basis that has moved on.
""",
)
BOUND = 1.001  # of a number in an orthonormal basis


@dataclass(frozen=True)
class PowerSGD(Replay):
    """`Model.side` holds both bases of every matrix, left (n, r) and right (m, r); the last made is in use.

    `Model.stage` is the version: where it is even the basis on the right is in use.
    """

    name: ClassVar[str] = "powersgd"
    key: Key = 0
    rank: int = 2
    error_feedback: bool = True
    uplink: str = "f32"
    downlink: str = "f32"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        formats.by_name(self.uplink)
        choices.check("downlink", self.downlink, choices.DOWNLINKS)

    @property
    def linear(self) -> bool:
        return formats.by_name(self.uplink).exact

    @property
    def stateful(self) -> bool:
        return self.error_feedback

    @property
    def setting(self) -> str:
        return f"r={self.rank}"

    def newcomer(self, theta0: Tensor, layout: Layout | None = None) -> Model:
        bases = []
        for i, matrix in enumerate(matrices(layout, theta0.numel())):
            for side, dimension in enumerate((matrix.rows, matrix.columns) if self._low(matrix) else ()):
                z = keyed.normals(
                    keyed.derive(self.key, Purpose.SUBSPACE, i, side), Purpose.NORMALS, dimension * self.rank
                )
                bases.append(_orthonormal(torch.from_numpy(z).view(dimension, self.rank)))
        return Model(None, 0, theta0, layout, _flat(bases))

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        model, theta = super().reconcile(model, down, version, out)
        side = _side(model)
        if side.numel() and side.abs().max() > BOUND:
            raise WireError(f"a basis has a number beyond {BOUND}")
        return replace(model, stage=version), theta

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> ReplayServer:
        server = super().restore(theta0, layout, state)
        return replace(server, model=replace(server.model, stage=server.version))

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        x = v + private["error"] if private else v
        block = wire.block(self._project(x, model), self.uplink, key)
        if self.error_feedback:
            private = {"error": self._minus(x, block.numbers(self._count(model)), model)[0]}
        return private, wire.payload([block])

    def zero(self, server: ReplayServer) -> Accumulator:
        return Accumulator(torch.zeros(1, self._count(server.model)))

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        return 0, only_block(up).numbers(acc.total.shape[1])

    def make(self, server: ReplayServer, acc: Accumulator, round: RoundInfo) -> tuple[State, Step]:
        return {}, (wire.block(finite(mean(acc)[0] * round.rate), self.downlink),)

    def take(self, model: Model, step: Step) -> Model:
        base, factors = self._minus(model.base, step[0].numbers(self._count(model)), model)
        bases, found = [], iter(factors)
        for left, right in self._bases(model):
            if _right(model):
                left = _orthonormal(next(found), left)
            else:
                right = _orthonormal(next(found), right)
            bases += [left, right]
        return replace(model, base=base, side=_flat(bases), stage=model.stage + 1)

    def _low(self, matrix: Matrix) -> bool:
        """Whether a factor is smaller than the matrix, on either side."""
        return self.rank < min(matrix.rows, matrix.columns)

    def _count(self, model: Model) -> int:
        """Numbers in an upload, and in a step."""
        return sum(
            (m.rows if _right(model) else m.columns) * self.rank if self._low(m) else m.size
            for m in _matrices(model)
        )

    def _bases(self, model: Model) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of every matrix of low rank."""
        low = [m for m in _matrices(model) if self._low(m)]
        sizes = [n * self.rank for m in low for n in (m.rows, m.columns)]
        parts = iter(torch.split(_side(model), sizes))
        return [(next(parts).view(m.rows, self.rank), next(parts).view(m.columns, self.rank)) for m in low]

    def _project(self, x: Tensor, model: Model) -> Tensor:
        """What is sent of x: M Q or M^T P of every matrix, or all of it."""
        bases, parts = iter(self._bases(model)), []
        for matrix in _matrices(model):
            M = matrix.of(x)
            if self._low(matrix):
                left, right = next(bases)
                M = M @ right if _right(model) else M.T @ left
            parts.append(M.reshape(-1))
        return torch.cat(parts)

    def _minus(self, x: Tensor, numbers: Tensor, model: Model) -> tuple[Tensor, list[Tensor]]:
        """(x - P Q^T, the factors P), by their numbers: rank by rank, which rounds alike everywhere."""
        out, bases, factors, at = x.clone(), iter(self._bases(model)), [], 0
        for matrix in _matrices(model):
            M = matrix.of(out)
            if not self._low(matrix):
                M -= numbers[at : at + matrix.size].view_as(M)
                at += matrix.size
                continue
            left, right = next(bases)
            size = (matrix.rows if _right(model) else matrix.columns) * self.rank
            factor = numbers[at : at + size].view(-1, self.rank)
            at += size
            left, right = (factor, right) if _right(model) else (left, factor)
            for j in range(self.rank):
                M -= torch.outer(left[:, j], right[:, j])
            factors.append(factor)
        return out, factors


def _right(model: Model) -> bool:
    """Whether the basis on the right is in use, and factors on the left are sent."""
    return model.stage % 2 == 0


def _matrices(model: Model) -> list[Matrix]:
    return matrices(model.layout, model.base.numel())


def _side(model: Model) -> Tensor:
    if model.side is None:
        raise ValueError("a model of powersgd has its bases beside it: make it with `newcomer`")
    return model.side


def _orthonormal(P: Tensor, spare: Tensor | None = None) -> Tensor:
    spare = torch.zeros_like(P) if spare is None else spare
    return torch.from_numpy(orthonormal(P.contiguous().numpy(), spare.contiguous().numpy()))


def _flat(bases: list[Tensor]) -> Tensor:
    return torch.cat([b.reshape(-1) for b in bases]) if bases else torch.zeros(0)


ENTRY = Entry(PowerSGD, ABOUT)
