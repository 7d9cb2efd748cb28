"""What an attacker sees: real rounds of a method with one client, its messages decoded as the server does.

The attacker is the server, or whoever reads its traffic: it knows theta, the run's key and so A or the
sketch, and the numbers of the upload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from narrowcast import methods, wire
from narrowcast.methods import FetchSGD, RoundInfo, Where
from narrowcast.numerics import Key
from narrowcast.rounds import exchange
from narrowcast.wire import Payload
from narrowcast_studies.attacks import maps
from narrowcast_studies.attacks.maps import LinearMap
from narrowcast_studies.attacks.models import Net

CLIENT = 0
RUN = bytes(8)
SKETCH_ROWS = 5


@dataclass(frozen=True)
class Observation:
    """One round: theta, the numbers sent = map(gradient), and the D numbers the server makes of them."""

    theta: Tensor  # (D,)
    sent: Tensor  # (m,)
    map: LinearMap
    expanded: Tensor  # (D,)
    bytes: int


Seen = tuple[LinearMap, Tensor]  # the map, and the re-expanded vector


def _whole(method: Any, D: int, up: Payload, where: Where, numbers: Tensor) -> Seen:
    return maps.whole(), numbers


def _sparse(method: Any, D: int, up: Payload, where: Where, numbers: Tensor) -> Seen:
    assert isinstance(where, tuple)
    through = maps.places(where[1], D)
    return through, through.adjoint(numbers)


def _sketched(method: FetchSGD, D: int, up: Payload, where: Where, numbers: Tensor) -> Seen:
    sketch = method.sketch(D)
    return maps.count_sketch(sketch), sketch.estimate(numbers)


def _projected(method: Any, D: int, up: Payload, where: Where, numbers: Tensor) -> Seen:
    assert isinstance(where, int)
    through = maps.projection(method.matrix(D, up.stage, where))
    return through, through.adjoint(numbers)


class Kind(NamedTuple):
    """How a method is given a number of numbers, and what is seen of its upload."""

    options: Callable[[int], dict[str, Any]]
    seen: Callable[..., Seen]


KINDS: dict[str, Kind] = {
    "uncompressed": Kind(lambda n: {}, _whole),
    "topk": Kind(lambda n: {"k": n}, _sparse),
    "fetchsgd": Kind(lambda n: {"sketch_columns": max(1, n // SKETCH_ROWS)}, _sketched),
    "static": Kind(lambda n: {"dim": n}, _projected),
    "time-varying": Kind(lambda n: {"dim": n, "refresh": 1}, _projected),
}


def observe(
    net: Net, x: Tensor, y: Tensor, method: str, numbers: int, key: Key, rounds: int = 1, rate: float = 0.0
) -> list[Observation]:
    """The uploads of a client that has the batch (x, y) in every round; a rate of 0 leaves theta as it is."""
    if method not in KINDS:
        raise ValueError(f"no attack on {method!r}: choose one of {', '.join(KINDS)}")
    kind = KINDS[method]
    made = methods.method(method, key=key, **kind.options(numbers))
    server = made.server(net.theta0, net.layout)
    model, private = made.newcomer(net.theta0, net.layout), None
    seen: list[Observation] = []
    for number in range(rounds):
        digest = wire.digest(made.theta(server))
        round = exchange.Round(RUN, key, number, server.version, digest)
        down = exchange.send_down(made, server, round, model.version)
        model, theta, _ = exchange.receive_down(made, model, down, RUN, key)
        if seen and torch.equal(theta, seen[-1].theta):
            theta = seen[-1].theta  # the same vector: its gradient need not be taken twice
        v = net.gradient(theta, x, y)
        private, data = exchange.send_up(made, private, v, model, round, CLIENT, 1)
        up = exchange.check_up(made, data, round, CLIENT).payload
        where, sent = made.terms(made.zero(server), up)
        through, expanded = kind.seen(made, v.numel(), up, where, sent)
        seen.append(Observation(theta, sent, through, expanded, len(data)))
        acc = exchange.receive_up(made, made.zero(server), data, round, CLIENT, set())
        server = made.step(server, acc, RoundInfo(number, number, True, rate))
    return seen
