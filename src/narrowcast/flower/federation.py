"""The Flower driver: a run whose clients live on nodes, with the engine between them and the server.

A round: the chosen clients are grouped by node; every node is sent what it lacks and its clients' numbers;
the uploads in the answers are checked and added up in the order of the clients' numbers, so that the model
does not depend on who was first. A node that had another model than the server believed says so and is sent
the right download in the same round. Whoever does not answer in time is dropped, counted and named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from narrowcast.errors import ConfigError
from narrowcast.flower.fleet import Fleet, log
from narrowcast.flower.messages import Answer, Have, Order, Upload, pack, unpack
from narrowcast.flower.settings import FleetSettings
from narrowcast.methods.base import Accumulator, Method
from narrowcast.numerics import flat
from narrowcast.rounds import exchange
from narrowcast.rounds.downloads import Downloads
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.task import Task
from narrowcast.rounds.training import Training
from narrowcast.wire import messages as wire
from narrowcast.wire.formats import FormatError
from narrowcast.wire.messages import WireError


@dataclass
class Asked:
    """The nodes of a round."""

    work: dict[int, list[int]]  # node -> its clients of this round
    waiting: set[int]  # nodes whose answer is still to come
    downloads: Downloads


class Federation(Training):
    """A run on a fleet of nodes."""

    checkpoint_seconds = 0.0  # after every round: nodes keep private states of the last few rounds alone

    def __init__(
        self, task: Task, method: Method[Any], plan: Plan, grid: Grid, settings: FleetSettings
    ) -> None:
        super().__init__(task, method, plan)
        if plan.dropout:
            raise ConfigError(
                f"--dropout {plan.dropout:g} is of the in-process simulator: nodes drop out by themselves"
            )
        self.settings = settings
        self.fleet = Fleet(grid, plan.run, settings.timeout)
        self.counted: dict[int, int] = {}  # client -> the last round in which its update was counted
        self._digest0 = wire.digest(self.theta0)
        self._asked: Asked

    def collect(self, round: Round, record: RoundRecord) -> Accumulator:
        end = time.monotonic() + self.settings.timeout
        orders = self.orders(round, record)
        replies = self.fleet.grid.send_and_receive(orders, timeout=self.settings.timeout)
        return self.gather(round, record, replies, end)

    def orders(self, round: Round, record: RoundRecord) -> list[Message]:
        """What goes to the nodes of this round's clients."""
        self.fleet.wait(self.settings.min_clients, self.settings.wait)
        work: dict[int, list[int]] = {}
        for client in self._choose(round, record):
            work.setdefault(self.fleet.host[client], []).append(client)
        self._asked = Asked(work, set(work), Downloads(self.method, self.server, round, record))
        return [self._order(node, round, record) for node in work]

    def gather(
        self, round: Round, record: RoundRecord, replies: Iterable[Message], end: float
    ) -> Accumulator:
        """The updates in the nodes' answers, and in those of a second try where a node lacked something."""
        grid, uploads = self.fleet.grid, list[Upload]()
        again = self._hear(round, record, replies, uploads)
        left = end - time.monotonic()
        if again and left > 0:
            orders = [self._order(node, round, record) for node in again]
            self._hear(round, record, grid.send_and_receive(orders, timeout=left), uploads)
        for node in sorted(self._asked.waiting):
            self._drop("no answer", self._asked.work[node], round, record)
            self.fleet.forget(node)
        return self._add(uploads, round, record)

    def _choose(self, round: Round, record: RoundRecord) -> list[int]:
        """This round's clients: of the roster, or of whoever is present."""
        present = np.array(self.fleet.clients, np.int64)
        asked = self.cohorts.come(round.number, present).tolist()
        absent = [client for client in asked if client not in self.fleet.host]
        if absent:
            self._drop("absent", absent, round, record)
        return [client for client in asked if client in self.fleet.host]

    def _order(self, node: int, round: Round, record: RoundRecord) -> Message:
        """The download for what the node has, counted, with its clients' numbers."""
        have = self._believed(self.fleet.members[node].have)
        theta0 = b"" if have.theta0 == self._digest0 else flat.to_bytes(self.theta0)
        down = self._asked.downloads.send(have.version, theta0)
        clients = self._asked.work[node]
        counted = [self.counted.get(client) for client in clients]
        order = Order(round.run, have.version, down, clients, counted, record.rate, theta0)
        return Message(
            pack(order), node, MessageType.TRAIN, ttl=self.settings.timeout, group_id=str(round.number)
        )

    def _believed(self, have: Have) -> Have:
        """What a node says it has, as far as it can be: not of another theta0, not of the future."""
        future = have.version is not None and have.version > self.server.version
        return Have(have.theta0) if future or have.theta0 != self._digest0 else have

    def _hear(
        self, round: Round, record: RoundRecord, replies: Iterable[Message], uploads: list[Upload]
    ) -> list[int]:
        """Take the uploads; the nodes that lacked something, and are still waited for."""
        again, asked = list[int](), self._asked
        for reply in replies:
            node = reply.metadata.src_node_id  # of a node that died it is the engine's own: not one of ours
            if node not in asked.waiting or node in again:
                continue
            clients = asked.work[node]
            try:
                if reply.has_error():
                    raise WireError(f"error {reply.error.code}: {reply.error.reason}")
                answer = unpack(reply.content, Answer)
            except WireError as error:
                self._drop("failed", clients, round, record, str(error))
                asked.waiting.remove(node)
                continue
            self.fleet.members[node].have = answer.have
            if answer.lacks:
                log.info("node %d is sent another download: %s", node, answer.lacks)
                again.append(node)
                continue
            asked.waiting.remove(node)
            uploads += [upload for upload in answer.uploads if upload.client in clients]
            if missing := set(clients) - {upload.client for upload in answer.uploads}:
                self._drop("no answer", sorted(missing), round, record)
        return again

    def _add(self, uploads: list[Upload], round: Round, record: RoundRecord) -> Accumulator:
        acc, seen, losses, lost = self.method.zero(self.server), set[int](), 0.0, 0
        for upload in sorted(uploads, key=lambda upload: upload.client):
            record.up += len(upload.data)
            before = acc.weight
            try:
                if not upload.data or not math.isfinite(upload.loss):
                    raise WireError(upload.why or f"its loss is {upload.loss}")
                acc = exchange.receive_up(self.method, acc, upload.data, round, upload.client, seen)
            except (WireError, FormatError) as error:
                self._drop("refused", [upload.client], round, record, str(error))
                continue
            losses += (acc.weight - before) * upload.loss
            lost += upload.lost
        record.clients, record.lost = len(seen), lost
        if len(seen) < self.settings.min_answers:
            log.warning("round %d has %d updates: the model stays as it was", round.number, len(seen))
            return self.method.zero(self.server)
        self.counted |= dict.fromkeys(seen, round.number)
        record.loss = losses / acc.weight if acc.weight else None
        return acc

    def _drop(
        self, why: str, clients: list[int], round: Round, record: RoundRecord, detail: str = ""
    ) -> None:
        record.dropped[why] = record.dropped.get(why, 0) + len(clients)
        named = ", ".join(map(str, sorted(clients)[:10])) + (" ..." if len(clients) > 10 else "")
        log.warning("round %d, %s: client %s%s", round.number, why, named, f" ({detail})" if detail else "")

    def state(self) -> dict[str, Any]:
        pairs = torch.tensor(sorted(self.counted.items()), dtype=torch.int64).view(-1, 2)
        return {**super().state(), "counted": pairs}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.counted = dict(state["counted"].tolist())
