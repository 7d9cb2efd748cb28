"""The server's side of a run, whoever brings the clients: rounds, rates, cohorts, records, checkpoints.

A driver (the simulator, Flower) says in `collect` how a round's downloads reach the clients and how their
updates come back; everything before and after that is here, once.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from narrowcast.errors import ConfigError, Diverged
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.process import own_settings
from narrowcast.rounds import records, schedules
from narrowcast.rounds.exchange import Round, digest_of
from narrowcast.rounds.local import Local
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.task import Task

MAX_U32 = (1 << 32) - 1


class Training(ABC):
    """A run in progress: iterate for one record a round; `state` and `restore` to stop and go on."""

    checkpoint_seconds: ClassVar[float] = 20.0  # between two checkpoints, at least

    def __init__(self, task: Task, method: Method[Any], plan: Plan) -> None:
        if plan.weighting != "clients" and not method.weighted:
            raise ConfigError(
                f"--weighting {plan.weighting}: {method.name} takes the mean over all clients, present or "
                "not, and knows the weights of those who come alone: leave it at clients"
            )
        self.task, self.method, self.plan = task, method, plan
        self.cohorts, self.rounds = plan.cohorts(len(task.clients)), plan.length(len(task.clients))
        self.theta0 = task.theta0()
        self.server = method.server(self.theta0, task.layout)
        self.round = 0
        with own_settings():
            self._theta = method.theta(self.server, torch.empty_like(self.theta0))

    @abstractmethod
    def collect(self, round: Round, record: RoundRecord) -> Accumulator:
        """The updates of this round's clients, added up; bytes, loss and who was dropped go to the record."""

    @property
    def good(self) -> Server | None:
        """The last server that is known to be worth keeping, of a driver that goes back to one."""
        return None

    @property
    def theta(self) -> Tensor:
        """The server's model, valid until the next round."""
        return self._theta

    def __iter__(self) -> Iterator[RoundRecord]:
        while self.round < self.rounds:
            yield self.step()

    def step(self) -> RoundRecord:
        """One round, from the choice of clients to the record."""
        started = time.perf_counter()
        records.reset_peak_memory()
        round, record = self.open()
        self.close(self.collect(round, record), record)
        record.seconds = time.perf_counter() - started
        record.peak_memory = records.peak_memory()
        return record

    def open(self) -> tuple[Round, RoundRecord]:
        """The round that begins now, and its record, still empty."""
        number, plan, round = self.round, self.plan, self.now()
        record = RoundRecord(
            round=number,
            epoch=self.cohorts.epoch(number),
            version=self.server.version,
            rate=plan.rate * schedules.factor(plan.schedule, (number + 0.5) / self.cohorts.rounds_per_epoch),
            loss=None,
            clients=0,
            up=0,
            down=0,
        )
        return round, record

    def now(self) -> Round:
        """What messages say of the model as it is now: run, round, version, digest."""
        digest = digest_of(self.method, self.server, self._theta)
        return Round(self.plan.run, self.plan.key, self.round, self.server.version, digest)

    def close(self, acc: Accumulator, record: RoundRecord) -> None:
        """The server's step with what was collected, and the evaluation where one is due."""
        number, every = self.round, self.plan.evaluate_every
        period = self.cohorts.rounds_per_epoch
        info = RoundInfo(number, record.epoch, self.cohorts.epoch_end(number), record.rate, period)
        with own_settings():
            self.server = self.method.step(self.server, acc, info)
            self._theta = self.method.theta(self.server, self._theta)
        record.version = self.server.version
        self.round += 1
        if self.round == self.rounds or (every and self.round % every == 0):
            self.evaluate(record)
            if not all(map(math.isfinite, record.metrics.values())):
                raise Diverged(f"evaluation after round {number + 1} gave {record.metrics}: lower --lr")

    def evaluate(self, record: RoundRecord) -> None:
        """The model as it is now, on data that the server has; a driver may ask the clients too."""
        record.metrics = self.task.evaluate(self._theta)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"round": self.round, "server": self.method.state(self.server)}

    def settle(self, state: dict[str, Any]) -> None:
        """This `state` is safe on disk: what only earlier ones need may go (most drivers keep nothing)."""
        return

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: the rounds that follow are those of an undisturbed run."""
        self.round = state["round"]
        with own_settings():
            self.server = self.method.restore(self.theta0, self.task.layout, state["server"])
            self._theta = self.method.theta(self.server, torch.empty_like(self.theta0))


def local_work(plan: Plan, method: Method[Any], rate: float) -> Local:
    """How a client trains in a round with this rate."""
    return Local(
        steps=plan.local_steps or method.local_steps,
        batch=plan.local_batch,
        rate=plan.local_lr or rate or (1.0 if isinstance(plan.lr, str) else plan.lr),  # nodes may not know it
        prox=method.prox if plan.prox is None else plan.prox,
        probes=method.probes,
    )


def claim(plan: Plan, examples: int) -> int:
    """What a client with so many examples says its update weighs."""
    return 1 if plan.weighting == "clients" else min(examples, MAX_U32)


def augment_key(plan: Plan, round: int) -> Key:
    """What the pictures of a round are changed by, at every client."""
    return keyed.derive(plan.key, Purpose.AUGMENT, round)
