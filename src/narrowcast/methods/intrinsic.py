"""Intrinsic gradient compression: static, K-subspace, time-varying, and the combination, in one piece.

The model is theta = base_e + sum_k A_{e,k} Sigma_{e,k}: stage e has K subspaces of dimension d, base_e is
theta0 with every finished stage folded in. A client uploads A_{e,k}^T v for one k; the server steps on Sigma
and sends Sigma. K = 1 and one stage is `static`; a new stage every epoch (or every N rounds) is
`time-varying`; K > 1 is `k-subspace`; both together are the combination.

Both sides compute theta afresh from base and Sigma, in the same order, so they agree bit for bit. A client
that knows stage e needs Sigma_e only; one that is m stages behind needs the m finished Sigmas too, or base
itself where that is smaller. With few bits a number (`up_bits`, `down_bits`) uploads are dithered on a
lattice, and Sigma is what was published of it, points of one; the optimiser goes on from what it had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast import choices
from narrowcast.methods import stages
from narrowcast.methods.base import (
    DENSE,
    LOG,
    Accumulator,
    Method,
    Model,
    Private,
    RoundInfo,
    Where,
    finite,
    mean,
    only_block,
)  # fmt: skip
from narrowcast.methods.downlinks import AsNumbers, Downlink, OnLattice
from narrowcast.methods.logs import Log
from narrowcast.methods.optimisers import SGD, Optimiser
from narrowcast.methods.stages import IntrinsicServer
from narrowcast.methods.uplinks import Uplink, check_format
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.subspaces.base import Subspace, add_family
from narrowcast.subspaces.table import KINDS, remembered
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes.lattice import PLAIN_BITS
from narrowcast.wire.messages import Block, Payload, WireError

MAX_SUBSPACES = 4096
CHANGE = 2  # a kind of download: the log, whose first Sigma is a change from what the client has


@dataclass(frozen=True)
class Intrinsic(Method[IntrinsicServer]):
    """`refresh`: 0 never changes A, "epoch" changes it after every epoch, N after every N rounds.
    `unbiased` is the paper's convention, theta -= lr A A^T v. The default steps along an orthonormal basis,
    theta -= lr (d/D) A A^T v, so that rates compare with those of uncompressed training.
    """

    name: ClassVar[str] = "intrinsic"
    vectors: ClassVar[bool] = True
    key: Key = 0
    dim: int = 1024
    subspaces: int = 1
    refresh: str | int = 0
    subspace: str = "rotation"
    optimiser: Optimiser = field(default_factory=SGD)
    carry: bool = False
    unbiased: bool = False
    uplink: str = "f32"
    downlink: str = "f32"
    up_bits: float = PLAIN_BITS
    down_bits: float = PLAIN_BITS

    def __post_init__(self) -> None:
        if self.dim < 1 or not 1 <= self.subspaces <= MAX_SUBSPACES:
            raise ValueError(
                f"need dim >= 1 and 1 <= subspaces <= {MAX_SUBSPACES}, got {self.dim}, {self.subspaces}"
            )
        if self.refresh != "epoch" and not (isinstance(self.refresh, int) and self.refresh >= 0):
            raise ValueError(
                f'refresh must be "epoch" or a number of rounds (0: never), got {self.refresh!r}'
            )
        KINDS.check(self.subspace)
        formats.by_name(self.uplink)
        choices.check("downlink", self.downlink, choices.DOWNLINKS)
        check_format("up", self.uplink, self.up_bits)
        check_format("down", self.downlink, self.down_bits)

    @property
    def linear(self) -> bool:
        return self.up.exact

    @property
    def on_device(self) -> bool:
        return KINDS.find(self.subspace).on_device

    @property
    def incomparable(self) -> str:
        return self.up.incomparable

    @property
    def up(self) -> Uplink:
        """How A^T v goes up."""
        return Uplink(self.uplink, self.up_bits)

    @property
    def down(self) -> Downlink:
        """How Sigma goes down."""
        return AsNumbers(self.downlink) if self.down_bits == PLAIN_BITS else OnLattice(self.down_bits)

    @property
    def setting(self) -> str:
        narrow = min(self.up_bits, self.down_bits) < PLAIN_BITS
        return f"d={self.dim}" + (f" {self.up_bits:g}/{self.down_bits:g} bits" if narrow else "")

    def matrix(self, D: int, stage: int, k: int) -> Subspace:
        """A_{stage,k}: its key comes from the run's key, nothing else."""
        return remembered(self.subspace, D, self.dim, keyed.derive(self.key, Purpose.SUBSPACE, stage, k))

    def server(self, theta0: Tensor, layout: Layout) -> IntrinsicServer:
        D = theta0.numel()
        if refused := self._refused(D):
            raise ValueError(f"{refused}: choose a smaller --dim")
        if self.down_bits != PLAIN_BITS and self._model_is_smaller(D):
            raise ValueError(
                f"{self.subspaces} subspaces of {self.dim} numbers with {self.down_bits:g} bits take more "
                f"than the model of {D} parameters: choose a smaller --dim or --subspaces"
            )
        if not wire.fits(least := math.ceil(min(4 * D, self.down.size(self.subspaces * self.dim)))):
            raise ValueError(
                f"{self.subspaces} subspaces of {self.dim} numbers take {least} bytes down, and a block has "
                f"at most {wire.MAX_DATA}: choose a smaller --dim or --subspaces"
            )
        zero = torch.zeros(self.subspaces, self.dim)
        trail = self.down.start(zero.numel())
        return IntrinsicServer(0, theta0, zero, zero, Log(), 0, self.optimiser.init(zero), trail)

    def _model_is_smaller(self, D: int) -> bool:
        """Than K Sigmas: then everybody is sent that, and needs neither base nor log."""
        return self.down.size(self.subspaces * self.dim) > 4 * D

    def _refused(self, D: int) -> str:
        """Why there is no such subspace. A file or a message may ask for it: few bytes, and 2^32 numbers."""
        return f"dim {self.dim} exceeds the model's {D} parameters" if self.dim > D else ""

    def theta(self, server: IntrinsicServer, out: Tensor | None = None) -> Tensor:
        return self._expand(server.base, server.stage, server.sigma, out)

    def _expand(self, base: Tensor, stage: int, sigma: Tensor, out: Tensor | None = None) -> Tensor:
        """base + A_1 sigma_1 + ... + A_K sigma_K, added in this order on both sides."""
        family = [self.matrix(base.numel(), stage, k) for k in range(self.subspaces)]
        return add_family(family, base, sigma, out)

    def side(self, server: IntrinsicServer) -> Tensor | None:
        return self.down.side(server.sigma)

    def newcomer(self, theta0: Tensor, layout: Layout | None = None) -> Model:
        D = theta0.numel()
        none = self._refused(D) or self._model_is_smaller(D)  # reconcile says so, or needs no Sigma
        few = 0 if none else self.subspaces * self.dim
        return Model(None, 0, theta0, layout, self.down.side(torch.zeros(few)))

    def lag(self, server: IntrinsicServer, have: int | None) -> tuple[int, int | None]:
        """(stages that the client lacks, the version it is at), as far as they make a difference."""
        if self._model_is_smaller(server.base.numel()):
            return 0, None
        lag = server.log.lacking(have, server.version)
        known = server.trail is not None and have is not None and server.trail.find(have, server.stage - lag)
        return lag, have if known else None

    def download(self, server: IntrinsicServer, have: int | None) -> Payload:
        if self._model_is_smaller(server.base.numel()):
            return wire.payload([wire.block(self.theta(server))], kind=DENSE, stage=server.stage)
        lag, known = self.lag(server, have)
        kind, current = LOG, self.down.whole(server.trail, server.sigma)
        blocks = [*server.log.last(lag), current]
        change = self.down.change(server.trail, known, server.stage - lag)
        if change is not None and len(change.data) < len(blocks[0].data):
            kind, blocks = CHANGE, [change, *blocks[1:]]
        dense = wire.whole_size(server.base.numel()) + wire.blocks_size([len(current.data)])
        if not server.log.has(lag) or wire.blocks_size([len(b.data) for b in blocks]) > dense:
            kind, blocks = DENSE, [wire.block(server.base), current]
        return wire.payload(blocks, kind=kind, stage=server.stage)

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        stage, base, blocks = down.stage, model.base, down.blocks
        if refused := self._refused(base.numel()):
            raise WireError(refused)
        if self._model_is_smaller(base.numel()):
            if down.kind != DENSE or len(blocks) != 1:
                raise WireError(
                    f"K Sigmas are larger than the model, and {len(blocks)} blocks are not the model"
                )
            theta = blocks[0].numbers(base.numel()).to(base.device)
            theta = theta if out is None else out.copy_(theta)
            return replace(model, version=version, stage=stage), theta
        kinds = (LOG,) if model.side is None else (LOG, CHANGE)
        if down.kind == DENSE and len(blocks) == 2:
            base, blocks = blocks[0].numbers(base.numel()).to(base.device), blocks[1:]
        elif down.kind not in kinds or not blocks or len(blocks) != stage - model.stage + 1:
            raise WireError(
                f"a client at stage {model.stage} cannot use {len(blocks)} blocks of kind {down.kind} for "
                f"stage {stage}: it must ask again as a newcomer"
            )
        before = model.side if down.kind == CHANGE else None
        *finished, sigma = [self._sigma(b, None if i else before) for i, b in enumerate(blocks)]
        for e, final in enumerate(finished, model.stage):
            base = self._expand(base, e, final)
        model = replace(model, version=version, stage=stage, base=base, side=self.down.side(sigma))
        return model, self._expand(base, stage, sigma, out)

    def _sigma(self, block: Block, before: Tensor | None = None) -> Tensor:
        """(K, d) from its bytes."""
        return self.down.read(block, self.subspaces * self.dim, before).view(self.subspaces, self.dim)

    def route(self, key: Key) -> int:
        return keyed.below(key, self.subspaces)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        return private, self.compress_many(v[None], model, [key])[0]

    def compress_many(self, vs: Tensor, model: Model, keys: Sequence[Key]) -> list[Payload]:
        """One pass over the updates of each subspace."""
        routes, xs = [self.route(key) for key in keys], torch.empty(len(keys), self.dim)
        for k in set(routes):
            rows = [i for i, route in enumerate(routes) if route == k]
            A = self.matrix(vs.shape[1], model.stage, k)
            xs[rows] = A.project_many(vs if len(rows) == len(vs) else vs[rows])
        return [
            wire.payload([self.up.block(x, key)], stage=model.stage, route=k, key=key)
            for x, k, key in zip(xs, routes, keys, strict=True)
        ]

    def upload_numbers(self, D: int) -> int:
        return self.dim

    def zero(self, server: IntrinsicServer) -> Accumulator:
        return Accumulator(torch.zeros_like(server.sigma), stage=server.stage)

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        k = up.route
        if up.stage != acc.stage or k >= self.subspaces:
            raise WireError(f"an update for stage {up.stage}, subspace {k}: the round is at {acc.stage}")
        return k, self.up.read(only_block(up), self.dim, up.key)

    def step(self, server: IntrinsicServer, acc: Accumulator, round: RoundInfo) -> IntrinsicServer:
        if acc.weight == 0:
            return server
        # On orthonormal coordinates Q = s A the gradient is s A^T v, and Sigma moves by s times their step.
        s = 1.0 if self.unbiased else math.sqrt(self.dim / server.base.numel())
        state, delta = self.optimiser.step(server.optimiser, mean(acc) * s, round.rate)
        exact = finite(server.exact - delta * s)
        version = server.version + 1
        trail, sigma = self.down.publish(server.trail, exact, version, server.stage, round)
        server = replace(server, version=version, exact=exact, sigma=sigma, optimiser=state, trail=trail)
        return self._fold(server, round) if server.due(self.refresh, round) else server

    def _fold(self, server: IntrinsicServer, round: RoundInfo) -> IntrinsicServer:
        """Finish a stage: base takes A Sigma in, the log takes Sigma, new coordinates start at zero."""
        zero = torch.zeros_like(server.exact)
        state = self.optimiser.init(zero)
        if self.carry:
            state = self.optimiser.carry(server.optimiser, lambda m: self._move(m, server))
        return replace(
            server,
            base=finite(self.theta(server)),
            exact=zero,
            sigma=zero,
            log=server.log.followed_by(
                self.down.whole(server.trail, server.sigma), server.version, server.base.numel()
            ),
            epoch=round.epoch + round.epoch_end,
            optimiser=state,
            trail=self.down.restart(server.trail, server.version, server.stage + 1),
        )

    def _move(self, m: Tensor, server: IntrinsicServer) -> Tensor:
        """A vector on the old coordinates, in the new ones: (d/D) A_new^T A_old m."""
        D = server.base.numel()
        moved = self._expand(torch.zeros_like(server.base), server.stage, m)
        new = [self.matrix(D, server.stage + 1, k).project(moved) for k in range(self.subspaces)]
        return torch.stack(new) * (self.dim / D)

    def state(self, server: IntrinsicServer) -> dict[str, Any]:
        return server.state(self.down)

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> IntrinsicServer:
        return stages.restored(
            state, theta0, self.down, lambda base, e, final: self._expand(base, e, self._sigma(final))
        )
