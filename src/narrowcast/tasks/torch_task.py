"""TorchTask: any torch module, a loss and tensors of examples as a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.numerics import pool
from narrowcast.numerics.flat import all_finite
from narrowcast.numerics.keyed import Key
from narrowcast.rounds.task import Batch, IndexArray, Task
from narrowcast.tasks import side_effects
from narrowcast.tasks.examples import Examples as Examples
from narrowcast.tasks.examples import as_examples
from narrowcast.tasks.module import ModuleTask
from narrowcast.tasks.partition import check_clients
from narrowcast.tasks.side_by_side import Factors, in_parts, plain_layers, sgd_step

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> (B,) losses, one an example
Metrics = Callable[[Tensor, Tensor], dict[str, float]]  # (outputs, targets) of the whole test set
Augment = Callable[[Tensor, Tensor, Key], Tensor]  # (inputs, example indices, key) -> inputs
Prepare = Callable[[Tensor], Tensor]  # (stored inputs of a batch) -> what the module takes
FEW = 16  # examples of a client, whose gradient is then the product of two small matrices
MOST_AT_ONCE = 50  # clients whose gradients are taken together (docs/performance.md)
MEMORY_AT_ONCE = 1 << 26  # bytes of their gradients
CACHE_AT_ONCE = 5 << 20  # bytes of the weights of clients that walk side by side, or of their gradients


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return {"accuracy": float((outputs.argmax(1) == targets).float().mean())}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(B, C) logits and (B,) classes -> (B,) losses."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class TorchTask(ModuleTask):
    """Any module, per-example loss and examples as a task.

    `train` and `test` are (inputs, targets), as tensors or numpy arrays, or a Dataset or DataLoader of such
    pairs, which is read once. `loss(outputs, targets)` returns one loss an example (torch's losses do with
    reduction="none"), because the losses of a round's clients are weighted before they are summed. The
    module is used as it stands: its parameters at construction are theta0. Inputs may be stored small (bytes,
    say): `prepare` turns a batch of them, after augmentation, into what the module takes. Dropout is drawn
    from the run's key; batch norm must be frozen (`freeze_batch_norm`), or be group norm.

    >>> import numpy as np, torch, narrowcast as nc
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    >>> clients = nc.by_class(y, clients=6)
    >>> task = nc.TorchTask(torch.nn.Linear(4, 3), train=(x, y), test=(x, y), clients=clients)
    >>> len(task.clients), task.layout.size
    (6, 15)
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        *,
        train: Examples | Any,
        test: Examples | Any,
        clients: Sequence[IndexArray],
        metrics: Metrics = accuracy,
        augment: Augment | None = None,
        prepare: Prepare | None = None,
        metric: str = "accuracy",
        higher_is_better: bool = True,
        name: str = "task",
        chunk: int = 1024,
    ) -> None:
        super().__init__(module, clients=clients, name=name, metric=metric, higher_is_better=higher_is_better)
        self.chunk = chunk
        self._loss, self._metrics, self._augment, self._prepare = loss, metrics, augment, prepare
        self._train, self._test = train, test = as_examples(train, "train"), as_examples(test, "test")
        self._vmap = True
        self._layers = plain_layers(module)
        _check_examples(train, "train")
        _check_examples(test, "test")
        check_clients(clients, len(train[1]))

    @cached_property
    def _habits(self) -> side_effects.Habits:
        """What the module and the loss do beside computing, found by trial before the first step."""

        def losses(index: IndexArray) -> Tensor:
            x, y = self._examples(torch.as_tensor(index), 0)
            return self._losses(self.module(x), y)

        self._train_mode()
        return side_effects.observed(self.module, losses, len(self._train[1]))

    @property
    def draws(self) -> bool:
        return self._habits.draws

    @property
    def separable(self) -> bool:
        return not (self._habits.draws or self._habits.mixes)

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        for start in range(0, len(batch.index), self.chunk):
            part = slice(start, start + self.chunk)
            x, y = self._examples(torch.as_tensor(batch.index[part]), batch.key)
            yield self._losses(self.module(x), y) @ batch.weight[part]

    def gradients(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[float, Tensor]]:
        for losses, rows in self.gradient_rows(theta, batches):
            yield from zip(losses, rows, strict=True)

    def gradient_rows(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[list[float], Tensor]]:
        """Chunks of equal-sized batches: few examples of a plain stack of layers by their products, others by
        torch.func; those that are alone, or too large for company, one by one."""
        fits = min(MOST_AT_ONCE, MEMORY_AT_ONCE // (4 * self.layout.size))
        for (examples, _), same in groupby(batches, key=lambda batch: (len(batch.index), batch.key)):
            at_once = max(1, min(fits, self.chunk // max(1, examples)))
            while chunk := list(islice(same, at_once)):
                if len(chunk) > 1 and examples <= FEW and self._stacked:
                    yield from self._by_factors(theta, chunk)
                elif len(chunk) > 1 and (many := self._by_vmap(theta, chunk)):
                    yield many
                else:
                    ones = (self.gradient(theta, batch) for batch in chunk)
                    yield from (([loss], v[None]) for loss, v in ones)

    @property
    def _stacked(self) -> bool:
        """Whether the module is a plain stack of layers over vectors, and clients can share a batch."""
        return bool(self._layers) and self.separable and self._inputs(self._train[0][:1]).ndim == 2

    def _by_factors(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[list[float], Tensor]]:
        """As many rows at a time as a processor's cache holds."""
        self.flat.load(theta)
        x, y = self._examples(torch.as_tensor(np.concatenate([b.index for b in batches])), batches[0].key)
        objective = partial(self._weighted, y, torch.stack([batch.weight for batch in batches]))
        made = Factors(self._layers, self.layout, x.view(len(batches), -1, x.shape[1]), objective)
        losses = made.losses.tolist()
        rows = torch.empty(max(1, min(len(batches), CACHE_AT_ONCE // (4 * self.layout.size))), len(theta))
        for first in range(0, len(batches), len(rows)):
            rows = rows[: len(batches) - first]
            made.fill(rows, first)
            yield losses[first : first + len(rows)], rows

    def _by_vmap(self, theta: Tensor, batches: list[Batch]) -> tuple[list[float], Tensor] | None:
        """None: not every module can be vmapped (.item(), in-place tricks)."""
        if not self._vmap or self.draws:
            return None
        try:
            return self._vmapped(theta, batches)
        except RuntimeError:
            self._vmap = False
            return None

    def _vmapped(self, theta: Tensor, batches: list[Batch]) -> tuple[list[float], Tensor]:
        index = torch.as_tensor(np.concatenate([batch.index for batch in batches]))
        x, y = self._examples(index, batches[0].key)
        count = len(batches)
        weight = torch.stack([batch.weight for batch in batches])
        self._train_mode()

        def objective(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.module, self.layout.split(theta), (x,))
            return self._loss(outputs, y) @ weight

        each = torch.func.vmap(torch.func.grad_and_value(objective), in_dims=(None, 0, 0, 0))
        gradients, losses = each(
            theta, x.reshape(count, -1, *x.shape[1:]), y.reshape(count, -1, *y.shape[1:]), weight
        )
        return losses.tolist(), gradients

    def __init_subclass__(cls, **more: Any) -> None:
        """Whoever changes the gradient, and not what is made of it here, gets what is made of it anywhere."""
        super().__init_subclass__(**more)
        for name in ("gradients", "gradient_rows", "walk"):
            if "gradient" in vars(cls) and name not in vars(cls):
                setattr(cls, name, getattr(Task, name))

    def walk(
        self, theta: Tensor, walks: Iterable[Sequence[Batch]], rate: float, prox: float
    ) -> Iterator[tuple[float, Tensor]]:
        """Clients with equally many examples side by side, where the module is a plain stack of layers."""
        if not self._stacked:
            yield from super().walk(theta, walks, rate, prox)
            return
        for size, same in groupby(walks, key=lambda batches: len(batches[0].index)):
            at_once = min(MOST_AT_ONCE, CACHE_AT_ONCE // (4 * self.layout.size), self.chunk // size)
            if at_once < 2:
                yield from super().walk(theta, same, rate, prox)
                continue
            while parts := [part for _ in range(pool.threads()) if (part := list(islice(same, at_once)))]:
                yield from in_parts(parts, lambda part: self._side_by_side(theta, part, rate, prox))

    def _side_by_side(
        self, theta: Tensor, walks: list[Sequence[Batch]], rate: float, prox: float
    ) -> tuple[Tensor, Tensor]:
        """SGD steps of several clients at once: mean losses (C,), ends (C, D).

        All batches are of one size, and those of one step have one key.
        """
        here, total = theta.repeat(len(walks), 1), torch.zeros(len(walks))
        for batches in zip(*walks, strict=True):
            x, y = self._examples(torch.as_tensor(np.concatenate([b.index for b in batches])), batches[0].key)
            objective = partial(self._weighted, y, torch.stack([b.weight for b in batches]))
            pull = (here - theta).mul_(rate * prox) if prox else None
            x = x.view(len(walks), -1, x.shape[1])
            total += sgd_step(self._layers, self.layout, here, x, objective, rate)
            if pull is not None:
                here -= pull
        return total / len(walks[0]), here

    def _weighted(self, y: Tensor, weight: Tensor, outputs: Tensor) -> Tensor:
        """(C, B, ...) outputs -> (C,) weighted sums of the losses."""
        return (self._losses(outputs.flatten(0, 1), y).view_as(weight) * weight).sum(1)

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        self.flat.load(theta)
        self.module.eval()
        inputs, targets = self._test
        with torch.no_grad():
            outputs = torch.cat([self.module(self._inputs(x)) for x in torch.split(inputs, self.chunk)])
            loss = float(self._loss(outputs, targets).mean())
        return {**self._metrics(outputs, targets), "loss": loss}

    def _examples(self, index: Tensor, key: Key) -> Examples:
        """Training examples as the module takes them."""
        x, y = self._train[0][index], self._train[1][index]
        return self._inputs(x if self._augment is None else self._augment(x, index, key)), y

    def _inputs(self, stored: Tensor) -> Tensor:
        return stored if self._prepare is None else self._prepare(stored)

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = self._loss(outputs, y)
        if losses.shape != (len(y),):
            raise ValueError(
                f"the loss must return one number an example, shape ({len(y)},), got "
                f'{tuple(losses.shape)}: pass reduction="none" to torch\'s losses'
            )
        return losses


def _check_examples(examples: Examples, part: str) -> None:
    inputs, targets = examples
    if len(inputs) != len(targets) or not len(targets):
        raise ValueError(
            f"{part} has {len(inputs)} inputs and {len(targets)} targets: each input needs one target, and a "
            "task at least one example"
        )
    for values, what in ((inputs, "inputs"), (targets, "targets")):
        if values.is_floating_point() and not all_finite(values):
            raise ValueError(
                f"{part}'s {what} have NaN or infinite values: clean or drop those examples first"
            )
