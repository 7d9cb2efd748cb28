"""The server's optimiser, on whatever coordinates a method has: d of them, or D when nothing is compressed.

State is data: `init` makes it, `step` takes it and returns the new one with the step to subtract. When A
changes the coordinates lose their meaning, and `carry` says what is kept of them:
- momentum is a vector: m_new = (d/D) A_new^T A_old m_old, of which about d/D of the energy survives;
- Adam's second moment is a size per coordinate, and fresh coordinates are alike: each gets the mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from narrowcast.numerics.process import own_settings

State = dict[str, Tensor]


class Optimiser(ABC):
    @abstractmethod
    def init(self, like: Tensor) -> State: ...

    @abstractmethod
    def step(self, state: State, gradient: Tensor, rate: float) -> tuple[State, Tensor]:
        """(new state, the step to subtract)."""

    def carry(self, state: State, move: Callable[[Tensor], Tensor]) -> State:
        """State for new coordinates, where `move` maps a vector of old ones."""
        return {name: move(value) if name == "momentum" else value for name, value in state.items()}


@dataclass(frozen=True)
class SGD(Optimiser):
    def init(self, like: Tensor) -> State:
        return {}

    def step(self, state: State, gradient: Tensor, rate: float) -> tuple[State, Tensor]:
        return state, gradient * rate


@dataclass(frozen=True)
class Momentum(Optimiser):
    """m <- beta m + g, step lr m: the convention of torch.optim.SGD."""

    beta: float = 0.9

    def __post_init__(self) -> None:
        _keeps_a_part(beta=self.beta)

    def init(self, like: Tensor) -> State:
        return {"momentum": torch.zeros_like(like)}

    def step(self, state: State, gradient: Tensor, rate: float) -> tuple[State, Tensor]:
        momentum = (state["momentum"] * self.beta).add_(gradient)
        return {"momentum": momentum}, momentum * rate


@dataclass(frozen=True)
class Adam(Optimiser):
    beta: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _keeps_a_part(beta=self.beta, beta2=self.beta2)
        if not 0 < self.epsilon < math.inf:  # a coordinate that never moved would be 0 / 0
            raise ValueError(f"epsilon must be a positive number, got {self.epsilon}")

    def init(self, like: Tensor) -> State:
        return {
            "momentum": torch.zeros_like(like),
            "second": torch.zeros_like(like),
            "count": torch.zeros(()),
        }

    def step(self, state: State, gradient: Tensor, rate: float) -> tuple[State, Tensor]:
        momentum = (state["momentum"] * self.beta).add_(gradient * (1 - self.beta))
        second = (state["second"] * self.beta2).add_(gradient.square().mul_(1 - self.beta2))
        count = state["count"] + 1
        m = momentum / (1 - self.beta ** float(count))
        v = second / (1 - self.beta2 ** float(count))
        delta = m.div_(v.sqrt_().add_(self.epsilon)).mul_(rate)  # in place: each may be as long as theta
        return {"momentum": momentum, "second": second, "count": count}, delta

    def carry(self, state: State, move: Callable[[Tensor], Tensor]) -> State:
        moved = super().carry(state, move)
        with own_settings(threads=1):  # long sums round otherwise with other threads
            mean = float(state["second"].mean())
        return {**moved, "second": torch.full_like(state["second"], mean)}


def _keeps_a_part(**betas: float) -> None:
    """A ValueError, unless what was before fades: 1 keeps it for good, and in Adam divides by 1 - 1."""
    for name, beta in betas.items():
        if not 0 <= beta < 1:
            raise ValueError(f"{name} must be 0 to below 1, got {beta}")


OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "momentum": Momentum, "adam": Adam}
