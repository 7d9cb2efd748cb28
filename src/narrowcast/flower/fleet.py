"""Who is there: which node hosts which clients, and what version of the model it has.

A node is asked once, when the engine first lists it, and again after it failed to answer; until its reply is
in, it is given no work. Asking never holds a round up. A node that is slow is not asked a second time: the
two would be answered side by side, and the later end would put back what the node had at the earlier
beginning.
A claim to a client that another node hosts waits until that one has left.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from narrowcast.flower.messages import Ask, Have, Here, pack, received
from narrowcast.flower.roster import Roster
from narrowcast.flower.settings import FleetSettings
from narrowcast.texts import PrintableLog
from narrowcast.wire.messages import WireError

log = PrintableLog(logging.getLogger("flwr"))  # Flower's own: it reaches the user's terminal
POLL_SECONDS = 0.3
AGAIN_SECONDS = 60.0  # before a node that could not take part is asked again: each time it starts a process
CLAIM_BYTES = 1024  # of a reply beside its clients, each of whom takes at most CLIENT_BYTES
CLIENT_BYTES = 16


class EngineEnded(RuntimeError):
    """There is no engine any more: no node will answer."""


class Unavailable(WireError):
    """What the engine says of a node that does not answer any more."""


Reply = tuple[int, Message | Exception]  # a node, and what it sent or why that cannot be read


@dataclass
class Member:
    """A node that has said who it is."""

    clients: list[int]
    have: Have
    held: int = 0  # examples it evaluates on, as it has said


class Fleet:
    """The nodes of a run with so many clients in all."""

    def __init__(self, grid: Grid, run: bytes, total: int, settings: FleetSettings) -> None:
        self.grid, self.run, self.total, self.settings = grid, run, total, settings
        self.roster = Roster(Path(settings.roster) if settings.roster else None)
        self.members: dict[int, Member] = {}  # by node id
        self.host: dict[int, int] = {}  # client -> node id
        self.examples: dict[int, int] = {}  # client -> how many it has, as its node has said
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> (node, when)
        self._claims: dict[int, Here] = {}  # node -> what it claims and others still host
        self._left_out: dict[int, float] = {}  # node -> when it was: an error, or a claim that is wrong

    @property
    def clients(self) -> list[int]:
        """Those present."""
        return sorted(self.host)

    def look(self) -> None:
        """Ask newcomers, hear who has replied, and forget who has left."""
        listed, now = set(self.grid.get_node_ids()), time.monotonic()
        for node in set(self.members) - listed:
            self.forget(node)
        self._claims = {node: here for node, here in self._claims.items() if node in listed}
        for node, here in list(self._claims.items()):
            self._welcome(node, here)
        self._hear()
        patience = self.settings.timeout
        self._asked = {
            i: (node, when)
            for i, (node, when) in self._asked.items()
            if node in listed and now - when < patience
        }
        self._left_out = {n: when for n, when in self._left_out.items() if now - when < AGAIN_SECONDS}
        known = {node for node, _ in self._asked.values()} | set(self.members) | set(self._claims)
        if new := sorted(listed - known - set(self._left_out)):
            asks = [Message(pack(Ask(self.run)), node, MessageType.QUERY, ttl=patience) for node in new]
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

    def exchange(self, messages: Iterable[Message], end: float) -> Iterator[Reply]:
        """Send them; each node's reply as it comes, until all are in or the time is over."""
        messages = list(messages)
        sent = zip(self.grid.push_messages(messages), messages, strict=False)  # none where the engine refused
        waiting = {i: message.metadata.dst_node_id for i, message in sent if i}
        while waiting:
            over = time.monotonic() >= end  # whoever was in time is heard, also where another was slow
            for i, node in list(waiting.items()):
                reply = self._pulled(i, node)
                if reply is not None:
                    del waiting[i]
                    yield node, reply
            if over:
                return
            if waiting:
                time.sleep(max(0.0, min(POLL_SECONDS, end - time.monotonic())))

    def _pulled(self, i: str, node: int) -> Message | Exception | None:
        """What has come for message i, which went to this node; None: nothing yet.

        One message at a time: the engine unpacks what the node has packed, and believes what that says of
        itself, so that of several one could be taken for another's, or keep the others from being read.
        """
        try:
            reply = next(iter(self.grid.pull_messages([i])), None)
        except (httpx.TransportError, EngineEnded):
            raise
        except Exception as error:
            return error
        if reply is not None and reply.metadata.src_node_id != node:
            return Unavailable("it is gone, or its reply is not in its own name")
        return reply

    def forget(self, node: int) -> None:
        """The node has left, or does not answer: no work until it replies to a new query."""
        member = self.members.pop(node, None)
        for client in member.clients if member else []:
            self.host.pop(client, None)

    def _hear(self) -> None:
        for i, (node, _) in list(self._asked.items()):
            reply = self._pulled(i, node)
            if reply is None:
                continue
            del self._asked[i]
            try:
                here = received(reply, Here, CLAIM_BYTES + CLIENT_BYTES * self.total)
                self._check(node, here)
            except Exception as error:  # whatever it is, it is this node's alone
                log.warning("node %d is left out: %s", node, error)
                self._left_out[node] = time.monotonic()
                continue
            self._welcome(node, here)

    def _check(self, node: int, here: Here) -> None:
        """A WireError for a claim that cannot be right, whoever else is there."""
        clients, most = here.clients, self.settings.node_clients or self.total
        if not clients or len(set(clients)) < len(clients):
            raise WireError(f"it must host clients, each once, and says {clients[:10]}")
        if len(clients) > most:
            raise WireError(f"it claims {len(clients)} clients: a node may host {most}")
        if max(clients) >= self.total:
            raise WireError(f"it claims client {max(clients)}: the federation has {self.total}, from 0")
        if len(here.examples) != len(clients):
            raise WireError(f"it has {len(clients)} clients, and says of {len(here.examples)} what they have")
        self.roster.check(node, clients)

    def _welcome(self, node: int, here: Here) -> None:
        """Give the node its clients, or keep its claim for when they are free."""
        taken = next((c for c in here.clients if self.host.get(c, node) != node), None)
        if taken is not None:
            if node not in self._claims:
                log.warning(
                    "node %d waits: it claims client %d, whom node %d hosts", node, taken, self.host[taken]
                )
            self._claims[node] = here
            return
        self._claims.pop(node, None)
        self.roster.bind(node, here.clients)
        self.members[node] = Member(list(here.clients), here.have, here.held)
        self.host |= dict.fromkeys(here.clients, node)
        self.examples |= zip(here.clients, here.examples, strict=True)
