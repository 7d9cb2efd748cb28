"""How Sigma goes down: as numbers of a format, or as points of a lattice with differences between them.

A downlink publishes Sigma: what the server's model is made of, and what a client reads from bytes, bit for
bit. What it has published lies in a trail, which is part of the server's state. Of formats there is none: a
version is sent as it is. On a lattice the trail has the points of the last versions, so that a client at one
of them is sent how many points further each coordinate has come.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.errors import Diverged
from narrowcast.methods.base import RoundInfo, finite
from narrowcast.methods.steps import Pace
from narrowcast.numerics.kernels import rans
from narrowcast.wire import formats
from narrowcast.wire import messages as wire
from narrowcast.wire.codes import lattice
from narrowcast.wire.codes.lattice import OVERHEAD, Points
from narrowcast.wire.messages import Block, WireError

HISTORY_VERSIONS = 4096  # that are kept at most,
HISTORY_BYTES = 1 << 27  # and what they may take together; a client from before is sent the points themselves


@dataclass(frozen=True)
class Published:
    """A version of a stage."""

    version: int
    stage: int
    points: Points  # its integers in as few bytes as hold them

    @property
    def place(self) -> tuple[int, int]:
        return self.version, self.stage


@dataclass(frozen=True)
class Trail:
    """The last versions in order, the present one last, and what the next step of the lattice hangs on."""

    history: tuple[Published, ...]
    pace: Pace

    @property
    def now(self) -> Points:
        return self.history[-1].points

    @cached_property
    def block(self) -> Block:
        """The present version as it is sent to whoever has none: encoded once."""
        return lattice.points(_wide(self.now))

    def find(self, version: int, stage: int) -> Published | None:
        at = bisect_left(self.history, (version, stage), key=lambda p: p.place)
        found = at < len(self.history) and self.history[at].place == (version, stage)
        return self.history[at] if found else None

    def last_of(self, stage: int) -> Published:
        """The last version of a stage, of which one is kept."""
        return self.history[bisect_left(self.history, stage + 1, key=lambda p: p.stage) - 1]

    def followed_by(self, version: int, stage: int, points: Points) -> Trail:
        """With one version more, and as many of those before as may be kept."""
        history = (*self.history, Published(version, stage, _small(points)))
        size = sum(p.points.numbers.nbytes for p in history)
        first = max(0, len(history) - HISTORY_VERSIONS)
        size -= sum(p.points.numbers.nbytes for p in history[:first])
        while size > HISTORY_BYTES and first < len(history) - 1:
            size -= history[first].points.numbers.nbytes
            first += 1
        return replace(self, history=history[first:])


class Downlink(ABC):
    """`count` numbers of Sigma down."""

    @abstractmethod
    def size(self, count: int) -> float:
        """Bytes of a whole version, about."""

    @abstractmethod
    def start(self, count: int) -> Trail | None:
        """Before the first round: Sigma is zero."""

    @abstractmethod
    def publish(
        self, trail: Trail | None, exact: Tensor, version: int, stage: int, round: RoundInfo
    ) -> tuple[Trail | None, Tensor]:
        """(the trail with this version, Sigma as it is published); clients come every `round.period`."""

    @abstractmethod
    def restart(self, trail: Trail | None, version: int, stage: int) -> Trail | None:
        """A stage begins at this version: Sigma is zero again."""

    @abstractmethod
    def whole(self, trail: Trail | None, sigma: Tensor) -> Block:
        """The present version, for whoever has another stage, or none."""

    def change(self, trail: Trail | None, version: int | None, stage: int) -> Block | None:
        """From the version of a stage to that stage's last; None: it is not to be had."""
        return None

    @abstractmethod
    def read(self, block: Block, count: int, before: Tensor | None = None) -> Tensor:
        """Sigma, (count,); `before` is what a change starts from."""

    def side(self, sigma: Tensor) -> Tensor | None:
        """What a client keeps of Sigma for its next visit."""
        return None

    def state(self, trail: Trail | None) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> Trail | None:
        return None


@dataclass(frozen=True)
class AsNumbers(Downlink):
    format: str

    def size(self, count: int) -> float:
        return formats.by_name(self.format).size(count)

    def start(self, count: int) -> Trail | None:
        return None

    def publish(
        self, trail: Trail | None, exact: Tensor, version: int, stage: int, round: RoundInfo
    ) -> tuple[Trail | None, Tensor]:
        return None, wire.block(exact, self.format).numbers(exact.numel()).view_as(exact)

    def restart(self, trail: Trail | None, version: int, stage: int) -> Trail | None:
        return None

    def whole(self, trail: Trail | None, sigma: Tensor) -> Block:
        return wire.block(sigma, self.format)

    def read(self, block: Block, count: int, before: Tensor | None = None) -> Tensor:
        return block.numbers(count)


@dataclass(frozen=True)
class OnLattice(Downlink):
    """w = s rint(Sigma / s), and k' - rint(w / s') from one version to another."""

    bits: float

    def size(self, count: int) -> float:
        return self.bits * count / 8

    def start(self, count: int) -> Trail:
        zero = Points(1.0, np.zeros(count, np.int8))
        return Trail((Published(0, 0, zero),), Pace())

    def publish(
        self, trail: Trail | None, exact: Tensor, version: int, stage: int, round: RoundInfo
    ) -> tuple[Trail | None, Tensor]:
        assert trail is not None
        values, count, period = finite(exact).reshape(-1).numpy(), exact.numel(), round.period
        start = self._start(trail, version - trail.pace.horizon(period), stage)
        change = self._change(values, start)
        pace = trail.pace.after(change, float(np.abs(values).max()), count, self.bits, period)
        points = lattice.nearest(exact, pace.step)
        if float(np.abs(points.numbers).max(initial=0)) * pace.step > rans.GREATEST:
            raise Diverged("the server's Sigma is beyond all numbers: lower --lr")
        trail = replace(trail, pace=pace).followed_by(version, stage, points)
        took = self._taken(trail, version - period, stage)
        return replace(trail, pace=pace.paid(took, count, self.bits, period)), points.values.view_as(exact)

    def restart(self, trail: Trail | None, version: int, stage: int) -> Trail | None:
        assert trail is not None
        zero = Points(trail.now.step, np.zeros_like(trail.now.numbers))
        ended = _bits(trail.block, len(zero.numbers))
        return replace(trail, pace=trail.pace.restarted(ended)).followed_by(version, stage, zero)

    def _change(self, values: NDArray[np.float32], start: Published | None) -> float:
        """How far (rms) Sigma came since it was published so: without the s^2 / 12 of that rounding."""
        if start is None or not start.points.numbers.any():
            return math.sqrt(rans.sum_of_squares(values) / values.size)
        square = rans.sum_of_squares(values - start.points.values.numpy()) / values.size
        return math.sqrt(max(square - start.points.step**2 / 12, square / 16))

    def _start(self, trail: Trail, version: int, stage: int) -> Published | None:
        """What a client had that came last at this version, or the first kept after; None: another stage."""
        at = bisect_right(trail.history, version, key=lambda p: p.version) - 1
        found = trail.history[max(at, 0)]
        return found if found.stage == stage else None

    def _taken(self, trail: Trail, version: int, stage: int) -> float:
        """Bits a number of what a client is sent that came last at this version."""
        at = bisect_right(trail.history, version, key=lambda p: p.version) - 1
        start, count = trail.history[max(at, 0)], len(trail.now.numbers)
        first = self.change(trail, start.version, start.stage)
        taken = [0.0 if first is None else _bits(first, count)]
        if start.stage < stage:
            taken += [trail.pace.ended] * (stage - start.stage - 1)
            taken.append(_bits(trail.block, count))
        return sum(taken) / len(taken)

    def whole(self, trail: Trail | None, sigma: Tensor) -> Block:
        assert trail is not None
        return trail.block

    def change(self, trail: Trail | None, version: int | None, stage: int) -> Block | None:
        start = None if trail is None or version is None else trail.find(version, stage)
        if trail is None or start is None:
            return None
        end = trail.last_of(stage).points
        further = end.numbers - _nearest(start.points.values, end.step)
        if np.abs(further).max(initial=0) > rans.MOST:
            return None
        return lattice.points(Points(end.step, further.astype(np.int32)))

    def read(self, block: Block, count: int, before: Tensor | None = None) -> Tensor:
        points = lattice.read_points(block, count)
        if before is None:
            return points.values
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore"
        ):  # what a hostile step does is refused
            numbers = points.numbers + _nearest(before, points.step)
            largest = np.abs(numbers * points.step).max(initial=0)
        if not largest <= rans.GREATEST:
            raise WireError("a change leads out of all numbers")
        return lattice.values(numbers, points.step)

    def side(self, sigma: Tensor) -> Tensor:
        return sigma.reshape(-1)

    def state(self, trail: Trail | None) -> dict[str, Any]:
        assert trail is not None
        kept = trail.history
        return {
            "places": torch.tensor([p.place for p in kept]),
            "steps": torch.tensor([p.points.step for p in kept], dtype=torch.float64),
            "widths": [p.points.numbers.itemsize for p in kept],
            "numbers": torch.from_numpy(np.concatenate([p.points.numbers.view(np.uint8) for p in kept])),
            "pace": asdict(trail.pace),
        }

    def restore(self, state: dict[str, Any]) -> Trail | None:
        rows = zip(state["places"].tolist(), state["steps"].tolist(), _rows(state), strict=True)
        history = tuple(Published(v, e, _small(Points(step, row))) for (v, e), step, row in rows)
        return Trail(history, Pace(**state["pace"]))


def _rows(state: dict[str, Any]) -> Iterable[NDArray[Any]]:
    """The integers of every version, each of as many bytes as they had; once they all had the widest's."""
    numbers: NDArray[Any] = state["numbers"].numpy()
    widths = state.get("widths")
    if widths is None:
        return list(numbers)
    count = len(numbers) // sum(widths)
    parts = np.split(numbers, np.cumsum([count * width for width in widths[:-1]]))
    return (part.copy().view(f"i{width}") for part, width in zip(parts, widths, strict=True))


def _small(points: Points) -> Points:
    """In as few bytes as hold the integers."""
    largest = int(np.abs(points.numbers).max(initial=0))
    kind = np.int8 if largest < 1 << 7 else np.int16 if largest < 1 << 15 else np.int32
    return Points(points.step, points.numbers.astype(kind))


def _wide(points: Points) -> Points:
    return Points(points.step, points.numbers.astype(np.int32))


def _nearest(values: Tensor, step: float) -> NDArray[np.float64]:
    """rint(values / step): whole numbers, in float64, whatever the step. The same on both sides."""
    found: NDArray[np.float64] = np.rint(values.numpy().astype(np.float64) / step)
    return found


def _bits(block: Block, count: int) -> float:
    """Of a number, but for what a block has beside its numbers."""
    return max(0.0, 8 * len(block.data) - OVERHEAD) / max(1, count)
