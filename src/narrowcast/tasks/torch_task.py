"""TorchTask: any torch module, a loss and tensors of examples as a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from narrowcast.numerics.devices import names
from narrowcast.numerics.keyed import Key
from narrowcast.rounds.task import Batch, IndexArray, Task
from narrowcast.tasks import side_effects
from narrowcast.tasks.examples import Examples as Examples
from narrowcast.tasks.examples import as_examples
from narrowcast.tasks.factors import plain_layers
from narrowcast.tasks.forks import Rows
from narrowcast.tasks.judging import Loss, Metrics, accuracy, check_outputs, cross_entropy, one_an_example
from narrowcast.tasks.module import ModuleTask
from narrowcast.tasks.partition import check_clients
from narrowcast.tasks.stacks import Stack, Walk
from narrowcast.tasks.workers import EXAMPLES_AT_ONCE, casting

Augment = Callable[[Tensor, Tensor, Key], Tensor]  # (inputs, example indices, key) -> inputs
Prepare = Callable[[Tensor], Tensor]  # (stored inputs of a batch) -> what the module takes
FEW = 16  # examples of a batch, whose gradient is then the product of two small matrices
MOST_AT_ONCE = 50  # clients whose gradients are taken together (docs/performance.md)
MEMORY_AT_ONCE = 1 << 26  # bytes of their gradients


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
        if chunk < 1:
            raise ValueError(f"chunk is how many examples pass through the module at once, got {chunk}")
        self.chunk = chunk
        self._loss, self._metrics, self._augment, self._prepare = loss, metrics, augment, prepare
        self._train, self._test = train, test = as_examples(train, "train"), as_examples(test, "test")
        self._vmap = True
        self._layers = plain_layers(module)
        self.clients = check_clients(clients, len(train[1]))
        self._move_data()

    def to(self, device: torch.device) -> None:
        super().to(device)
        self._move_data()

    def _move_data(self) -> None:
        """To the model, once: it is read in every round."""
        (x, y), (tx, ty) = self._train, self._test
        self._train = x.to(self.device), y.to(self.device)
        self._test = tx.to(self.device), ty.to(self.device)

    @cached_property
    def _habits(self) -> side_effects.Habits:
        """What the module and the loss do beside computing, found by trial before the first step."""

        def losses(index: IndexArray) -> Tensor:
            x, y = self._examples(torch.as_tensor(index), 0)
            outputs = self.module(x)
            check_outputs(outputs, y, self._metrics)
            return self._losses(outputs, y)

        self._train_mode()
        return side_effects.observed(self.module, losses, len(self._train[1]), self.device)

    def mislabelled(self, clients: Sequence[int]) -> Task:
        x, y = self._train
        if y.ndim != 1 or y.is_floating_point():
            return super().mislabelled(clients)  # which says that there are no classes
        index = torch.as_tensor(np.concatenate([self.clients[c] for c in clients])).to(y.device)
        turned = y.clone()
        turned[index] = y.max() - y[index]
        task = copy(self)  # the module and its memory are shared
        task._train, task._others = (x, turned), []  # workers' copies have examples too
        return task

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        for start in range(0, len(batch.index), self.chunk):
            part = slice(start, start + self.chunk)
            x, y = self._examples(torch.as_tensor(batch.index[part]), batch.key)
            yield self._losses(self.module(x), y) @ batch.weight[part].to(self.device)

    def gradients(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[float, Tensor]]:
        many = any(len(batch.index) > FEW for batch in batches) and len({batch.key for batch in batches}) == 1
        if many and self._stacked:
            yield from self._stack(theta).gradients(batches)
            return
        for losses, rows in self.gradient_rows(theta, batches):
            yield from zip(losses, rows, strict=True)

    def gradient_rows(self, theta: Tensor, batches: list[Batch]) -> Iterator[tuple[list[float], Tensor]]:
        """Of a plain stack of layers by their factors; of others chunks of equal-sized batches by torch.func,
        and those that are alone, or too large for company, one by one."""
        if len(batches) > 1 and self._stacked and all(len(batch.index) <= self.chunk for batch in batches):
            yield from self._stack(theta).rows([[batch] for batch in batches], 0.0, 0.0)
            return
        if self.workers_do and len(batches) > 1:
            chunks = list(self._chunks(batches))
            yield from self.shared_out(theta, chunks, max(map(len, chunks)))
            return
        for chunk in self._chunks(batches):
            if len(chunk) > 1 and (many := self._by_vmap(theta, chunk)):
                yield many
            else:
                ones = (self.gradient(theta, batch) for batch in chunk)
                yield from (([loss], v[None]) for loss, v in ones)

    def _chunks(self, batches: list[Batch]) -> Iterator[list[Batch]]:
        """Batches of one size and key, as many as are taken together."""
        fits = min(MOST_AT_ONCE, self._at_once(MEMORY_AT_ONCE))
        for (examples, _), same in groupby(batches, key=lambda batch: (len(batch.index), batch.key)):
            at_once = max(1, min(fits, self.chunk // max(1, examples)))
            while chunk := list(islice(same, at_once)):
                yield chunk

    def do(self, theta: Tensor, job: Any) -> Rows:
        """A client's steps, or the gradients of a chunk of batches, by this module alone."""
        return self._together(theta, job) if isinstance(job, list) else super().do(theta, job)

    def _together(self, theta: Tensor, chunk: list[Batch]) -> Rows:
        if len(chunk) > 1 and (many := self._by_vmap(theta, chunk)):
            return many
        rows, losses = torch.empty(len(chunk), self.layout.size), list[float]()
        for row, batch in zip(rows, chunk, strict=True):
            loss, v = self.part_gradient(theta, batch)
            row.copy_(v)
            losses.append(loss)
        return losses, rows

    def parts(self, batch: Batch) -> list[Batch]:
        count = -(-len(batch.index) // min(EXAMPLES_AT_ONCE, self.chunk))
        if count == 1 or not self.workers_do or not self.separable:
            return [batch]
        edges = [len(batch.index) * i // count for i in range(count + 1)]
        return [batch._replace(index=batch.index[a:b], weight=batch.weight[a:b]) for a, b in pairwise(edges)]

    @property
    def spreads(self) -> bool:
        return super().spreads and not self._stacked

    @property
    def _stacked(self) -> bool:
        """Whether the module is a plain stack of layers over vectors, and clients can share a batch. Its
        quick products are float32's own: autocast and hooks of parameters have no part in them."""
        here = bool(self._layers) and self.device.type == "cpu"  # parts and workers are for its caches
        here = here and not casting(self.device) and not self.flat.hooked
        return here and self.separable and self._inputs(self._train[0][:1].clone()).ndim == 2

    def _stack(self, theta: Tensor) -> Stack:
        self.flat.load(theta)
        return Stack(self._layers, self.layout, self._examples, self._losses, self._augment is None)

    def _by_vmap(self, theta: Tensor, batches: list[Batch]) -> tuple[list[float], Tensor] | None:
        """None: not every module can be vmapped (.item(), in-place tricks), under autocast hardly any, and
        hooks of parameters would not be called."""
        if not self._vmap or self.draws or casting(self.device) or self.flat.hooked:
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
        weight = self._weights(batches)
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
        """Whoever changes the gradient, and not what is made of it here, gets what is made of it anywhere: a
        batch is then one part, for what is added to its objective is added once."""
        super().__init_subclass__(**more)
        made = dict.fromkeys(("gradients", "gradient_rows", "walk_rows", "walk_sums"), Task)
        if {"gradient", "objectives", "part_gradient"} & vars(cls).keys():
            for name, kind in {**made, "parts": ModuleTask}.items():
                if name not in vars(cls):
                    setattr(cls, name, getattr(kind, name))

    def walk_rows(
        self, theta: Tensor, walks: Sequence[Walk], rate: float, prox: float
    ) -> Iterator[tuple[list[float], Tensor]]:
        if self._walkable(walks):
            return self._stack(theta).rows(walks, rate, prox)
        return super().walk_rows(theta, walks, rate, prox)

    def walk_sums(
        self, theta: Tensor, walks: Sequence[Walk], weights: Tensor, rate: float, prox: float
    ) -> Iterator[tuple[float, Tensor]]:
        if not self._walkable(walks):
            yield from super().walk_sums(theta, walks, weights, rate, prox)
            return
        losses, total = self._stack(theta).sums(walks, weights, rate, prox)
        yield from zip(losses.tolist(), total, strict=True)

    def _walkable(self, walks: Sequence[Walk]) -> bool:
        return self._stacked and all(len(walk[0].index) <= self.chunk for walk in walks)

    def _weights(self, batches: Sequence[Batch]) -> Tensor:
        """(C, B)"""
        return torch.stack([batch.weight for batch in batches]).to(self.device)

    def _at_once(self, bytes_here: int) -> int:
        """How many vectors of D numbers may be made at once: so many bytes of them, on a device a quarter of
        what is free there, for several are made of each."""
        free = names.memory_free(self.device)
        return (bytes_here if free is None else free // 4) // (4 * self.layout.size)

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        self.flat.load(theta)
        self.module.eval()
        inputs, targets = self._test
        with torch.no_grad():
            parts = (x.clone() for x in torch.split(inputs, self.chunk))  # the module may work in place
            outputs = torch.cat([self.module(self._inputs(x)) for x in parts])
            loss = float(self._loss(outputs, targets).mean())
        return {**self._metrics(outputs, targets), "loss": loss}

    def _examples(self, index: Tensor, key: Key) -> Examples:
        """Training examples as the module takes them."""
        there = index.to(self.device)
        x, y = self._train[0][there], self._train[1][there]
        return self._inputs(x if self._augment is None else self._augment(x, index, key)), y

    def _inputs(self, stored: Tensor) -> Tensor:
        return stored if self._prepare is None else self._prepare(stored)

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return one_an_example(self._loss(outputs, y), y)
