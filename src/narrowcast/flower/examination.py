"""Evaluation at the nodes: the model goes out, sums over held-out examples come back, the server adds them.

A node that holds examples out is sent what it lacks of the model, as for training. What it answers is a
number of examples and a sum a metric: no example, and no mean that others could not be added to. Bytes are
counted, apart from those of training.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable

import msgspec
from flwr.app import Message, MessageType

from narrowcast.flower.fleet import Fleet, Reply, Unavailable, log
from narrowcast.flower.messages import Exam, Sums, pack, received
from narrowcast.methods.base import MAX_NUMBER, MAX_WEIGHT
from narrowcast.rounds.records import RoundRecord
from narrowcast.wire.messages import WireError

ANSWER_BYTES = 4096  # of a node's sums
METRICS = 16  # names, of all nodes together
Sending = Callable[[int], tuple[int | None, bytes, bytes]]  # node -> (version, download, theta0), counted


class Examination:
    """One evaluation of the server's model by every node that holds examples out."""

    def __init__(self, fleet: Fleet, sending: Sending, record: RoundRecord) -> None:
        self.fleet, self.sending, self.record = fleet, sending, record
        self.waiting = {node for node, member in fleet.members.items() if member.held}
        self.heard: dict[int, Sums] = {}

    def hold(self, timeout: float) -> None:
        """Ask, hear, ask those again who lacked something; the means go into the record."""
        if not self.waiting:
            return
        end = time.monotonic() + timeout
        again = self._hear(self.fleet.exchange(self._exams(sorted(self.waiting), timeout), end))
        if again and time.monotonic() < end:
            self._hear(self.fleet.exchange(self._exams(again, timeout), end))
        for node in sorted(self.waiting):
            log.warning("round %d: node %d has not evaluated in time", self.record.round + 1, node)
            self.fleet.forget(node)
        self.record.node_examples, self.record.node_metrics = self._means()

    def _exams(self, nodes: list[int], timeout: float) -> list[Message]:
        exams = []
        for node in nodes:
            have, down, theta0 = self.sending(node)
            content = pack(Exam(self.fleet.run, have, down, theta0))
            number = str(self.record.round + 1)
            exams.append(Message(content, node, MessageType.EVALUATE, ttl=timeout, group_id=number))
        return exams

    def _hear(self, replies: Iterable[Reply]) -> list[int]:
        """Take the sums; the nodes that lacked something, and are still waited for."""
        again = list[int]()
        for node, reply in replies:
            if node not in self.waiting or node in again or isinstance(reply, Unavailable):
                continue
            try:
                sums = received(reply, Sums, ANSWER_BYTES)
                self.record.evaluate_up += len(msgspec.msgpack.encode(sums))
                self.fleet.members[node].have = sums.have
                if sums.lacks:
                    log.info("node %d is sent another download: %s", node, sums.lacks)
                    again.append(node)
                    continue
                self._check(node, sums)
                self.heard[node] = sums
            except Exception as error:  # whatever it is, it is this node's alone
                log.warning("round %d: node %d has not evaluated: %s", self.record.round + 1, node, error)
            self.waiting.discard(node)
        return again

    def _check(self, node: int, sums: Sums) -> None:
        """A WireError for what cannot be sums over the examples that the node said it holds out."""
        if sums.examples != (held := self.fleet.members[node].held):
            raise WireError(f"it evaluated {sums.examples} examples, and said that it holds out {held}")
        if strange := [name for name in sums.metrics if not re.fullmatch(r"[A-Za-z0-9_.-]+", name)]:
            raise WireError(f"{strange[0]!r} is no name of a metric")
        known = {name for other in self.heard.values() for name in other.metrics}
        if len(known | sums.metrics.keys()) > METRICS:
            raise WireError(f"with its metrics there would be more than {METRICS}")
        if wrong := [value for value in sums.metrics.values() if not abs(value) <= MAX_NUMBER]:
            raise WireError(f"a metric sums to {wrong[0]}")

    def _means(self) -> tuple[int, dict[str, float]]:
        """(examples, each metric's mean over them); no client weighs more than in training."""
        weights = {
            node: min(sums.examples, MAX_WEIGHT * len(self.fleet.members[node].clients))
            for node, sums in self.heard.items()
        }
        means = {}
        for name in sorted({name for sums in self.heard.values() for name in sums.metrics}):
            with_it = {node: sums for node, sums in self.heard.items() if name in sums.metrics}
            total = math.fsum(
                sums.metrics[name] * (weights[node] / sums.examples) for node, sums in with_it.items()
            )
            means[name] = total / sum(weights[node] for node in with_it)
        return sum(sums.examples for sums in self.heard.values()), means
