"""Tasks of Flower apps: the server's, with a model and no data, and a node's, from a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Purpose
from narrowcast.rounds.task import Batch, IndexArray
from narrowcast.tasks import side_effects
from narrowcast.tasks.module import ModuleTask

BatchLoss = Callable[[nn.Module, Any], Tensor]  # (model, what the loader yields) -> the batch's mean loss
Evaluate = Callable[[nn.Module], dict[str, float]]
Measure = Callable[[nn.Module, Any], Mapping[str, float]]  # (model, batch) -> metrics summed over the batch


class ModelTask(ModuleTask):
    """A model to be trained elsewhere: theta0, a layout, and an evaluation where one is given."""

    def __init__(
        self,
        module: nn.Module,
        evaluate: Evaluate | None = None,
        *,
        clients: int = 1,
        metric: str = "accuracy",
        higher_is_better: bool = True,
    ) -> None:
        super().__init__(
            module,
            clients=[np.zeros(0, np.int64)] * clients,
            name="custom",
            metric=metric,
            higher_is_better=higher_is_better,
        )
        self._evaluate = evaluate

    def evaluate(self, theta: Tensor) -> dict[str, float]:
        if self._evaluate is None:
            return {}
        self.flat.load(theta)
        self.module.eval()
        with torch.no_grad():
            return self._evaluate(self.module)

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        raise NotImplementedError("the server has no data: clients take the gradients")


class LoaderTask(ModelTask):
    """One client, whose examples come from a DataLoader: LoaderTask(model, loss, loader, held_out=0.1).

    `loss(model, batch)` is the mean loss of what the loader's collate function makes of some examples. The
    loader's data set and collate function are used, and its batch size where a step takes more examples than
    that; which examples a step takes is the run's to say (`local_batch`), from the run's key.

    `held_out` is a share of the examples that is not trained on, or a loader of others; on them the node
    evaluates the server's model where the run asks for it, and answers with sums. `measure(model, batch)`
    gives metrics summed over a batch, {"accuracy": how many are right}; the loss is summed beside them.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: BatchLoss,
        loader: DataLoader[Any],
        *,
        held_out: float | DataLoader[Any] = 0.0,
        measure: Measure | None = None,
    ) -> None:
        super().__init__(module)
        self._loss, self._measure = loss, measure
        self._train = _Source.of(loader)
        mine = np.arange(len(self._train.data))
        if isinstance(held_out, DataLoader):
            self._exam, held = _Source.of(held_out), np.arange(len(_Source.of(held_out).data))
        else:
            self._exam, (mine, held) = self._train, apart(len(mine), held_out)
        if not len(mine):
            raise ValueError("the loader's data set is empty: a client needs at least one example")
        self.clients, self._held, self.held = [mine], held, len(held)

    def examine(self, theta: Tensor) -> dict[str, float]:
        """The loss and the metrics at theta, each summed over the examples that are held out."""
        self.flat.load(theta)
        self.module.eval()
        sums: dict[str, float] = {}
        with torch.no_grad(), side_effects.drawing_from(0):
            for index, batch in self._exam.batches(self._held):
                found = {"loss": float(self._loss(self.module, batch)) * len(index)}
                found |= self._measure(self.module, batch) if self._measure else {}
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        """The parts of the objective: each chunk's mean loss times its share of the weight."""
        if batch.weight.numel() > 1 and not torch.equal(
            batch.weight, batch.weight[:1].expand_as(batch.weight)
        ):
            raise ValueError("a loss that returns a mean cannot weigh examples: they must weigh the same")
        weights = torch.split(batch.weight, self._train.chunk)
        for (_, examples), weight in zip(self._train.batches(batch.index), weights, strict=True):
            yield self._loss(self.module, examples) * weight.sum()


class _Source(NamedTuple):
    """What a loader loads, and how."""

    data: Any
    collate: Callable[[list[Any]], Any]
    chunk: int

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> _Source:
        return cls(loader.dataset, loader.collate_fn, loader.batch_size or 1)

    def batches(self, index: IndexArray) -> Iterator[tuple[IndexArray, Any]]:
        """These examples, some at a time."""
        for start in range(0, len(index), self.chunk):
            part = index[start : start + self.chunk]
            yield part, self.collate([self.data[int(i)] for i in part])


def apart(count: int, share: float) -> tuple[IndexArray, IndexArray]:
    """(to train on, to evaluate on): the same cut in every process, whatever the order of the classes."""
    if not 0 <= share < 1:
        raise ValueError(f"held_out is a share of the examples, 0 to below 1, or a loader: got {share}")
    held = min(max(1, round(share * count)), count - 1) if share else 0
    order = keyed.permuted(keyed.derive(0, Purpose.DATA), count) if count else np.zeros(0, np.int64)
    return np.sort(order[held:]), np.sort(order[:held])
