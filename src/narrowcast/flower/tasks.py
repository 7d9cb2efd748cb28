"""Tasks of Flower apps: the server's, with a model and no data, and a node's, from a torch DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from narrowcast.rounds.task import Batch
from narrowcast.tasks.module import ModuleTask

BatchLoss = Callable[[nn.Module, Any], Tensor]  # (model, what the loader yields) -> the batch's mean loss
Evaluate = Callable[[nn.Module], dict[str, float]]


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
    """One client, whose examples come from a DataLoader: LoaderTask(model, loss, loader).

    `loss(model, batch)` is the mean loss of what the loader's collate function makes of some examples. The
    loader's data set and collate function are used, and its batch size where a step takes more examples than
    that; which examples a step takes is the run's to say (`local_batch`), from the run's key.
    """

    def __init__(self, module: nn.Module, loss: BatchLoss, loader: DataLoader[Any]) -> None:
        super().__init__(module)
        self._loss, self._data, self._collate = loss, loader.dataset, loader.collate_fn
        self._chunk = loader.batch_size or 1
        count = len(self._data)  # type: ignore[arg-type]
        if not count:
            raise ValueError("the loader's data set is empty: a client needs at least one example")
        self.clients = [np.arange(count)]

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        """The parts of the objective: each chunk's mean loss times its share of the weight."""
        if batch.weight.numel() > 1 and not torch.equal(
            batch.weight, batch.weight[:1].expand_as(batch.weight)
        ):
            raise ValueError("a loss that returns a mean cannot weigh examples: they must weigh the same")
        for start in range(0, len(batch.index), self._chunk):
            part = slice(start, start + self._chunk)
            examples = [self._data[int(i)] for i in batch.index[part]]
            yield self._loss(self.module, self._collate(examples)) * batch.weight[part].sum()
