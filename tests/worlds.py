"""A server that trains on noise, and clients that come, lose their models and claim what they like."""

from itertools import product

import torch
from hypothesis import strategies as st

from fitting import made
from narrowcast.methods import RoundInfo, method
from narrowcast.methods.base import DENSE, LOG
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

RUN, KEY = b"the run.", 3
VARIANTS = list(product([1, 3], [0, "epoch", 1, 4]))  # K, refresh


# Small enough for a model of 61 parameters; each method takes what concerns it.
SMALL = {"key": KEY, "dim": 5, "subspaces": 3, "k": 7, "sketch_rows": 3, "sketch_columns": 11, "rank": 1,
         "directions": 9, "clients": 6}  # fmt: skip


def small(name, **options):
    return made(name, **SMALL | options)


def intrinsic(K=1, refresh=0, dim=5, **options):
    return method("k-subspace-time-varying", key=KEY, dim=dim, subspaces=K, refresh=refresh, **options)


def raw(value):
    """State as bytes, to be compared bit for bit."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return {name: raw(v) for name, v in value.items()}
    return [raw(v) for v in value] if isinstance(value, list | tuple) else value


class World:
    """A server that trains on noise, three rounds an epoch, and the stage of each of its versions."""

    PER_EPOCH = 3

    def __init__(self, method, D=61):
        self.method, self.noise = method, torch.Generator().manual_seed(0)
        self.theta0 = torch.randn(D, generator=self.noise)
        rows = D // 7
        self.layout = Layout(("matrix", "vector"), ((rows, 5), (D - 5 * rows,)))
        self.server = method.server(self.theta0, self.layout)
        self.private = {}
        self.number, self.stages = 0, {0: 0}
        self.theta = method.theta(self.server)

    @property
    def round(self):
        digest = exchange.digest_of(self.method, self.server, self.theta)
        return Round(RUN, KEY, self.number, self.server.version, digest)

    def update(self):
        """What a client would find: a gradient, or a slope."""
        return torch.randn(1 if self.method.probes else self.theta0.numel(), generator=self.noise)

    def today(self):
        """The model of a client that has just come."""
        down = self.method.download(self.server, None)
        return self.method.reconcile(self.newcomer(), down, self.server.version)[0]

    def upload(self, client=0, v=None):
        """The payload of a client that has today's model, and keeps its private state."""
        v, private = self.update() if v is None else v, self.private.get(client)
        private, up = self.method.compress(private, v, self.today(), self.round.client_key(client))
        self.private[client] = private
        return up

    def step(self, clients=2, rate=0.5):
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

    def steps(self, count, rate):
        for _ in range(count):
            self.step(rate=rate)

    def visit(self, model, have):
        """The client's new model; its theta is checked against the server's by digest and bit for bit."""
        data = exchange.send_down(self.method, self.server, self.round, have)
        model, theta, round = exchange.receive_down(self.method, model, data, RUN, KEY)
        assert raw(theta) == raw(self.theta)
        assert round == self.round
        assert model.version == self.server.version
        return model

    def newcomer(self):
        return self.method.newcomer(self.theta0, self.layout)

    def behind(self, have):
        """How many stages ago the server was at version `have`; nobody was ever at an unknown version."""
        return self.server.stage - self.stages.get(have, 0)

    def smallest(self, m):
        """(bytes, kind) of the least that brings a client m stages on: m + 1 blocks, or base and one."""
        sigma, stage = wire.block(self.server.sigma, self.method.downlink), self.server.stage
        log = wire.payload([sigma] * (m + 1), kind=LOG, stage=stage)
        dense = wire.payload([wire.block(self.server.base), sigma], kind=DENSE, stage=stage)
        return min((len(wire.encode_payload(p)), p.kind) for p in (log, dense))


# What a client is sent, and what it makes of it.

EVENTS = st.tuples(
    st.sampled_from(["visit"] * 6 + ["step"] * 3 + ["empty step", "lost model", "wrong claim"]),
    st.integers(0, 5),  # which client
    st.integers(-3, 90),  # what it claims, if it is wrong
)


def wander(world, events, sent, refused):
    """Clients come, lose their models and claim what they like; a refused one comes again as a newcomer.

    `sent(model, have, down)` judges every download, `refused(model, have)` every refusal.
    """
    models = {}  # of those that have come, and have not lost it
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
