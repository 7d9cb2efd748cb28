"""What a method is: how the server's model reaches a client, and how a client's update reaches the server.

A method object is immutable settings; the server's state, a client's model, its private state and the
accumulator of a round are values passed in and out. Drivers (the simulator, Flower) call these
functions and nothing else, and none of them knows which method it drives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from narrowcast.errors import Diverged
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout, all_finite, largest
from narrowcast.numerics.keyed import Key
from narrowcast.wire.messages import Block, Payload, WireError

MAX_NUMBER = 1e18  # of an upload: far from any gradient, and sums of it far from overflow
MAX_WEIGHT = 10_000.0  # one client's say in a round, whatever it claims

UPDATE = 0  # the kind of an upload
Private = dict[str, Tensor]  # what one client alone keeps: vectors of float32, see `store.ClientStore`
Where = int | tuple[int, Tensor]  # a row of an accumulator, or places in a row
LOG, DENSE = 0, 1  # kinds of download: what the client lacks, or the whole model


@dataclass(frozen=True)
class RoundInfo:
    """What a server step needs to know of the round: its number, its place in the epoch, the rate."""

    number: int
    epoch: int
    epoch_end: bool
    rate: float
    period: int = 1  # rounds between two visits of a client that comes once an epoch


@dataclass(frozen=True)
class Model:
    """What a client keeps between visits: enough to need only the difference next time. Safe to lose."""

    version: int | None  # None: a newcomer, who has theta0 and nothing else
    stage: int
    base: Tensor  # (D,)
    layout: Layout | None = None  # names and shapes, for methods that see matrices
    side: Tensor | None = None  # what else such a method's clients must know of the server


@dataclass(frozen=True)
class Accumulator:
    """The running sum of a round: its memory does not grow with the cohort."""

    total: Tensor  # (rows, numbers of a payload)
    weight: float = 0.0
    stage: int = 0
    count: int = 0  # of clients
    layout: Layout | None = None  # of a server whose payloads are matrices


class Server(ABC):
    """The server's state. Subclasses are frozen dataclasses."""

    version: int  # steps taken: two equal versions are equal models


S = TypeVar("S", bound=Server)


class Directions(Protocol):
    """Seeded directions z_s of forward-only training: a client's s-th probe is along z_s(key)."""

    @property
    def epsilon(self) -> float:
        """The loss is taken at theta +- epsilon z."""

    def add(self, theta: Tensor, key: Key, step: int, scale: float) -> None:
        """theta += scale z_step, in place."""


class Method(ABC, Generic[S]):
    """How to compress: one of your own inherits from this, or from one that is near (docs/extend.md).

    >>> import narrowcast as nc
    >>> method: nc.Method = nc.method("topk", k=20)
    >>> method.linear, method.stateful, method.setting
    (False, True, 'k=20')
    """

    name: ClassVar[str] = "a method of one's own"  # said where no setting has named it
    local_steps: ClassVar[int] = 1  # what the method takes by default
    prox: ClassVar[float] = 0.0  # FedProx's mu, by default
    weighted: ClassVar[bool] = True  # updates of a round may weigh differently
    stride: ClassVar[float] = 0.1  # a first step at a good rate, beside theta0 (rounds/rates.py)
    vectors: ClassVar[bool] = False  # an upload is one vector, a row of the accumulator: it can be clipped
    whole_model: ClassVar[bool] = False  # every download is the whole model: none is a fallback

    @property
    def linear(self) -> bool:
        """Whether the sum of payloads is the payload of the sum."""
        return True

    @property
    def on_device(self) -> bool:
        """Whether theta and updates, of D numbers, may lie on a device; others refuse one before training."""
        return False

    @property
    def stateful(self) -> bool:
        """Whether clients keep private state: then every update must be compressed by its own client."""
        return False

    @property
    def incomparable(self) -> str:
        """Why uploads of clients on one route are no rows of numbers in shared coordinates; "": they are."""
        return f"those of {self.name} are not numbers in coordinates that all clients share"

    def slower(self, trial: int, run: int, epoch: int) -> float:
        """What a rate that is good for `trial` rounds is divided by for `run`, of which an epoch has `epoch`;
        1 where a step's length follows the gradient's (rounds/rates.py)."""
        return 1.0

    @property
    def probes(self) -> Directions | None:
        """Where a client probes its loss instead of taking a gradient; `v` is then the slopes it found."""
        return None

    @property
    def setting(self) -> str:
        """What tells two runs of this method apart in a table: "d=1024", "k=500"."""
        return ""

    @abstractmethod
    def server(self, theta0: Tensor, layout: Layout) -> S:
        """The state before the first round."""

    @abstractmethod
    def theta(self, server: S, out: Tensor | None = None) -> Tensor:
        """The server's model, (D,), not to be written to: part of its state, or else always made in `out`."""

    @abstractmethod
    def download(self, server: S, have: int | None) -> Payload:
        """What a client at version `have` lacks (None: a newcomer)."""

    def lag(self, server: S, have: int | None) -> Hashable:
        """Clients with equal lags get equal downloads; a driver encodes each of them once."""
        return have

    def side(self, server: S) -> Tensor | None:
        """What a client's `Model.side` must be at this version: the digest covers it beside theta."""
        return None

    def newcomer(self, theta0: Tensor, layout: Layout | None = None) -> Model:
        """A client before its first visit."""
        return Model(None, 0, theta0, layout)

    @abstractmethod
    def reconcile(
        self, model: Model, down: Payload, version: int, out: Tensor | None = None
    ) -> tuple[Model, Tensor]:
        """(the client's new model, theta equal to the server's bit for bit)."""

    def route(self, key: Key) -> int:
        """Which way of compressing a client must take, below 2^32, from a key that both sides know."""
        return 0

    @abstractmethod
    def compress(
        self, private: Private | None, v: Tensor, model: Model, key: Key
    ) -> tuple[Private | None, Payload]:
        """(the client's new private state, the payload of its update v); None: it has none, or lost it."""

    def compress_many(self, vs: Tensor, model: Model, keys: Sequence[Key]) -> Iterable[Payload]:
        """The payloads of many clients' updates, vs (W, D), where clients keep no private state.

        One when it is asked for, or all of them first, where that is quicker.
        """
        return (self.compress(None, v, model, key)[1] for v, key in zip(vs, keys, strict=True))

    @abstractmethod
    def zero(self, server: S) -> Accumulator:
        """The empty sum of a round."""

    @abstractmethod
    def terms(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        """(where in acc.total, numbers to add there) of an upload; one that does not fit is a WireError."""

    def upload_bound(self, D: int) -> int:
        """Bytes that no upload for a model of D parameters exceeds: what is longer need not be read."""
        return 1024 + 8 * self.upload_numbers(D)

    def upload_numbers(self, D: int) -> int:
        """Numbers in an upload, at most: each takes up to eight bytes, as a value and its place."""
        return D

    def norm(self, acc: Accumulator, up: Payload) -> float:
        """The Euclidean norm of an upload's numbers; one that does not fit is a WireError."""
        return float(torch.linalg.vector_norm(self.bounded(acc, up)[1], dtype=torch.float64))

    def add(self, acc: Accumulator, up: Payload, weight: float) -> Accumulator:
        """acc + weight * up, the weight capped. A payload that is refused leaves acc as it was."""
        weight = capped(weight)
        return self._added(acc, up, weight, weight, 1)

    def add_sum(self, acc: Accumulator, total: Payload, weight: float, count: int = 1) -> Accumulator:
        """acc + a payload that is itself a weighted sum of `count` clients' updates, of `weight` in all."""
        return self._added(acc, total, 1.0, weight, count)

    def _added(self, acc: Accumulator, up: Payload, factor: float, weight: float, count: int) -> Accumulator:
        """No sum can overflow: each term is at most MAX_NUMBER MAX_WEIGHT = 1e22, and 1e16 are not added."""
        where, numbers = self.bounded(acc, up)
        numbers = numbers if factor == 1.0 else numbers * factor
        if isinstance(where, int):  # the accumulator is the one thing that is changed in place
            acc.total[where].add_(numbers)
        else:
            acc.total[where] += numbers
        return replace(acc, weight=acc.weight + weight, count=acc.count + count)

    def bounded(self, acc: Accumulator, up: Payload) -> tuple[Where, Tensor]:
        """`terms`, if no number of theirs is out of all proportion."""
        where, numbers = self.terms(acc, up)
        if largest(numbers) > MAX_NUMBER:  # finite, but no gradient:
            raise WireError(f"an update has a number beyond {MAX_NUMBER:g}")  # it would end all training
        return where, numbers

    @abstractmethod
    def step(self, server: S, acc: Accumulator, round: RoundInfo) -> S:
        """The state after the round. An empty round leaves the state as it was."""

    @abstractmethod
    def state(self, server: S) -> dict[str, Any]:
        """What a checkpoint keeps: tensors and numbers."""

    @abstractmethod
    def restore(self, theta0: Tensor, layout: Layout, state: dict[str, Any]) -> S:
        """The server whose `state` this is."""


def own_route(key: Key) -> int:
    """The route of a method that gives every client a way of its own: 32 bits of its key."""
    return keyed.below(key, 1 << 32)


def capped(weight: float) -> float:
    """A client's weight: positive, finite, at most MAX_WEIGHT."""
    if not (math.isfinite(weight) and weight > 0):
        raise WireError(f"a client's weight must be a positive number, got {weight}")
    return min(weight, MAX_WEIGHT)


def mean(acc: Accumulator) -> Tensor:
    """The weighted mean of a round's payloads, checked to be finite."""
    return finite(acc.total / acc.weight)


def finite(numbers: Tensor) -> Tensor:
    """The numbers, if training has not diverged."""
    if not all_finite(numbers):
        raise Diverged("the server's model or this round's sum is not finite any more: lower --lr")
    return numbers


def only_block(up: Payload) -> Block:
    """The single block of an upload."""
    return blocks(up, 1)[0]


def blocks(up: Payload, count: int) -> list[Block]:
    """The blocks of an upload that must have `count` of them."""
    if up.kind != UPDATE or len(up.blocks) != count:
        raise WireError(
            f"an upload is of kind {UPDATE} and has {count} blocks, got kind {up.kind} with {len(up.blocks)}"
        )
    return up.blocks
