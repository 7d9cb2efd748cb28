"""Flower's grid without Flower's processes: nodes are contexts in this process, and faults are functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # what a ServerApp's process has
Fault = Callable[[int, Message], Message | str | None]  # (node, message): None: dead; str: what it raises
Lie = Callable[[int, RecordDict], RecordDict]  # (node, its answer): what it sends instead


def _unavailable(message: Message) -> Message:
    """What the engine says in time of a node that has died: in its own name."""
    reply = Message(Error(code=3, reason="the node is not available"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply


class FakeGrid:
    """Node i has id 100 + i and hosts partition i."""

    def __init__(self, app: ClientApp, nodes: int, node_config: dict[str, Any] | None = None) -> None:
        self.app, self.nodes = app, nodes
        self.node_config = node_config or {}
        self.contexts = {100 + i: self._context(i) for i in range(nodes)}
        self.listed = set(self.contexts)
        self.fault: Fault = lambda node, message: message
        self.lie: Lie = lambda node, records: records  # of its training
        self.claim: Lie = lambda node, records: records  # of who it is
        self.exam: Lie = lambda node, records: records  # of its evaluation
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}
        self.sent: list[Message] = []

    def _context(self, part: int) -> Context:
        config = {"partition-id": part, "num-partitions": self.nodes, **self.node_config}
        return Context(run_id=1, node_id=100 + part, node_config=config, state=RecordDict(), run_config={})

    def restart(self, part: int) -> None:
        """The node's process is new: what only the engine kept for it is gone."""
        self.contexts[100 + part] = self._context(part)

    def get_node_ids(self) -> list[int]:
        return sorted(self.listed)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{next(self._numbers)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.sent.append(message)
            reply = self._deliver(message)
            if reply is not None:
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(i) for i in reversed(list(message_ids)) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        found = self.fault(node, message) if node in self.listed else None
        if found is None:
            return _unavailable(message) if message.metadata.message_type == MessageType.TRAIN else None
        if isinstance(found, str):
            return Message(Error(code=2, reason=found), reply_to=message)
        try:
            reply = self.app(found, self.contexts[node])
            kinds = {MessageType.TRAIN: self.lie, MessageType.EVALUATE: self.exam}
            told = kinds.get(message.metadata.message_type, self.claim)
            return Message(told(node, reply.content), reply_to=message)
        except Exception as error:
            return Message(Error(code=2, reason=repr(error)), reply_to=message)


class Clock:
    """In place of the module `time`: it passes where somebody sleeps, and nowhere else."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)


class LateGrid(FakeGrid):
    """By this clock nodes are listed once they have `come`, and answer an order once they have `trained`."""

    def __init__(self, app: ClientApp, nodes: int, clock: Clock, come: float, trained: float) -> None:
        super().__init__(app, nodes)
        self.clock, self.come, self.trained = clock, come, trained
        self._ready = dict[str, float]()

    def get_node_ids(self) -> list[int]:
        return super().get_node_ids() if self.clock.now >= self.come else []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = super().push_messages(messages)
        for i, message in zip(ids, messages, strict=True):
            if message.metadata.message_type == MessageType.TRAIN:
                self._ready[i] = self.clock.now + self.trained
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return super().pull_messages([i for i in message_ids if self._ready.get(i, 0.0) <= self.clock.now])

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ids = self.push_messages(messages)
        self.clock.sleep(self.trained)
        return self.pull_messages(ids)
