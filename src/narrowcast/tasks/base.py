"""A task: a model, a loss, data cut into clients, a metric. `TorchTask` makes one from any torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from narrowcast.flat import FlatParameters, Layout
from narrowcast.random import Key
from narrowcast.tasks.partition import IndexArray, Partition

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> (B,) losses, one an example
Metrics = Callable[[Tensor, Tensor], dict[str, float]]  # (outputs, targets) of the whole test set
Augment = Callable[[Tensor, Tensor, Key], Tensor]  # (inputs, example indices, key) -> inputs
Prepare = Callable[[Tensor], Tensor]  # (stored inputs of a batch) -> what the module takes
Examples = tuple[Tensor, Tensor]  # (inputs, targets)


class Batch(NamedTuple):
    """Examples by index, with the weight of each: the objective is the weighted sum of their losses."""

    index: IndexArray  # type: ignore[assignment]  # (B,); hides tuple.index, which nobody needs here
    weight: Tensor  # (B,), sums to 1 for a mean
    key: Key  # for augmentation: the same key and index give the same picture


class Task(Protocol):
    name: str
    layout: Layout
    clients: Sequence[IndexArray]
    metric: str  # the headline of what `evaluate` returns
    higher_is_better: bool  # of the metric

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

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """The whole model at theta, by name, as torch's `load_state_dict` takes it."""


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(B, C) logits and (B,) classes -> (B,) losses."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class TorchTask:
    """Any module, per-example loss and tensors of examples as a task.

    `loss(outputs, targets)` returns one loss an example (torch's losses do with reduction="none"), because
    the losses of a round's clients are weighted before they are summed. The module is used as it stands:
    its parameters at construction are theta0. Inputs may be stored small (bytes, say): `prepare` turns a
    batch of them, after augmentation, into what the module takes.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        *,
        train: Examples,
        test: Examples,
        clients: Sequence[IndexArray],
        metrics: Metrics = accuracy,
        augment: Augment | None = None,
        prepare: Prepare | None = None,
        metric: str = "accuracy",
        higher_is_better: bool = True,
        name: str = "task",
        chunk: int = 1024,
    ) -> None:
        self.name, self.module, self.clients, self.chunk = name, module, clients, chunk
        self.metric, self.higher_is_better = metric, higher_is_better
        self.flat = FlatParameters(module)
        self.layout = self.flat.layout
        self._theta0 = self.flat.theta.clone()
        self._loss, self._metrics, self._augment, self._prepare = loss, metrics, augment, prepare
        self._train, self._test = train, test
        _check_examples(train, "train")
        _check_examples(test, "test")
        _check_clients(clients, len(train[1]))

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
            outputs = torch.cat([self._outputs(x) for x in torch.split(inputs, self.chunk)])
            loss = float(self._loss(outputs, targets).mean())
        return {**self._metrics(outputs, targets), "loss": loss}

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs if self._prepare is None else self._prepare(inputs))
        return outputs

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        self.flat.load(theta)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def _parts(self, batch: Batch) -> list[slice]:
        return [slice(i, i + self.chunk) for i in range(0, len(batch.index), self.chunk)]

    def _objective(self, batch: Batch, part: slice) -> Tensor:
        index = torch.as_tensor(batch.index[part])
        x, y = self._train[0][index], self._train[1][index]
        if self._augment is not None:
            x = self._augment(x, index, batch.key)
        losses = self._loss(self._outputs(x), y)
        if losses.shape != (len(index),):
            raise ValueError(
                f"the loss must return one number an example, shape ({len(index)},), got "
                f'{tuple(losses.shape)}: pass reduction="none" to torch\'s losses'
            )
        return losses @ batch.weight[part]


def _check_examples(examples: Examples, part: str) -> None:
    inputs, targets = examples
    if len(inputs) != len(targets) or not len(targets):
        raise ValueError(
            f"{part} has {len(inputs)} inputs and {len(targets)} targets: each input needs one target, and a "
            "task at least one example"
        )
    for values, what in ((inputs, "inputs"), (targets, "targets")):
        if values.is_floating_point() and not torch.isfinite(values).all():
            raise ValueError(
                f"{part}'s {what} have NaN or infinite values: clean or drop those examples first"
            )


def _check_clients(clients: Sequence[IndexArray], examples: int) -> None:
    if isinstance(clients, Partition) and clients.within(examples):  # its clients have an example each
        return
    for number, index in enumerate(clients):
        if not len(index) or index.min() < 0 or index.max() >= examples:
            raise ValueError(
                f"client {number} has {len(index)} examples with indices {index[:5]}...: each client needs "
                f"at least one, all of 0 .. {examples - 1} (the training set)"
            )
