"""What is trained: a model, a loss, data cut into clients, a metric. `tasks/` has those that come with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from narrowcast.errors import ConfigError
from narrowcast.numerics.flat import Layout
from narrowcast.numerics.purposes import Key

IndexArray = NDArray[np.int64]


class Batch(NamedTuple):
    """Examples by index, with the weight of each: the objective is the weighted sum of their losses.

    >>> import numpy as np, torch, narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> task = toy_task()
    >>> index = task.clients[0]
    >>> mean = nc.Batch(index, torch.full((len(index),), 1 / len(index)), key=0)
    >>> loss, gradient = task.gradient(task.theta0(), mean)
    >>> gradient.shape
    torch.Size([227])
    """

    index: IndexArray  # type: ignore[assignment]  # (B,); hides tuple.index, which nobody needs here
    weight: Tensor  # (B,), sums to 1 for a mean
    key: Key  # for augmentation: the same key and index give the same picture
    noise: Key = 0  # for what the model itself draws (dropout): of the round, the client and the step


class Task(Protocol):
    """Inherit from it to get all that is made of `gradient`: `gradients`, `walk` and those after them.

    A function that returns one is a task for the command too: `narrowcast run package.module:function`.

    >>> import narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> task: nc.Task = toy_task()
    >>> len(task.clients), task.layout.size, sorted(task.evaluate(task.theta0()))
    (12, 227, ['accuracy', 'loss'])
    """

    name: str
    layout: Layout
    clients: Sequence[IndexArray]
    metric: str  # the headline of what `evaluate` returns
    higher_is_better: bool  # of the metric

    @property
    def separable(self) -> bool:
        """Whether an example's loss depends on theta and the example alone, and not on others in its batch
        (batch norm) or on chance (dropout): the examples of many clients can then be one batch."""
        return True

    @property
    def spreads(self) -> bool:
        """Whether clients that are trained by themselves are spread over processes, where there are cores."""
        return False

    def to(self, device: torch.device) -> None:
        """Move model and data to a device, before training: theta and updates are there from then on."""
        raise ConfigError(f"the task {self.name} computes on the CPU alone: use --device cpu, not {device}")

    def theta0(self) -> Tensor:
        """(D,) where training starts: the same bits on every machine."""

    def buffer(self) -> Tensor:
        """(D,) the memory that the model's parameters are views of: write theta there and save a copy."""

    def loss(self, theta: Tensor, batch: Batch) -> float:
        """The objective, forward only."""

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """The objective and its gradient (D,), valid until the next call."""

    def gradients(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[float, Tensor]]:
        """Each batch's own objective and gradient, in order; a gradient is valid until the next."""
        return (self.gradient(theta, batch) for batch in batches)

    def gradient_rows(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[list[float], Tensor]]:
        """`gradients`, as many at once as is quickest: (objectives, a gradient a row (C, D)), C >= 1."""
        return (([loss], v[None]) for loss, v in self.gradients(theta, batches))

    def walk(
        self, theta: Tensor, walks: Iterable[Sequence[Batch]], rate: float, prox: float
    ) -> Iterator[tuple[float, Tensor]]:
        """(mean loss, end (D,)) of each client's SGD steps from theta, one a batch; valid until the next.

        `prox` is FedProx's mu. The steps are taken in the memory of the model: theta must lie elsewhere.
        """
        for batches in walks:
            here, losses = self.buffer().copy_(theta), 0.0
            for batch in batches:
                loss, gradient = self.gradient(here, batch)
                if prox:
                    gradient.add_(here - theta, alpha=prox)
                here.sub_(gradient, alpha=rate)
                losses += loss
            yield losses / len(batches), here

    def walk_rows(
        self, theta: Tensor, walks: Sequence[Sequence[Batch]], rate: float, prox: float
    ) -> Iterator[tuple[list[float], Tensor]]:
        """`walk`, as many at once as is quickest: (losses, an update (theta - end) / rate a row (C, D))."""
        for loss, end in self.walk(theta, walks, rate, prox):
            yield [loss], (theta - end).div_(rate)[None]

    def walk_sums(
        self, theta: Tensor, walks: Sequence[Sequence[Batch]], weights: Tensor, rate: float, prox: float
    ) -> Iterator[tuple[float, Tensor]]:
        """sum_c weights[k, c] (loss_c, update_c) for each row k of weights (K, C): what routes sum up to."""
        for row in weights:
            some = row.nonzero()[:, 0].tolist()
            total, losses, mine = torch.zeros_like(theta), 0.0, iter(some)
            for found, rows in self.walk_rows(theta, [walks[c] for c in some], rate, prox):
                for loss, v in zip(found, rows, strict=True):
                    w = float(row[next(mine)])
                    total.add_(v, alpha=w)
                    losses += w * loss
            yield losses, total

    def mislabelled(self, clients: Sequence[int]) -> Task:
        """This task with the labels of these clients' examples turned: class y is told to be C - 1 - y."""
        raise ConfigError("--attack label-flip takes a task whose examples have classes: this one has none")

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        """Metrics on held-out data."""

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """The whole model at theta, by name, as torch's `load_state_dict` takes it."""
