"""A problem as a Task, so that the simulator drives it like any other."""

from __future__ import annotations

import torch
from torch import Tensor

from narrowcast.numerics import Layout
from narrowcast.rounds import Batch, Task
from narrowcast_studies.theory.problems import Problem


class ProblemTask(Task):
    """Gradients in float64, handed over in float32. With `clip` a client's v is g min(1, clip / |g|)."""

    metric = "excess"
    higher_is_better = False

    def __init__(self, problem: Problem, clip: float | None = None) -> None:
        self.problem, self.clip, self.name = problem, clip, problem.name
        self.layout = Layout(("theta",), ((problem.D,),))
        self.clients = problem.clients
        self._buffer = torch.zeros(problem.D)

    def theta0(self) -> Tensor:
        return self.problem.start.float()

    def buffer(self) -> Tensor:
        return self._buffer

    def loss(self, theta: Tensor, batch: Batch) -> float:
        return self.problem.weighted(theta.double(), batch.index, batch.weight.double())[0]

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        loss, slope = self.problem.weighted(theta.double(), batch.index, batch.weight.double())
        return loss, (slope if self.clip is None else clipped(slope, self.clip)).float()

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        """The objective itself, above its minimum."""
        return {"excess": self.problem.excess(theta.double())}

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        return {"theta": theta.clone()}


def clipped(v: Tensor, most: float) -> Tensor:
    """v min(1, most / |v|)."""
    return v * min(1.0, most / float(v.norm()))
