"""The four half-steps of a round, with every check between bytes and methods. All drivers use these.

server: send_down -> bytes -> client: receive_down, ..., send_up -> bytes -> server: receive_up
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import xxhash
from torch import Tensor

from narrowcast.aggregates.base import Aggregate
from narrowcast.aggregates.mean import MEAN
from narrowcast.methods.base import DENSE, Accumulator, Method, Model, Server
from narrowcast.numerics import keyed
from narrowcast.numerics.flat import all_finite
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.numerics.process import flushes_denormals, own_settings
from narrowcast.rounds.task import IndexArray
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import Message, Payload, WireError

_derive = lru_cache(maxsize=1 << 12)(keyed.derive)  # both half-steps of an upload ask for the same key


@dataclass(frozen=True)
class Round:
    """Which exchange this is: every message names it, and one that names another is refused."""

    run: bytes  # 8 bytes that identify the run
    key: Key  # the run's key
    number: int
    version: int  # the server's, when the round began
    digest: bytes  # of the server's model at that version, see `digest_of`

    def client_key(self, client: int) -> Key:
        """The key of a client in this round, from which its route follows: both sides know it."""
        return _derive(self.key, Purpose.ROUTE, self.number, client)

    def client_keys(self, clients: IndexArray) -> list[Key]:
        """The keys of many clients."""
        return keyed.derive_many(self.key, Purpose.ROUTE, self.number, clients)


def run_id(description: bytes) -> bytes:
    """Eight bytes from whatever describes a run: its config, its theta0."""
    return xxhash.xxh3_64_digest(description)


def digest_of(method: Method[Any], server: Server, theta: Tensor) -> bytes:
    """Of the server's model: theta, and what else of it the method's clients must have."""
    return wire.digest(theta, method.side(server))


def seal(round: Round, payload: Payload, weight: int = 0) -> bytes:
    """A payload in the envelope of its round, encoded."""
    return wire.encode(wire.sealed(round.run, round.number, round.version, weight, round.digest, payload))


def send_down(method: Method[Any], server: Server, round: Round, have: int | None) -> bytes:
    """What a client at version `have` lacks, encoded."""
    with own_settings():
        return seal(round, method.download(server, have))


def is_fallback(method: Method[Any], down: bytes) -> bool:
    """Whether a download is the whole model although the method has less to send."""
    return not method.whole_model and wire.kind_of(down) == DENSE


def receive_down(
    method: Method[Any], model: Model, data: bytes, run: bytes, key: Key, out: Tensor | None = None
) -> tuple[Model, Tensor, Round]:
    """(the client's new model, theta, the round it is in), theta checked against the server's digest."""
    message = _decode(data, run)
    version = message.version
    with own_settings():
        model, theta = method.reconcile(model, message.payload, version, out)
    digest = wire.digest(theta, model.side)
    if wire.check(message, run, digest, 0) != message.check:
        flushed = ". This process flushes denormals: torch.set_flush_denormal(False)"
        raise WireError(
            f"theta at version {version} differs from the server's: this client must ask again as a newcomer"
            + flushed * flushes_denormals()
        )
    return model, theta, Round(run, key, message.round, version, digest)


def send_up(
    method: Method[Any], private: Any, v: Tensor, model: Model, round: Round, client: int, weight: int
) -> tuple[Any, bytes]:
    """(the client's new private state, its update, encoded); one that is not finite stays where it is."""
    if not all_finite(v):
        raise WireError(f"the update of client {client} has a NaN or an infinity")
    with own_settings(threads=1):
        made = method.compress(private, v, model, round.client_key(client))
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Payload):
        raise TypeError(_no_payload(method, made))
    return made[0], seal(round, made[1], weight)


def _no_payload(method: Method[Any], made: object) -> str:
    kind, parts = type(method), made if isinstance(made, tuple) else (made,)
    return (
        f"compress of {kind.__module__}:{kind.__qualname__} returned "
        f"{', '.join(type(part).__name__ for part in parts)}: return (private, payload([block(numbers)]))"
    )


def send_many(
    method: Method[Any], vs: Tensor, model: Model, round: Round, clients: list[int], weights: list[int]
) -> Iterator[bytes]:
    """`send_up` of many clients who keep nothing, vs (W, D), one after the other: an error ends it.

    Each is made when it is asked for, so that it is still in the cache when it is read.
    """
    if not all_finite(vs):
        raise WireError("an update has a NaN or an infinity")
    keys = [round.client_key(client) for client in clients]
    with own_settings(threads=1):
        payloads = iter(method.compress_many(vs, model, keys))
    for weight in weights:
        with own_settings(threads=1):
            payload = next(payloads)
        if not isinstance(payload, Payload):
            raise TypeError(_no_payload(method, payload))
        yield seal(round, payload, weight)


def receive_up(
    method: Method[Any],
    acc: Accumulator,
    data: bytes,
    round: Round,
    client: int,
    seen: set[int],
    weight: int = 1,
    aggregate: Aggregate = MEAN,
) -> Accumulator:
    """acc with one client's update added; a message that does not belong here is a WireError.

    `seen` are the clients whose updates this round has already: one upload a client and round.
    """
    if client in seen:
        raise WireError(f"client {client} has sent its update of round {round.number + 1} already")
    message = check_up(method, data, round, client, weight)
    with own_settings():
        acc = aggregate.add(method, acc, message.payload, weight)
    seen.add(client)
    return acc


def check_up(method: Method[Any], data: bytes, round: Round, client: int, weight: int = 1) -> Message:
    """The message, if it is this run's, this round's, from this theta, by the route this client must take.

    `weight` is what the server knows the update to weigh: another claim is refused. With the message come the
    client's key and route, which it did not have to send.
    """
    message = _decode(data, round.run)
    if message.weight != min(weight, wire.MAX_WEIGHT):
        raise WireError(f"client {client} claims a weight of {message.weight}, not {weight}")
    if not message.payload.blocks:
        raise WireError(f"client {client} sent no numbers")
    if (message.round, message.version) != (round.number, round.version):
        raise WireError(
            f"an update of round {message.round + 1}, version {message.version}, "
            f"this is round {round.number + 1}, version {round.version}"
        )
    key = round.client_key(client)
    route = method.route(key)
    if wire.check(message, round.run, round.digest, route) != message.check:
        raise WireError(
            f"client {client} trained on a theta that is not the server's, or by another route than its own"
        )
    replace = msgspec.structs.replace
    return replace(message, payload=replace(message.payload, route=route, key=key))


def _decode(data: bytes, run: bytes) -> Message:
    message = wire.decode(data)
    if message.run != run[:4]:
        raise WireError("a message of another run")
    return message
