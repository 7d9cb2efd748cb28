"""Who is there: which node hosts which clients, and what version of the model it has.

A node is asked once, when the engine first lists it, and again after it failed to answer; until its reply is
in, it is given no work. Asking never holds a round up. A node that is slow is not asked a second time: the two
would be answered side by side, and the later end would put back what the node had at the earlier beginning.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from narrowcast.flower.messages import Ask, Have, Here, pack, unpack
from narrowcast.wire.messages import WireError

log = logging.getLogger("flwr")  # Flower's own: it reaches the user's terminal
POLL_SECONDS = 0.5


@dataclass
class Member:
    """A node that has said who it is."""

    clients: list[int]
    have: Have


class Fleet:
    def __init__(self, grid: Grid, run: bytes, patience: float) -> None:
        self.grid, self.run = grid, run
        self.patience = patience  # seconds before a node that did not reply is asked again
        self.members: dict[int, Member] = {}  # by node id
        self.host: dict[int, int] = {}  # client -> node id
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> (node, when)
        self._refused: set[int] = set()  # nodes whose claim was said to be wrong already

    @property
    def clients(self) -> list[int]:
        """Those present."""
        return sorted(self.host)

    def look(self) -> None:
        """Ask newcomers, hear who has replied, and forget who has left."""
        listed = set(self.grid.get_node_ids())
        for node in set(self.members) - listed:
            self.forget(node)
        self._hear()
        now = time.monotonic()
        self._asked = {
            i: (node, when)
            for i, (node, when) in self._asked.items()
            if node in listed and now - when < self.patience
        }
        waiting = {node for node, _ in self._asked.values()}
        new = sorted(listed - set(self.members) - waiting)
        if new:
            asks = [Message(pack(Ask(self.run)), node, MessageType.QUERY, ttl=self.patience) for node in new]
            for node, sent in zip(new, self.grid.push_messages(asks), strict=True):
                self._asked[sent] = node, now

    def wait(self, minimum: int, seconds: float) -> None:
        """Until so many clients are present; a RuntimeError when they do not come."""
        end, said = time.monotonic() + seconds, False
        self.look()
        while len(self.host) < minimum:
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{len(self.host)} clients are present, {minimum} are needed, and none came for "
                    f"{seconds:g} s: start more nodes, or lower narrowcast.min-clients. The run can go on "
                    "from its folder"
                )
            if not said:
                log.info("waiting for clients: %d of %d are present", len(self.host), minimum)
                said = True
            time.sleep(POLL_SECONDS)
            self.look()

    def forget(self, node: int) -> None:
        """The node has left, or does not answer: no work until it replies to a new query."""
        member = self.members.pop(node, None)
        for client in member.clients if member else []:
            self.host.pop(client, None)

    def _hear(self) -> None:
        if not self._asked:
            return
        for reply in self.grid.pull_messages(list(self._asked)):
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if reply.has_error():
                log.warning("node %d cannot take part: %s", node, reply.error.reason)
                continue
            try:
                self._welcome(node, unpack(reply.content, Here))
            except WireError as error:
                if node not in self._refused:
                    log.warning("node %d is left out: %s", node, error)
                    self._refused.add(node)

    def _welcome(self, node: int, here: Here) -> None:
        if not here.clients or len(set(here.clients)) < len(here.clients):
            raise WireError(f"it must host clients, each once, and says {here.clients[:10]}")
        for client in here.clients:
            if self.host.get(client, node) != node:
                raise WireError(f"it claims client {client}, whom node {self.host[client]} hosts")
        self.members[node] = Member(list(here.clients), here.have)
        self.host |= dict.fromkeys(here.clients, node)
