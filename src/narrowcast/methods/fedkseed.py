"""FedKSeed: no gradients. The model moves along K seeded directions, and a client sends slopes of its loss.

theta = theta0 + sum_j s_j z_j,  s_j <- s_j - lr mean over clients of (1/n) sum of its slopes along z_j
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from narrowcast.errors import Diverged
from narrowcast.methods.base import (
    LOG,
    MAX_NUMBER,
    Accumulator,
    Directions,
    Method,
    Model,
    Private,
    RoundInfo,
    Server,
    Where,
    mean,
    only_block,
    own_route,
)
from narrowcast.methods.entry import About, Entry
from narrowcast.methods.optimisers import SGD, Optimiser, State
from narrowcast.numerics import keyed, pool
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.kernels import seeds as kernels
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Payload, WireError

ABOUT = About(
    up="n slopes, one a local step",
    down="K numbers",
    client="nothing",
    server="K numbers, theta0",
    formula="theta = theta0 + sum_j s_j z_j;  s_j <- s_j - lr mean_w (1/n) sum_{i: j_i = j} z_j . v_w",
    source="after FedKSeed: Qin et al. 2024; MeZO: Malladi et al. 2023",
    text="""
The model moves along K directions `z_j` of random signs, regenerated from the run's key: `theta = theta0 +
sum_j s_j z_j`. No gradient is taken. For each of n local steps a client takes its loss twice, at `theta +-
epsilon z`, and sends the slope `(above - below) / (2 epsilon)`, which is `z . v` up to `epsilon^2`; which
`z_j` follows from a key that both sides know, so an upload is n numbers. Between steps it walks on by
`local_lr slope z`. The server adds each client's slopes up by direction, divides by n, and steps on the mean:
`s_j <- s_j - lr mean_w (1/n) sum_{i: j_i = j} slope_i`. A download is the K numbers of `s`, whatever the
client has.

`(1/n) sum z z^T v` is an unbiased estimate of v, so `--lr` is in the units of uncompressed training. But its
variance is about `|v|^2 / n` in every coordinate, and W clients divide it by W only, so far lower rates are
needed: begin near 0.001. The walk of one client is averaged with nobody's and is the first to blow up: on
digits (25 clients a round, n = 4) lr 0.003 diverged in round 18, and with `--local-lr 1e-7`, which keeps all
probes at theta, it did not in 40 rounds. In FedKSeed clients walk hundreds of steps and the server adds the
walks up; here it takes their mean, so that more steps make a better estimate and not a longer one. Known from
fine-tuning; from scratch it is slow: 240 rounds of digits at lr 0.001, n = 8 gave 0.54 where uncompressed
training gave 0.99.
""",
)
MAX_STEPS = 1024  # slopes in an upload
MAX_DIRECTIONS = 1 << 16


@dataclass(frozen=True)
class Seeds:
    """The K directions z_j of random signs: theirs is the key alone, nothing is stored."""

    key: Key
    count: int
    epsilon: float = 1e-3

    def of(self, route: int, steps: int) -> list[int]:
        """Which directions a client on this route probes: one a step."""
        return [self._at(route, step) for step in range(steps)]

    def _at(self, route: int, step: int) -> int:
        return keyed.below(keyed.derive(route, Purpose.SUBSPACE, step), self.count)

    def add(self, theta: Tensor, key: Key, step: int, scale: float) -> None:
        """theta += scale z_j in place, j the direction of this step of the client with this key."""
        j = self._at(own_route(key), step)
        strips = -(-theta.numel() // kernels.STRIP)
        with np.errstate(over="ignore"):  # the loss will show it
            s = np.float32(scale)
        pool.run(kernels.add_strips, strips, theta.numpy(), j, s, *keyed.split(self.key), grain=64)

    def expand(self, base: Tensor, s: Tensor, out: Tensor | None = None) -> Tensor:
        """base + sum_j s_j z_j, (D,), (K,) -> (D,): summed in the order of j, for any number of threads."""
        out = torch.empty_like(base) if out is None else out
        used = np.flatnonzero(s.numpy())  # directions nobody has probed yet cost nothing
        strips = -(-base.numel() // kernels.STRIP)
        words = keyed.split(self.key)
        pool.run(kernels.expand_strips, strips, out.numpy(), base.numpy(), used, s.numpy()[used], *words)
        return out


@dataclass(frozen=True)
class SeedsServer(Server):
    version: int
    base: Tensor  # (D,) theta0
    s: Tensor  # (K,)
    optimiser: State


@dataclass(frozen=True)
class FedKSeed(Method[SeedsServer]):
    name: ClassVar[str] = "fedkseed"
    local_steps: ClassVar[int] = 4  # more cost no bytes to speak of, but two forward passes each
    stride: ClassVar[float] = 0.01
    key: Key = 0
    directions: int = 1024
    epsilon: float = 1e-3
    optimiser: Optimiser = field(default_factory=SGD)

    def __post_init__(self) -> None:
        if not 1 <= self.directions <= MAX_DIRECTIONS:
            raise ValueError(f"need 1 <= directions <= {MAX_DIRECTIONS}, got {self.directions}")
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon must be positive and at most 1, got {self.epsilon}")

    @property
    def linear(self) -> bool:
        return False  # every client has directions of its own

    @property
    def probes(self) -> Directions:
        return self._seeds

    @property
    def _seeds(self) -> Seeds:
        return Seeds(keyed.derive(self.key, Purpose.SUBSPACE), self.directions, self.epsilon)

    @property
    def setting(self) -> str:
        return f"K={self.directions}"

    def server(self, theta0: Tensor, layout: Layout) -> SeedsServer:
        s = torch.zeros(self.directions)
        return SeedsServer(0, theta0, s, self.optimiser.init(s))

    def theta(self, server: SeedsServer, out: Tensor | None = None) -> Tensor:
        return self._seeds.expand(server.base, server.s, out)

    def lag(self, server: SeedsServer, have: int | None) -> int:
        return 0

    def download(self, server: SeedsServer, have: int | None) -> Payload:
        return wire.payload([wire.block(server.s)], kind=LOG)

    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        if down.kind != LOG or len(down.blocks) != 1:
            raise WireError(
                f"expected {self.directions} numbers in one block, got kind {down.kind}, "
                f"{len(down.blocks)} blocks"
            )
        s = down.blocks[0].numbers(self.directions)
        return replace(model, version=version), self._seeds.expand(model.base, s, out)

    def route(self, key: Key) -> int:
        return own_route(key)

    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        if v.dim() != 1 or not 1 <= v.numel() <= MAX_STEPS:
            raise ValueError(f"expected 1 to {MAX_STEPS} slopes, one a local step, got {tuple(v.shape)}")
        return private, wire.payload([wire.block(v)], route=self.route(key))

    def upload_numbers(self, D: int) -> int:
        return MAX_STEPS

    def zero(self, server: SeedsServer) -> Accumulator:
        return Accumulator(torch.zeros(1, self.directions))

    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        """The mean of the client's slopes, each at its direction: it has one say, however many it sends."""
        block = only_block(up)
        steps = len(block.data) // 4
        if block.format != 0 or not 1 <= steps <= MAX_STEPS:
            raise WireError(f"expected 1 to {MAX_STEPS} slopes as f32, got {len(block.data)} bytes")
        slopes = block.numbers(steps)
        where = torch.tensor(self._seeds.of(up.route, steps))
        return 0, torch.zeros(self.directions).index_add_(0, where, slopes / steps)

    def step(self, server: SeedsServer, acc: Accumulator, round: RoundInfo) -> SeedsServer:
        if acc.weight == 0:
            return server
        state, delta = self.optimiser.step(server.optimiser, mean(acc)[0], round.rate)
        s = server.s - delta
        if not server.base.abs().max() + s.abs().sum() <= MAX_NUMBER:  # no coordinate of theta is larger
            raise Diverged("the model has left all bounds: lower --lr")
        return replace(server, version=server.version + 1, s=s, optimiser=state)

    def state(self, server: SeedsServer) -> dict[str, Any]:
        return {"version": server.version, "s": server.s, "optimiser": server.optimiser}

    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> SeedsServer:
        return SeedsServer(state["version"], theta0, state["s"], state["optimiser"])


ENTRY = Entry(FedKSeed, ABOUT)
