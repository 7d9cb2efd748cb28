"""A server that trains on noise, and clients that come, lose their models and claim what they like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import torch
from torch import Tensor

from narrowcast.methods.base import Method, Model, Private, RoundInfo
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.testing.contract import raw
from narrowcast.wire.messages import Payload, WireError

RUN, KEY = b"the run.", 3
SIZES = (61, 150)  # of models, in parameters
Event = tuple[str, int, int]  # what, which client, what it claims if it is wrong


class World:
    """A server that trains on noise, three rounds an epoch, and the stage of each of its versions."""

    PER_EPOCH = 3

    def __init__(self, method: Method[Any], D: int = 61) -> None:
        self.method: Any = method
        self.noise = torch.Generator().manual_seed(0)
        self.theta0 = torch.randn(D, generator=self.noise)
        rows = D // 7
        self.layout = Layout(("matrix", "vector"), ((rows, 5), (D - 5 * rows,)))
        self.server: Any = method.server(self.theta0, self.layout)
        self.private: dict[int, Private | None] = {}
        self.number, self.stages = 0, {0: 0}
        self.theta = method.theta(self.server)

    @property
    def round(self) -> Round:
        digest = exchange.digest_of(self.method, self.server, self.theta)
        return Round(RUN, KEY, self.number, self.server.version, digest)

    def update(self) -> Tensor:
        """What a client would find: a gradient, or a slope."""
        return torch.randn(1 if self.method.probes else self.theta0.numel(), generator=self.noise)

    def today(self) -> Model:
        """The model of a client that has just come."""
        down = self.method.download(self.server, None)
        model: Model = self.method.reconcile(self.newcomer(), down, self.server.version)[0]
        return model

    def upload(self, client: int = 0, v: Tensor | None = None) -> Payload:
        """The payload of a client that has today's model, and keeps its private state."""
        v, private = self.update() if v is None else v, self.private.get(client)
        up: Payload
        private, up = self.method.compress(private, v, self.today(), self.round.client_key(client))
        self.private[client] = private
        return up

    def step(self, clients: int = 2, rate: float = 0.5) -> World:
        acc = self.method.zero(self.server)
        for client in range(clients):
            acc = self.method.add(acc, self.upload(client), 1.0)
        epoch, place = divmod(self.number, self.PER_EPOCH)
        info = RoundInfo(self.number, epoch, place == self.PER_EPOCH - 1, rate)
        self.server = self.method.step(self.server, acc, info)
        self.theta = self.method.theta(self.server)
        self.number += 1
        self.stages[self.server.version] = getattr(self.server, "stage", 0)
        return self

    def steps(self, count: int, rate: float) -> None:
        for _ in range(count):
            self.step(rate=rate)

    def visit(self, model: Model, have: int | None) -> Model:
        """The client's new model; its theta is checked against the server's by digest and bit for bit."""
        data = exchange.send_down(self.method, self.server, self.round, have)
        model, theta, round = exchange.receive_down(self.method, model, data, RUN, KEY)
        assert raw(theta) == raw(self.theta), "the client's theta is not the server's"
        assert round == self.round, f"the message is of {round}, this is {self.round}"
        assert model.version == self.server.version, (
            f"the client says it has version {model.version}, it was sent {self.server.version}"
        )
        return model

    def newcomer(self) -> Model:
        model: Model = self.method.newcomer(self.theta0, self.layout)
        return model

    def sealed(self, client: int = 0) -> bytes:
        """The upload of a client of weight 1 as it is encoded."""
        return exchange.seal(self.round, self.upload(client), weight=1)


EVENTS = ["visit"] * 6 + ["step"] * 3 + ["empty step", "lost model", "wrong claim"]


def events(seed: int, count: int) -> list[Event]:
    chance = Random(seed)
    return [(chance.choice(EVENTS), chance.randint(0, 5), chance.randint(-3, 90)) for _ in range(count)]


def wander(
    world: World,
    events: Iterable[Event],
    sent: Callable[[Model, int | None, Payload], None],
    refused: Callable[[Model, int | None], None],
) -> None:
    """Clients come, lose their models and claim what they like; a refused one comes again as a newcomer.

    `sent(model, have, down)` judges every download, `refused(model, have)` every refusal.
    """
    models: dict[int, Model] = {}  # of those that have come, and have not lost it
    for event, client, claim in events:
        if event.endswith("step"):
            world.step(clients=0 if event.startswith("empty") else 2)
            continue
        if event == "lost model":
            models.pop(client, None)
        model = models.get(client, world.newcomer())
        have = claim if event == "wrong claim" else model.version
        sent(model, have, world.method.download(world.server, have))
        try:
            models[client] = world.visit(model, have)
        except WireError:
            refused(model, have)
            models[client] = world.visit(world.newcomer(), None)
