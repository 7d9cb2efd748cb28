"""The weighted mean, sum_w weight_w x_w / sum_w weight_w: whoever sends large numbers moves it anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from narrowcast.aggregates.base import Aggregate, Memory
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.wire.messages import Payload


@dataclass(frozen=True)
class Mean(Aggregate):
    """The method's own sum, whose memory does not grow with the cohort."""

    name: ClassVar[str] = "mean"
    summed: ClassVar[bool] = True

    def zero(self, method: Method[Any], server: Server, memory: Memory) -> Accumulator:
        return method.zero(server)

    def add(self, method: Method[Any], acc: Accumulator, up: Payload, weight: float) -> Accumulator:
        return method.add(acc, up, weight)

    def total(
        self, method: Method[Any], acc: Accumulator, memory: Memory, round: RoundInfo
    ) -> tuple[Memory, Accumulator]:
        return memory, acc


MEAN = Mean()
