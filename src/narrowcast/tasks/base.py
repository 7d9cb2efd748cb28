"""A task: a model, a loss, data cut into clients, a metric. `TorchTask` makes one from any torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from narrowcast.flat import FlatParameters, Layout
from narrowcast.random import Key
from narrowcast.tasks.partition import IndexArray

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> (B,) losses, one an example
Metrics = Callable[[Tensor, Tensor], dict[str, float]]  # (outputs, targets) of the whole test set
Augment = Callable[[Tensor, Tensor, Key], Tensor]  # (inputs, example indices, key) -> inputs


class Batch(NamedTuple):
    """Examples by index, with the weight of each: the objective is the weighted sum of their losses."""

    index: IndexArray  # (B,)
    weight: Tensor  # (B,), sums to 1 for a mean
    key: Key  # for augmentation: the same key and index give the same picture


class Task(Protocol):
    name: str
    layout: Layout
    clients: Sequence[IndexArray]

    def theta0(self) -> Tensor:
        """(D,) where training starts: the same bits on every machine."""

    def buffer(self) -> Tensor:
        """(D,) the memory that the model's parameters are views of: write theta there and save a copy."""

    def loss(self, theta: Tensor, batch: Batch) -> float:
        """The objective, forward only."""

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        """The objective and its gradient (D,), valid until the next call."""

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        """Metrics on held-out data."""


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(B, C) logits and (B,) classes -> (B,) losses."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class TorchTask:
    """Any module, per-example loss and tensors of examples as a task.

    `loss(outputs, targets)` returns one loss an example (torch's losses do with reduction="none"), because
    the losses of a round's clients are weighted before they are summed. The module is used as it stands:
    its parameters at construction are theta0.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        *,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        clients: Sequence[IndexArray],
        metrics: Metrics = accuracy,
        augment: Augment | None = None,
        name: str = "task",
        chunk: int = 1024,
    ) -> None:
        self.name, self.module, self.clients, self.chunk = name, module, clients, chunk
        self.flat = FlatParameters(module)
        self.layout = self.flat.layout
        self._theta0 = self.flat.theta.clone()
        self._loss, self._metrics, self._augment = loss, metrics, augment
        self._train, self._test = train, test
        if len(train[0]) != len(train[1]) or len(test[0]) != len(test[1]):
            raise ValueError(
                f"inputs and targets differ in number: train {len(train[0])} and {len(train[1])}, "
                f"test {len(test[0])} and {len(test[1])}"
            )

    def theta0(self) -> Tensor:
        return self._theta0.clone()

    def buffer(self) -> Tensor:
        return self.flat.theta

    def loss(self, theta: Tensor, batch: Batch) -> float:
        self.flat.load(theta)
        self.module.train()
        with torch.no_grad():
            return sum(float(self._objective(batch, part)) for part in self._parts(batch))

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        self.flat.load(theta)
        self.module.train()
        self.flat.grad.zero_()
        self.flat.attach_grad()
        total = 0.0
        for part in self._parts(batch):
            objective = self._objective(batch, part)
            objective.backward()  # type: ignore[no-untyped-call]
            total += float(objective.detach())
        return total, self.flat.grad

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        self.flat.load(theta)
        self.module.eval()
        inputs, targets = self._test
        with torch.no_grad():
            outputs = torch.cat([self.module(x) for x in inputs.split(self.chunk)])
            loss = float(self._loss(outputs, targets).mean())
        return {**self._metrics(outputs, targets), "loss": loss}

    def _parts(self, batch: Batch) -> list[slice]:
        return [slice(i, i + self.chunk) for i in range(0, len(batch.index), self.chunk)]

    def _objective(self, batch: Batch, part: slice) -> Tensor:
        index = torch.as_tensor(batch.index[part])
        x, y = self._train[0][index], self._train[1][index]
        if self._augment is not None:
            x = self._augment(x, index, batch.key)
        losses = self._loss(self.module(x), y)
        if losses.shape != (len(index),):
            raise ValueError(
                f"the loss must return one number an example, shape ({len(index)},), got {tuple(losses.shape)}: "
                'pass reduction="none" to torch\'s losses'
            )
        return losses @ batch.weight[part]
