"""What an aggregate is: how the updates of a round's clients become the one that the server steps with.

An aggregate is immutable settings, as a method is; what it remembers between rounds is a value passed in and
out, which the checkpoint keeps. A driver calls `zero`, `add` for every upload that was found right, and (in
`Training.close`) `total` once a round, empty or not; neither driver nor method knows which aggregate it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from narrowcast.aggregates.guarantee import Guarantee
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.wire.messages import Payload

Memory = dict[str, Any]  # tensors and numbers, as a checkpoint keeps them


@dataclass(frozen=True)
class Gathering:
    """Who comes to the rounds of a run, as far as an aggregate must know before it begins."""

    clients: int  # of the task
    cohort: int  # asked a round
    sampling: str
    weighting: str
    routes: int = 1  # rows of an accumulator: clients are spread over them
    share: float = 1.0  # of those asked, expected to answer

    @property
    def answers(self) -> int:
        """Clients of a round that are expected to answer, the fraction cut off."""
        return int(self.cohort * self.share + 1e-9)


class Aggregate(ABC):
    """Subclasses are frozen dataclasses; their fields are settings."""

    name: ClassVar[str]
    summed: ClassVar[bool] = False  # it needs only the sum of updates: a driver may add before it compresses
    # Nothing but `total` may be told of a round: no loss, no count, no time; nobody's failure ends it, every
    # round steps, and what it led to is on disk before anything of that leaves.
    discreet: ClassVar[bool] = False

    def check(self, method: Method[Any], gathering: Gathering) -> None:
        """A ConfigError that says why, where this cannot hold what it promises."""
        return

    def settled(self, gathering: Gathering, rounds: int) -> Aggregate:
        """The same with what it must find out before so many rounds with these clients."""
        return self

    def found(self) -> dict[str, Any]:
        """What it found out, as settings of a run."""
        return {}

    def affordable(self, rounds: int) -> int:
        """How many of these rounds may be held."""
        return rounds

    def spent(self, rounds: int, of: int) -> float | None:
        """Epsilon after so many rounds of a run of so many, if it guarantees one."""
        return None

    def guarantee(self, rounds: int) -> Guarantee | None:
        """What clients are guaranteed after so many rounds, if anything."""
        return None

    def start(self) -> Memory:
        """What it remembers before the first round."""
        return {}

    @abstractmethod
    def zero(self, method: Method[Any], server: Server, memory: Memory) -> Accumulator:
        """The empty round."""

    @abstractmethod
    def add(self, method: Method[Any], acc: Accumulator, up: Payload, weight: float) -> Accumulator:
        """acc with one client's update; one that is refused is a WireError, and leaves acc as it was."""

    @abstractmethod
    def total(
        self, method: Method[Any], acc: Accumulator, memory: Memory, round: RoundInfo
    ) -> tuple[Memory, Accumulator]:
        """(what it remembers from now on, what the method steps with: `total / weight` is the update)."""
