"""A convex task whose optimum is known: what a method loses can be measured to the last digit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.numerics import keyed
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.task import Batch, Task
from narrowcast.tasks.options import TaskOptions, split
from narrowcast.tasks.start import Start

DIMENSION = 10_000
EXAMPLES = 1_000
CLASSES = 10
RANK = 16  # directions in which the examples differ


class QuadraticTask(Task):
    """f(theta) = mean over examples i of 1/2 (theta - c_i)^T diag(lambda) (theta - c_i), c_i = c + B z_i.

    lambda_j = 1 / (j + 1), so that rates below 2 converge. B is D x 16 with normal entries, and z_i is a
    class's centre plus noise, so that clients of one class pull to places of their own. The z_i sum to zero:
    the optimum is c, and f(theta) - f* = 1/2 (theta - c)^T diag(lambda) (theta - c) without cancellation.
    Every example counts the same, a client in proportion to its examples.
    """

    name = "quadratic"
    metric = "excess"
    higher_is_better = False

    def __init__(self, options: TaskOptions) -> None:
        if options.trainable != "all":
            raise ValueError(f"quadratic has no layers to train {options.trainable!r} of: leave it at 'all'")
        size = options.width or DIMENSION
        keys = [keyed.derive(options.key, Purpose.DATA, 1 + i) for i in range(4)]
        self.layout = Layout(("theta",), ((size,),))
        self.spectrum = torch.from_numpy(1.0 / np.arange(1, size + 1))
        self.centre = torch.from_numpy(keyed.normals(keys[0], Purpose.NORMALS, size)).double()
        self._shifts = torch.from_numpy(keyed.normals(keys[1], Purpose.NORMALS, RANK * size)).view(RANK, size)
        labels = np.arange(EXAMPLES) % CLASSES
        classes = keyed.normals(keys[2], Purpose.NORMALS, CLASSES * RANK).reshape(CLASSES, RANK)
        noise = keyed.normals(keys[3], Purpose.NORMALS, EXAMPLES * RANK).reshape(EXAMPLES, RANK)
        z = (classes[labels] + noise).astype(np.float64) / np.sqrt(2 * RANK)  # each c_i - c has variance 1
        self._z = torch.from_numpy(z - z.mean(0))
        self._energy = self._z_energy()
        self.clients = split(options, labels)
        self._buffer = torch.zeros(size)

    def _z_energy(self) -> Tensor:
        """1/2 (c_i - c)^T diag(lambda) (c_i - c) for every example, (n,)."""
        gram = (self._shifts * self.spectrum) @ self._shifts.double().T
        return ((self._z @ gram) * self._z).sum(1) / 2

    @property
    def optimum(self) -> float:
        """f*, the objective at c: what the examples' differences cost."""
        return float(self._energy.mean())

    def theta0(self) -> Tensor:
        return torch.zeros(self.layout.size)

    def buffer(self) -> Tensor:
        return self._buffer

    def loss(self, theta: Tensor, batch: Batch) -> float:
        return self._objective(theta, batch)[0]

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        return self._objective(theta, batch)

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        """The objective itself: there is no test set, and so nothing to hold out for validation."""
        gap = theta.double() - self.centre
        excess = float((self.spectrum * gap) @ gap) / 2
        return {"excess": excess, "loss": self.optimum + excess}

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        return {"theta": theta.clone()}

    def _objective(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """sum w_i f_i and its gradient diag(lambda) (W (theta - c) - B sum w_i z_i), W = sum w_i."""
        weight = batch.weight.double()
        index = torch.as_tensor(batch.index)
        gap = theta.double() - self.centre
        pull = (weight @ self._z[index]).float() @ self._shifts
        gradient = self.spectrum * (weight.sum() * gap - pull)
        mean_part = float((self.spectrum * gap) @ (weight.sum() * gap / 2 - pull))
        return mean_part + float(weight @ self._energy[index]), gradient.float()


def start(options: TaskOptions) -> Start:
    """theta alone, at zero."""
    module = nn.Module()
    module.theta = nn.Parameter(torch.zeros(options.width or DIMENSION))
    return Start(module)


def build(options: TaskOptions) -> QuadraticTask:
    return QuadraticTask(options)
