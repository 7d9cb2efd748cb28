"""The Flower driver: a run whose clients live on nodes, with the engine between them and the server.

A round: the chosen clients are grouped by node; every node is sent what it lacks and its clients' numbers;
the uploads in the answers are checked as they come and added up in the order of the clients' numbers, so that
the model does not depend on who was first. A node that had another model than the server believed says so and
is sent the right download in the same round. Whoever does not answer in time is dropped, counted and named.
Nothing that a node sends ends the run: what is wrong with its answer is its own loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec
import numpy as np
import torch
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from narrowcast.errors import Diverged
from narrowcast.flower import possible
from narrowcast.flower.examination import Examination
from narrowcast.flower.fleet import Fleet, Reply, Unavailable, log
from narrowcast.flower.hearsay import Hearsay, doubts
from narrowcast.flower.messages import Answer, Have, Order, pack, received
from narrowcast.flower.proven import Proven
from narrowcast.flower.settings import FleetSettings
from narrowcast.flower.uploads import OVERHEAD, Uploads
from narrowcast.methods.base import Accumulator, Method, Server
from narrowcast.numerics import flat
from narrowcast.numerics.flat import all_finite
from narrowcast.numerics.process import own_settings
from narrowcast.rounds.downloads import Downloads
from narrowcast.rounds.exchange import Round
from narrowcast.rounds.norms import NormBound
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.task import Task
from narrowcast.rounds.training import Training, claim
from narrowcast.wire import messages as wire


@dataclass
class Asked:
    """The nodes of a round, and what has come of them."""

    work: dict[int, list[int]]  # node -> its clients of this round
    waiting: set[int]  # nodes whose answer is still to come
    downloads: Downloads
    uploads: Uploads


class Federation(Training):
    """A run on a fleet of nodes."""

    checkpoint_seconds = 0.0  # as often as it is cheap: what came after the last one is trained again

    def __init__(
        self, task: Task, method: Method[Any], plan: Plan, grid: Grid, settings: FleetSettings
    ) -> None:
        super().__init__(task, method, plan)
        possible.check(self.plan, settings, len(task.clients))
        self.settings = settings
        self.fleet = Fleet(grid, plan.run, len(task.clients), settings)
        # A bound by what others sent would let one client decide whether another is heard.
        self.norms = NormBound(0.0 if self.aggregate.discreet else settings.norm_bound)
        self.counted: dict[int, int] = {}  # client -> the last round in which its update was counted
        self.kept: dict[int, int] = {}  # the same, as the checkpoint on disk has it
        self._digest0 = wire.digest(self.theta0)
        self._hearsay = Hearsay(len(task.clients))
        self._proven = Proven(self.server, {})
        self._before: dict[int, int] = {}  # `counted` before the present round
        self._waited = False  # for clients, since this process began
        self._asked: Asked

    def collect(self, round: Round, record: RoundRecord) -> Accumulator:
        orders = self.orders(round, record)
        end = time.monotonic() + self.settings.timeout  # from here: orders may have waited for clients
        return self.gather(round, record, self.fleet.exchange(orders, end), end)

    def orders(self, round: Round, record: RoundRecord) -> list[Message]:
        """What goes to the nodes of this round's clients."""
        if not (self.aggregate.discreet and self._waited):
            self.fleet.wait(self.settings.min_clients, self.settings.wait)
        else:
            self.fleet.look()
        self._waited = True
        work: dict[int, list[int]] = {}
        for client in self._choose(round, record):
            work.setdefault(self.fleet.host[client], []).append(client)
        weights = {
            client: claim(self.plan, self.fleet.examples[client])
            for clients in work.values()
            for client in clients
        }
        uploads = Uploads(
            self.method,
            self.aggregate,
            self.nobody(),
            round,
            weights,
            self.task.layout.size,
            lambda why, clients, detail: self._drop(why, clients, record, detail),
        )
        downloads = Downloads(self.method, self.server, round, record)
        self._asked = Asked(work, set(work), downloads, uploads)
        return [self._order(node, round, record) for node in work]

    def gather(self, round: Round, record: RoundRecord, replies: Iterable[Reply], end: float) -> Accumulator:
        """The updates in the nodes' answers, and in those of a second try where a node lacked something."""
        again = self._hear(record, replies)
        if again and time.monotonic() < end:
            orders = [self._order(node, round, record) for node in again]
            self._hear(record, self.fleet.exchange(orders, end))
        for node in sorted(self._asked.waiting):
            self._drop("no answer", self._asked.work[node], record)
            self.fleet.forget(node)
        return self._add(record)

    def _choose(self, round: Round, record: RoundRecord) -> list[int]:
        """This round's clients: of the roster, or of whoever is present."""
        present = np.array(self.fleet.clients, np.int64)
        asked = self.cohorts.come(round.number, present).tolist()
        absent = [client for client in asked if client not in self.fleet.host]
        if absent:
            self._drop("absent", absent, record)
        return [client for client in asked if client in self.fleet.host]

    def _order(self, node: int, round: Round, record: RoundRecord) -> Message:
        """The download for what the node has, counted, with its clients' numbers."""
        have, down, theta0 = self._sending(node, self._asked.downloads)
        clients = self._asked.work[node]
        counted, kept = ([known.get(client) for client in clients] for known in (self.counted, self.kept))
        order = Order(round.run, have, down, clients, counted, kept, record.rate, theta0)
        return Message(
            pack(order), node, MessageType.TRAIN, ttl=self.settings.timeout, group_id=str(round.number + 1)
        )

    def _sending(self, node: int, downloads: Downloads) -> tuple[int | None, bytes, bytes]:
        """(the version a node starts from, what it then lacks, theta0 if it has another), counted."""
        have = self._believed(self.fleet.members[node].have)
        theta0 = b"" if have.theta0 == self._digest0 else flat.to_bytes(self.theta0)
        return have.version, downloads.send(have.version, theta0), theta0

    def _believed(self, have: Have) -> Have:
        """What a node says it has, as far as it can be: not of another theta0, not of the future."""
        future = have.version is not None and have.version > self.server.version
        return Have(have.theta0) if future or have.theta0 != self._digest0 else have

    def _hear(self, record: RoundRecord, replies: Iterable[Reply]) -> list[int]:
        """Take the uploads; the nodes that lacked something, and are still waited for."""
        again, asked = list[int](), self._asked
        for node, reply in replies:
            if node not in asked.waiting or node in again or isinstance(reply, Unavailable):
                continue
            clients = asked.work[node]
            try:
                answer = received(reply, Answer, OVERHEAD + len(clients) * asked.uploads.bound)
                self.fleet.members[node].have = answer.have
                if answer.lacks:
                    if not self.aggregate.discreet:
                        log.info("node %d is sent another download: %s", node, answer.lacks)
                    again.append(node)
                    continue
                missing = asked.uploads.take(answer.uploads, clients)
            except Exception as error:  # whatever it is, it is this node's alone
                self._drop("failed", clients, record, f"{error}")
                asked.waiting.remove(node)
                continue
            asked.waiting.remove(node)
            if missing:
                self._drop("no answer", missing, record)
        return again

    def _add(self, record: RoundRecord) -> Accumulator:
        uploads = self._asked.uploads
        acc = uploads.added(self.norms, self.settings.max_weight)
        record.up, record.clients, record.lost = uploads.bytes, len(uploads.counted), uploads.lost
        if self.aggregate.discreet:  # whoever came, and whatever they sent: the round counts
            return acc
        if len(uploads.counted) < self.settings.min_answers:
            log.warning(
                "round %d has %d updates: the model stays as it was", record.round + 1, record.clients
            )
            return self.nobody()
        self._before = dict(self.counted)
        self.counted |= dict.fromkeys(uploads.counted, record.round)
        record.loss = uploads.losses / acc.weight if acc.weight else None
        return acc

    def evaluate(self, record: RoundRecord) -> None:
        """At the server, where there is data, and at the nodes that hold examples out."""
        super().evaluate(record)
        if self.aggregate.discreet:  # what nodes hold out is theirs too, and epsilon would not count it
            return
        apart = msgspec.structs.replace(record, down=0)
        downloads = Downloads(self.method, self.server, self.now(), apart)
        exam = Examination(self.fleet, lambda node: self._sending(node, downloads), record)
        exam.hold(self.settings.timeout)
        record.evaluate_down = apart.down

    def advance(self, acc: Accumulator, record: RoundRecord) -> None:
        """The server's step; one that leads to a model that cannot be used is taken back."""
        try:
            if not self.aggregate.discreet:
                self._check_sound(record)
            super().advance(acc, record)
            if not all_finite(self._theta):
                raise Diverged("the model has an infinity or a NaN: lower lr")
        except Diverged as error:
            self._roll_back(record, error)
        else:
            if record.metrics or self.aggregate.discreet:
                self._proven.now(self.server, self.counted)

    def _check_sound(self, record: RoundRecord) -> None:
        """Diverged, where several nodes could not train from the model; what others trained from is sound."""
        asked = self._asked
        why, clients = doubts(asked.uploads, self.typical(record), self.first)
        nodes = {node for node, its in asked.work.items() if not clients.isdisjoint(its)}
        if nodes and self._hearsay.doubted(nodes, len(self.fleet.members)):
            raise Diverged(why)
        if nodes:
            log.warning("round %d: %s, says node %d alone", record.round + 1, why, *nodes)
        elif record.clients:
            self._hearsay.doubting = set()
            self._proven.now(self.server, self._before)

    def typical(self, record: RoundRecord) -> float | None:
        """The median: that of one who lies, about its training or its held-out examples, moves no verdict."""
        return None if record.loss is None else median(self._asked.uploads.said.values())

    def at_first(self, record: RoundRecord) -> float | None:
        """What several clients' losses were: who came before the others does not say it for all."""
        return self._hearsay.first({} if record.loss is None else self._asked.uploads.said)

    def judge(self, record: RoundRecord) -> None:
        try:
            super().judge(record)
        except Diverged:
            untrained = self.method.server(self.theta0, self.task.layout)  # none since is known to be good
            self._proven = Proven(untrained, {})
            raise

    @property
    def good(self) -> Server | None:
        server: Server = self._proven.server
        return server if server.version else None

    def _roll_back(self, record: RoundRecord, error: Diverged) -> None:
        good = self._proven
        good.fall_back(error)
        log.warning("round %d: %s. Going back to version %d", record.round + 1, error, good.server.version)
        self.server, self.round = good.server, record.round + 1
        self.counted = dict(good.counted)  # others go on from what they kept before
        with own_settings():
            self._theta = self.method.theta(self.server, torch.empty_like(self.theta0))
        record.rolled_back = True
        self.publish(record)
        record.node_metrics, record.node_examples = {}, 0  # of the model that was taken back
        record.metrics = self.task.evaluate(self._theta) if self.round == self.rounds else {}
        for member in self.fleet.members.values():  # versions are counted anew from here
            if member.have.version is not None and member.have.version > self.server.version:
                member.have = Have(member.have.theta0)

    def _drop(self, why: str, clients: list[int], record: RoundRecord, detail: str = "") -> None:
        record.dropped[why] = record.dropped.get(why, 0) + len(clients)
        if self.aggregate.discreet:
            return  # who was asked, and what became of it, is nobody's business
        named = ", ".join(map(str, sorted(clients)[:10])) + (" ..." if len(clients) > 10 else "")
        log.warning(
            "round %d, %s: client %s%s", record.round + 1, why, named, f" ({detail})" if detail else ""
        )

    def state(self) -> dict[str, Any]:
        norms = torch.tensor(list(self.norms.history), dtype=torch.float64)
        kept = {"counted": _pairs(self.counted), "norms": norms, "firsts": self._hearsay.losses}
        return {**super().state(), **kept}

    def settle(self, state: dict[str, Any]) -> None:
        self.kept = dict(state["counted"].tolist())

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.counted = dict(state["counted"].tolist())
        self.kept = dict(self.counted)
        self._hearsay.losses = state.get("firsts", {})
        self.norms.history.extend(state.get("norms", torch.zeros(0)).tolist())
        self._proven = Proven(self.server, self.counted)


def _pairs(numbers: dict[int, int]) -> torch.Tensor:
    return torch.tensor(sorted(numbers.items()), dtype=torch.int64).view(-1, 2)
