"""What every task over a torch module shares: theta in flat memory, and a gradient taken part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from narrowcast.numerics import flat, pool
from narrowcast.numerics.flat import FlatParameters
from narrowcast.rounds.task import Batch, IndexArray, Task
from narrowcast.tasks import forks, side_effects
from narrowcast.tasks.forks import Forks, Rows
from narrowcast.tasks.workers import SMALL, alone, casting, copies, in_workers


class Steps(NamedTuple):
    """SGD steps of a client, a batch each: a job that workers take."""

    walk: Sequence[Batch]
    rate: float
    prox: float


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
        self._others, self._copied = list[Self](), True
        self._forks: Forks | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.flat.theta.device

    def to(self, device: torch.device) -> None:
        if device != self.device:
            _move(self.module, device)
            self.flat, self._theta0 = FlatParameters(self.module), self._theta0.to(device)
            self._others, self._forks = [], None

    def objectives(self, batch: Batch) -> Iterator[Tensor]:
        """The objective of the batch, in parts."""
        raise NotImplementedError

    @cached_property
    def _habits(self) -> side_effects.Habits | None:
        """What the module and the loss do beside computing, by a trial; None: there is none."""
        return None

    @property
    def draws(self) -> bool:
        """Whether the module may draw numbers in training: where that is not known, it may."""
        return self._habits is None or self._habits.draws

    @property
    def separable(self) -> bool:
        if self._habits is None:
            return not (side_effects.mixes_by_type(self.module) or side_effects.draws_by_type(self.module))
        return not (self._habits.draws or self._habits.mixes)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has: processes of its own, where it needs some."""
        return {**vars(self), "_forks": None}

    def theta0(self) -> Tensor:
        self.flat.attach()  # a run begins here, and is not to find out later that the module has changed
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

    @property
    def workers_do(self) -> bool:
        """Whether workers with a copy of the module each are quicker than torch's threads, and may be: what a
        module draws comes from a generator that all threads share, and hooks of parameters are not copied."""
        small = self.layout.size < SMALL and self.device.type == "cpu"
        return small and not self.flat.hooked and not self.draws

    @property
    def spreads(self) -> bool:
        return self.workers_do and forks.possible()

    def walk_rows(
        self, theta: Tensor, walks: Sequence[Sequence[Batch]], rate: float, prox: float
    ) -> Iterator[tuple[list[float], Tensor]]:
        """A client a job."""
        if not self.workers_do:
            return super().walk_rows(theta, walks, rate, prox)
        return self.shared_out(theta, [Steps(walk, rate, prox) for walk in walks], 1)

    def shared_out(self, theta: Tensor, jobs: Sequence[Any], most: int) -> Iterator[Rows]:
        """What each job comes to (`do`), in order, at most so many rows: by processes where there can be
        some, else by threads with a copy of the module each."""
        if len(jobs) > 1 and pool.threads() > 1 and (forked := self._forked(most)):
            yield from forked.results(theta, jobs, lambda job: alone(lambda: self.do(theta, job)))
            return
        copies = self.copies()
        yield from in_workers(jobs, lambda job, worker: copies[worker].do(theta, job), len(copies))

    def _forked(self, most: int) -> Forks | None:
        """The processes of this task; None: there can be none, they were of no use, or autocast is on, of
        which they do not know."""
        made = self._forks
        if not forks.possible() or casting(self.device) or (made is not None and made.useless):
            return None
        if made is None or not made.fit(most, pool.threads()):
            made = self._forks = None  # before there are others: they would keep its memory
            rows = 1 << (most - 1).bit_length()  # clients may be of many sizes
            with suppress(OSError):  # no more processes, or no memory for them
                self._forks = Forks(self.do, self.layout.size, rows, pool.threads())
        return self._forks

    def do(self, theta: Tensor, job: Any) -> Rows:
        """A client's steps, by this module alone."""
        return next(Task.walk_rows(self, theta, [job.walk], job.rate, job.prox))

    def parts(self, batch: Batch) -> list[Batch]:
        """What workers share of a gradient: batches that it is the sum over, whoever takes them."""
        return [batch]

    def gradient(self, theta: Tensor, batch: Batch) -> tuple[float, Tensor]:
        parts = self.parts(batch)
        if len(parts) == 1:
            take = partial(self.part_gradient, theta, batch)
            return alone(take) if self.workers_do else take()  # bits would depend on torch's threads
        copies = self.copies()
        if len(copies) == 1:  # the same additions, in the memory of the gradient
            return alone(lambda: self.part_gradient(theta, *parts))
        loss, total = 0.0, torch.zeros_like(theta)
        for one, v in in_workers(parts, lambda part, i: copies[i].part_gradient(theta, part), len(copies)):
            loss += one
            total += v
        return loss, self.flat.grad.copy_(total)

    def part_gradient(self, theta: Tensor, *batches: Batch) -> tuple[float, Tensor]:
        """The gradient of the sum over these batches, by this module alone."""
        self.flat.load(theta)
        self.flat.grad.zero_()
        self.flat.attach_grad()
        total = 0.0
        for batch in batches:
            with self._training(batch):
                for part in self.objectives(batch):
                    if not part.requires_grad:
                        raise ValueError(
                            "the loss depends on no parameter that is trained: does the module use them, and "
                            "is nothing detached on the way?"
                        )
                    part.backward()
                    total += float(part.detach())
        return total, self.flat.grad

    def copies(self) -> list[Self]:
        """The task for each worker, itself the first: see `workers.copies`."""
        lacking = pool.threads() - 1 - len(self._others)
        if lacking > 0 and self._copied:
            made = copies(self, lacking)
            self._copied = len(made) == lacking
            self._others = [*self._others, *made]
        return [self, *self._others][: pool.threads()]

    @contextmanager
    def _training(self, batch: Batch) -> Iterator[None]:
        """The module trains, on what the batch's key draws; in the first step its buffers are watched."""
        self._train_mode()
        watch = nullcontext() if self._watched else side_effects.unchanged_buffers(self.module)
        with watch, side_effects.drawing_from(batch.noise, self.device) if self.draws else nullcontext():
            yield
        self._watched = True

    def _train_mode(self) -> None:
        if not self.module.training:  # setting it walks the whole module: a tenth of a small step
            self.module.train()


def _move(module: nn.Module, device: torch.device) -> None:
    """Weights that are tied stay so, which `module.to` does not promise for every kind of device."""
    names = flat.tied(module)
    module.to(device)
    flat.tie(module, names)
