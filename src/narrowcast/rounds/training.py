"""The server's side of a run, whoever brings the clients: rounds, rates, cohorts, records, checkpoints.

A driver (the simulator, Flower) says in `collect` how a round's downloads reach the clients and how their
updates come back; everything before and after that is here, once.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from narrowcast.errors import ConfigError, Diverged
from narrowcast.methods.base import Accumulator, Method, RoundInfo, Server
from narrowcast.numerics import keyed
from narrowcast.numerics.devices import names
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.process import own_settings
from narrowcast.rounds import devices, ends, records, schedules
from narrowcast.rounds.ends import Ending
from narrowcast.rounds.exchange import Round, digest_of
from narrowcast.rounds.local import Local
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.task import Task
from narrowcast.wire import messages as wire

MAX_U32 = (1 << 32) - 1


class Releases(Protocol):
    """Who keeps the books of a run that may release a round once, and never anew (runs/release.py)."""

    def spend(self, round: int) -> None:
        """The noise of this round is about to be drawn."""

    def release(self, record: RoundRecord) -> None:
        """The round has led to the state that the training has now: nothing of it has left yet."""


class Training(ABC):
    """A run in progress: iterate for one record a round; `state` and `restore` to stop and go on."""

    checkpoint_seconds: ClassVar[float] = 20.0  # between two checkpoints, at least

    def __init__(self, task: Task, method: Method[Any], plan: Plan) -> None:
        if plan.weighting != "clients" and not method.weighted:
            raise ConfigError(
                f"--weighting {plan.weighting}: {method.name} takes the mean over all clients, present or "
                "not, and knows the weights of those who come alone: leave it at clients"
            )
        self.task, self.method = task, method
        self.theta0 = task.theta0()
        devices.ready(method, self.theta0.device)
        if getattr(method, "clients", 0) is None:
            raise ConfigError(
                f"{method.name} takes the mean over all clients, present or not, and was not told how many "
                f"there are: nc.method({method.name!r}, clients={len(task.clients)}, ...)"
            )
        if method.whole_model and not wire.fits(4 * (D := task.layout.size)):
            raise ConfigError(
                f"--method {method.name}: it sends the whole model, and {D} parameters take {4 * D} bytes, "
                f"of which a message's block has at most {wire.MAX_DATA}: train fewer of them (--trainable, "
                "--freeze), or choose a method that sends less"
            )
        steps = plan.local_steps or method.local_steps
        if method.probes and steps > (slopes := method.upload_numbers(task.layout.size)):
            raise ConfigError(
                f"--local-steps {steps}: a client of {method.name} sends a slope a step, at most {slopes}"
            )
        self.server = method.server(self.theta0, task.layout)
        routes = len(method.zero(self.server).total)
        plan.aggregate.check(method, plan.gathering(len(task.clients), routes))
        self.plan = plan = plan.settled(len(task.clients))
        self.aggregate = plan.aggregate
        self.memory = self.aggregate.start()  # what it keeps between rounds
        self.cohorts, self.rounds = plan.cohorts(len(task.clients)), plan.length(len(task.clients))
        self.round = 0
        self.first: float | None = None  # the clients' loss at first: of the first round that had one
        self.releases: Releases | None = None
        with own_settings():
            self._theta = method.theta(self.server, torch.empty_like(self.theta0))

    @abstractmethod
    def collect(self, round: Round, record: RoundRecord) -> Accumulator:
        """The updates of this round's clients, added up; bytes, loss and who was dropped go to the record."""

    def nobody(self) -> Accumulator:
        """A round to which nothing was added yet."""
        return self.aggregate.zero(self.method, self.server, self.memory)

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
        names.reset_peak_memory(self.theta0.device)
        round, record = self.open()
        self.close(self.collect(round, record), record)
        if not self.aggregate.discreet:
            record.seconds = time.perf_counter() - started
            record.peak_memory = records.peak_memory()
            record.device_memory = names.peak_memory(self.theta0.device)
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
        """The server's step with what was collected; after the last one, whether it came to anything."""
        if not self.aggregate.discreet:  # else what clients lost is not to be known
            self.first = self.at_first(record) if self.first is None else self.first
        self.advance(acc, record)
        if self.round == self.rounds:
            self.judge(record)

    def advance(self, acc: Accumulator, record: RoundRecord) -> None:
        """The server's step, and the evaluation where one is due."""
        number, period = self.round, self.cohorts.rounds_per_epoch
        info = RoundInfo(number, record.epoch, self.cohorts.epoch_end(number), record.rate, period)
        if self.releases is not None:
            self.releases.spend(number)
        with own_settings():
            self.memory, acc = self.aggregate.total(self.method, acc, self.memory, info)
            self.server = self.method.step(self.server, acc, info)
            self._theta = self.method.theta(self.server, self._theta)
        self.publish(record)
        self.evaluate_if_due(record)

    def publish(self, record: RoundRecord) -> None:
        """The round is over: where only its sum may be told of it, hide the rest, and keep the books."""
        self.round = record.round + 1
        record.version = self.server.version
        record.epsilon = self.aggregate.spent(self.round, self.rounds)
        if self.aggregate.discreet:
            record.hide()
        if self.releases is not None:
            self.releases.release(record)

    def evaluate_if_due(self, record: RoundRecord) -> None:
        """At the run's end, and as often as its plan says."""
        every = self.plan.evaluate_every
        if self.round == self.rounds or (every and self.round % every == 0):
            self.evaluate(record)
            if not all(map(math.isfinite, record.metrics.values())):
                raise Diverged(f"evaluation after round {record.round + 1} gave {record.metrics}: lower --lr")

    def evaluate(self, record: RoundRecord) -> None:
        """The model as it is now, on data that the server has; a driver may ask the clients too."""
        record.metrics = self.task.evaluate(self._theta)

    def typical(self, record: RoundRecord) -> float | None:
        """The clients' loss by which a run is judged; a driver whose clients may lie need not believe all."""
        return record.loss

    def at_first(self, record: RoundRecord) -> float | None:
        """What later losses are held against, once it is known; asked in every round until then."""
        return self.typical(record)

    def judge(self, record: RoundRecord) -> None:
        """Diverged, where the run has ended in finite nonsense (`ends`).

        Without data at the server, the clients' losses are all there is to go by.
        """
        here = "loss" in record.metrics
        after = record.metrics if here else {"loss": self.typical(record)}
        known = {name: value for name, value in after.items() if value is not None}
        grown = ends.grown(self._theta, self.theta0)
        if not ends.suspect(self.first, known.get("loss"), grown):
            return
        before = {} if self.first is None else {"loss": self.first}
        if here:
            before = self.task.evaluate(self.theta0)
            self.task.buffer().copy_(self._theta)  # the model is left with what was trained
        ending = Ending(before, known, self.task.metric, self.task.higher_is_better, grown)
        if ending.ruined:
            raise Diverged(f"after {self.rounds} rounds {ending.ruined}: lower --lr")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        kept = {"aggregate": self.memory} if self.memory else {}
        return {"round": self.round, "first": self.first, "server": self.method.state(self.server), **kept}

    def settle(self, state: dict[str, Any]) -> None:
        """This `state` is safe on disk: what only earlier ones need may go (most drivers keep nothing)."""
        return

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: the rounds that follow are those of an undisturbed run."""
        self.round, self.first = state["round"], state.get("first")
        self.memory = state.get("aggregate", self.memory)
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
