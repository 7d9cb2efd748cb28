"""The in-process driver: many clients, one machine, the same bytes as over a network.

Clients are numbers. What one of them keeps is the version it last saw (an integer); the model at a version
is shared by all. Messages are really encoded and decoded: the theta that a round's gradients are taken at is
the one a client reconciled from bytes, and its digest is compared with the server's in every round.

For a linear method the sum of the clients' payloads is the payload of their sum, so the updates of all
clients on one route are summed first and compressed once. `per_client=True` takes the slow road, one upload
a client; both give the same bytes, and the same model within float tolerance.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from narrowcast.errors import Diverged
from narrowcast.methods.base import Accumulator, Method, Private, capped
from narrowcast.numerics.keyed import Key
from narrowcast.numerics.process import own_settings
from narrowcast.rounds import exchange, rates
from narrowcast.rounds.attackers import Attackers
from narrowcast.rounds.clock import LATE, Clock, Times
from narrowcast.rounds.downloads import Downloads
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.local import Group, Local, cohort_updates, summed_updates
from narrowcast.rounds.plan import Plan, can_sum
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.store import ClientStore
from narrowcast.rounds.task import IndexArray, Task
from narrowcast.rounds.training import Training, augment_key, claim, local_work
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import WireError


@dataclass(frozen=True)
class Work:
    """What the clients of a round share."""

    round: Round
    theta: Tensor  # (D,)
    local: Local
    augment: Key
    times: Times


class Simulation(Training):
    """A run on this machine.

    >>> import narrowcast as nc
    >>> from narrowcast.testing import toy_task
    >>> method, plan = nc.method("time-varying", dim=16), nc.Plan(cohort=4, lr=2.0, epochs=4)
    >>> run = nc.Simulation(toy_task(), method, plan)
    >>> first = run.step()
    >>> state = run.state()  # tensors and numbers to torch.save: `restore` goes on from there, bit for bit
    >>> run.round, run.rounds, run.theta.shape
    (1, 12, torch.Size([227]))
    """

    def __init__(self, task: Task, method: Method[Any], plan: Plan, store: ClientStore | None = None) -> None:
        plan = rates.settled(plan, method, len(task.clients), lambda p: Simulation(task, method, p))
        super().__init__(task, method, plan)
        self.attackers = Attackers(plan.attackers, plan.attack, plan.key, len(task.clients))
        self._trained = self.attackers.corrupted(task)
        self.have: IndexArray = np.full(len(task.clients), -1, np.int64)
        self.store = ClientStore() if store is None else store
        self.clock = Clock(plan, task, self.theta0)
        self._client = method.newcomer(self.theta0, task.layout)

    def collect(self, round: Round, record: RoundRecord) -> Accumulator:
        came = self.cohorts.come(round.number)
        answering = self.cohorts.answer(round.number, came)
        if len(answering) < len(came):
            record.dropped["no answer"] = len(came) - len(answering)
        local = local_work(self.plan, self.method, record.rate)
        times = self.clock.begin(local)
        times.missing = len(answering) < len(came)
        lacking = self._download(came, round, record, times)
        theta, reconciled = self._reconcile(lacking, round)
        acc = self.nobody()
        if len(answering):
            clock = time.perf_counter()
            acc = self._train(self._work(theta, round, local, times), answering, acc, record)
            record.client_seconds = reconciled + (time.perf_counter() - clock) / len(answering)
        record.network_seconds = times.seconds
        return acc

    def _download(self, came: IndexArray, round: Round, record: RoundRecord, times: Times) -> bytes:
        """Count what each client is sent, and return what the shared model lacks."""
        downloads, sizes = Downloads(self.method, self.server, round, record), dict[int, int]()
        versions = self.have[came].tolist()
        for have, clients in Counter(versions).items():
            sizes[have] = len(downloads.send(None if have < 0 else have, clients=clients))
        for client, have in zip(came.tolist(), versions, strict=True):
            times.downloaded(client, sizes[have])
        self.have[came] = self.server.version
        return downloads.message(self._client.version)

    def _reconcile(self, data: bytes, round: Round) -> tuple[Tensor, float]:
        """(theta as a client has it, from bytes, in the memory of the task's model; the seconds it took)."""
        clock = time.perf_counter()
        self._client, theta, _ = exchange.receive_down(
            self.method, self._client, data, round.run, round.key, self.task.buffer()
        )
        return theta, time.perf_counter() - clock

    def _work(self, theta: Tensor, round: Round, local: Local, times: Times) -> Work:
        if local.steps > 1 or local.probes:
            theta = theta.clone()  # local steps run in the memory of the task's model
        return Work(round, theta, local, augment_key(self.plan, round.number), times)

    def _train(self, work: Work, clients: IndexArray, acc: Accumulator, record: RoundRecord) -> Accumulator:
        """Updates of all clients, compressed, sent and added up; bytes and loss go into the record."""
        group = list(zip(clients.tolist(), work.round.client_keys(clients), strict=True))
        plan = self.plan
        possible = can_sum(self.method, self.aggregate, plan.attackers, plan.deadline)
        together = possible and not plan.per_client
        acc, losses, weight = (self._sum_by_route if together else self._one_by_one)(work, group, acc, record)
        record.loss = losses / weight if weight else None
        return acc

    def _sum_by_route(
        self, work: Work, group: Group, acc: Accumulator, record: RoundRecord
    ) -> tuple[Accumulator, float, float]:
        """Clients on one route: their updates are summed, and compressed once."""
        losses = weight = 0.0
        routes: dict[int, Group] = {}
        for client, key in group:
            routes.setdefault(self.method.route(key), []).append((client, key))
        groups = [members for _, members in sorted(routes.items())]
        each = [[capped(self._weight(client)) for client, _ in members] for members in groups]
        updates = summed_updates(self.task, work.theta, groups, each, work.local, work.augment)
        for members, weights, (loss, v) in zip(groups, each, updates, strict=True):
            self._check(loss, work.round)
            first = members[0][0]
            try:
                _, data = exchange.send_up(self.method, None, v, self._client, work.round, first, 1)
                message, size = exchange.check_up(self.method, data, work.round, first), len(data)
                del v, data  # either may be as large as the model
                with own_settings():
                    acc = self.method.add_sum(acc, message.payload, sum(weights), len(members))
            except (WireError, FormatError) as error:
                # It is our own message: only a gradient that blew up makes it bad.
                raise Diverged(
                    f"the gradient is not finite in round {work.round.number + 1}: lower --lr"
                ) from error
            for client, _ in members:
                work.times.uploaded(client, size)
            record.up += size * len(members)
            record.clients += len(members)
            losses += loss
            weight += sum(weights)
        return acc, losses, weight

    def _one_by_one(
        self, work: Work, group: Group, acc: Accumulator, record: RoundRecord
    ) -> tuple[Accumulator, float, float]:
        """Clients as a server meets them: what one sends may be refused, and is then counted as dropped."""
        losses, weight, seen, lost = 0.0, 0.0, set[int](), self.store.lost
        clients = (client for client, _ in group)
        common = self.attackers.agree(self._updates(work, self._liars(group)))
        for chunk, vs in self._updates(work, group):
            for loss in chunk:
                self._check(loss, work.round)
            members = list(islice(clients, len(chunk)))
            vs = self.attackers.turned(vs, members, common, work.round.number)
            for client, loss, sent in zip(members, chunk, self._uploads(work, members, vs), strict=True):
                claim = self._weight(client)
                private, data = (None, b"") if sent is None else sent
                if not work.times.uploaded(client, len(data)):
                    record.dropped[LATE] = record.dropped.get(LATE, 0) + 1
                    continue
                record.up += len(data)
                try:
                    acc = exchange.receive_up(
                        self.method, acc, data, work.round, client, seen, claim, self.aggregate
                    )
                except (WireError, FormatError):  # that of no bytes too
                    record.dropped["refused"] = record.dropped.get("refused", 0) + 1
                    continue
                if private is not None:
                    self.store.put(client, private)
                record.clients += 1
                losses += loss * capped(claim)
                weight += capped(claim)
        record.lost = self.store.lost - lost
        if group and not weight and LATE not in record.dropped and not self.aggregate.discreet:
            raise Diverged(f"every update of round {work.round.number + 1} was refused: lower --lr")
        return acc, losses, weight

    def _updates(self, work: Work, group: Group) -> Iterator[tuple[list[float], Tensor]]:
        return cohort_updates(self._trained, work.theta, group, work.local, work.augment)

    def _liars(self, group: Group) -> Group:
        return [(client, key) for client, key in group if client in self.attackers.clients]

    def _uploads(
        self, work: Work, clients: list[int], vs: Tensor
    ) -> Iterator[tuple[Private | None, bytes] | None]:
        """What each of these clients keeps and sends; None: its update cannot be sent."""
        weights, sent = [self._weight(client) for client in clients], 0
        if not self.method.stateful:
            try:
                for data in exchange.send_many(self.method, vs, self._client, work.round, clients, weights):
                    sent += 1
                    yield None, data
                return
            except (WireError, FormatError):
                pass  # somebody's: the others send theirs
        for client, v, weight in zip(clients[sent:], vs[sent:], weights[sent:], strict=True):
            try:
                yield exchange.send_up(
                    self.method, self.store.get(client), v, self._client, work.round, client, weight
                )
            except (WireError, FormatError):
                yield None

    def _check(self, loss: float, round: Round) -> None:
        if not math.isfinite(loss) and not self.aggregate.discreet:
            raise Diverged(
                f"the loss is {loss} in round {round.number + 1}: lower --lr (it was {self.plan.rate:g})"
            )

    def _weight(self, client: int) -> int:
        alike = self.plan.weighting == "clients"  # then nobody's examples need be looked up
        return claim(self.plan, 1 if alike else len(self.task.clients[client]))

    def state(self) -> dict[str, Any]:
        have = torch.from_numpy(self.have.copy())
        return {**super().state(), "have": have, "private": self.store.snapshot()}

    def settle(self, state: dict[str, Any]) -> None:
        self.store.settle(state["private"])

    def restore(self, state: dict[str, Any]) -> None:
        if len(state["have"]) != len(self.have):
            raise ValueError(f"the checkpoint has {len(state['have'])} clients, this task {len(self.have)}")
        super().restore(state)
        self.have = state["have"].numpy().copy()
        self.store.restore(state["private"])
        self._client = self.method.newcomer(self.theta0, self.task.layout)
