"""What every task over a torch module shares: theta in flat memory, and a gradient taken part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from narrowcast.numerics.flat import FlatParameters
from narrowcast.rounds.task import Batch, IndexArray, Task


class ModuleTask(Task):
    """A module as it stands: its parameters at construction are theta0.

    A kind of task says what its objective is, as parts that sum to it, so that no more than a part's graph is
    in memory at once.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        clients: Sequence[IndexArray],
        name: str = "task",
        metric: str = "accuracy",
        higher_is_better: bool = True,
    ) -> None:
        self.name, self.module, self.clients = name, module, clients
        self.metric, self.higher_is_better = metric, higher_is_better
        self.flat = FlatParameters(module)
        self.layout = self.flat.layout
        self._theta0 = self.flat.theta.clone()

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        """The objective of the batch, in parts."""
        raise NotImplementedError

    def theta0(self) -> Tensor:
        return self._theta0.clone()

    def buffer(self) -> Tensor:
        return self.flat.theta

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        self.flat.load(theta)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def loss(self, theta: Tensor, batch: Batch) -> float:
        self.flat.load(theta)
        self._training()
        with torch.no_grad():
            return sum(float(part) for part in self.objectives(batch))

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        self.flat.load(theta)
        self._training()
        self.flat.grad.zero_()
        self.flat.attach_grad()
        total = 0.0
        for part in self.objectives(batch):
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        return total, self.flat.grad

    def _training(self) -> None:
        if not self.module.training:  # setting it walks the whole module: a tenth of a small step
            self.module.train()
