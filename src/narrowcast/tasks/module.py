"""What every task over a torch module shares: theta in flat memory, and a gradient taken part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from narrowcast.numerics.flat import FlatParameters
from narrowcast.rounds.task import Batch, IndexArray, Task
from narrowcast.tasks import side_effects


class ModuleTask(Task):
    """A module as it stands: its parameters at construction are theta0.

    A kind of task says what its objective is, as parts that sum to it, so that no more than a part's graph is
    in memory at once. What the module draws from torch's generator, as dropout does, comes from the batch's
    key instead, and the generator is left where it was. A module is refused whose buffers training changes.
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
        side_effects.refuse_statistics(module)
        self.flat = FlatParameters(module)
        self.layout = self.flat.layout
        self._theta0 = self.flat.theta.clone()
        self._watched = False

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        """The objective of the batch, in parts."""
        raise NotImplementedError

    @property
    def draws(self) -> bool:
        """Whether the module may draw numbers in training: where that is not known, it may."""
        return True

    @property
    def separable(self) -> bool:
        return not (side_effects.mixes_by_type(self.module) or side_effects.draws_by_type(self.module))

    def theta0(self) -> Tensor:
        return self._theta0.clone()

    def buffer(self) -> Tensor:
        return self.flat.theta

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        self.flat.load(theta)
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    def loss(self, theta: Tensor, batch: Batch) -> float:
        self.flat.load(theta)
        with self._training(batch), torch.no_grad():
            return sum(float(part) for part in self.objectives(batch))

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        self.flat.load(theta)
        self.flat.grad.zero_()
        self.flat.attach_grad()
        total = 0.0
        with self._training(batch):
            for part in self.objectives(batch):
                part.backward()  # type: ignore[no-untyped-call]
                total += float(part.detach())
        return total, self.flat.grad

    @contextmanager
    def _training(self, batch: Batch) -> Iterator[None]:
        """The module trains, on what the batch's key draws; in the first step its buffers are watched."""
        self._train_mode()
        watch = nullcontext() if self._watched else side_effects.unchanged_buffers(self.module)
        with watch, side_effects.drawing_from(batch.noise) if self.draws else nullcontext():
            yield
        self._watched = True

    def _train_mode(self) -> None:
        if not self.module.training:  # setting it walks the whole module: a tenth of a small step
            self.module.train()
