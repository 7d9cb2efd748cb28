"""How long a round would take on a network: until its slowest client is done, or until the deadline.

A client's time is two round trips, its download, its computing and its upload, each by its own link (see
`network`); clients do not share a link, and the server's is not the narrow one. Computing is counted in the
multiplications and additions of one example's gradient, as torch counts them, times examples and steps; that
of compression itself is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor
from torch import ones as torch_ones

from narrowcast.rounds import network
from narrowcast.rounds.local import Local
from narrowcast.rounds.network import Links
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.task import Batch, Task

LATE = "late"  # why a client is dropped that does not make it by the deadline


@dataclass
class RoundTimes:
    """The clients of a round, as they get and send what they do."""

    links: Links
    deadline: float
    work: float  # of an example
    examples: Callable[[int], int]  # that a client computes on
    ready: dict[int, float] = field(default_factory=dict)  # client -> when it begins to send
    slowest: float = 0.0
    missing: bool = False  # somebody is still waited for

    def downloaded(self, client: int, size: int) -> None:
        """The client is sent so many bytes, and begins to compute."""
        at = self.links
        computing = self.work * self.examples(client) / at.flops[client]
        self.ready[client] = at.latency[client] + 8 * size / at.down[client] + computing

    def uploaded(self, client: int, size: int) -> bool:
        """It answers with so many bytes; False: they are not there by the deadline."""
        at = self.links
        done = float(self.ready[client] + at.latency[client] + 8 * size / at.up[client])
        if done > self.deadline:
            self.missing = True
            return False
        self.slowest = max(self.slowest, done)
        return True

    @property
    def seconds(self) -> float:
        """Who never answers is waited for until the deadline; without one, for nobody knows how long."""
        return self.deadline if self.missing and self.deadline < float("inf") else self.slowest


class NoTimes:
    """Of a run without a network: nobody takes any time."""

    seconds, missing = 0.0, False

    def downloaded(self, client: int, size: int) -> None: ...

    def uploaded(self, client: int, size: int) -> bool:
        return True


Times = RoundTimes | NoTimes


class Clock:
    """The links of a run's clients."""

    def __init__(self, plan: Plan, task: Task, theta0: Tensor) -> None:
        self.plan, self.task = plan, task
        self.links: Links | None = None
        if plan.network is not None:
            self.links = network.draw(plan.network, len(task.clients), plan.key)
            self.work = flops_of(task, theta0)

    def begin(self, local: Local) -> Times:
        if self.links is None:
            return NoTimes()
        examples = partial(self.examples, local=local)
        return RoundTimes(self.links, self.plan.deadline or float("inf"), self.work, examples)

    def examples(self, client: int, local: Local) -> int:
        """That a client computes on in a round."""
        own = len(self.task.clients[client])
        return local.steps * (min(local.batch, own) if local.batch else own)


def flops_of(task: Task, theta: Tensor) -> float:
    """Of the gradient of one example. Where torch sees none, 6 D: two a parameter forward, four back."""
    from torch.utils.flop_counter import FlopCounterMode

    first = next(np.asarray(index[:1]) for index in task.clients if len(index))
    one, theta = Batch(first, torch_ones(1), 0), theta.clone()
    task.gradient(theta, one)  # a task may try things out when it is first asked
    with warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
        warnings.simplefilter("ignore")
        task.gradient(theta, one)
    return float(counter.get_total_flops() or 6 * theta.numel())
