"""What travels inside Flower's messages: one record of bytes each way, decoded as hostile.

    server -> node   Order     the download, which of the node's clients train, and at what rate
    node -> server   Answer    their uploads, or what the node has, if the download was not for that
    server -> node   Ask       which clients do you host, and what have you of this run?
    node -> server   Here      the reply to that

Downloads and uploads are the core's own encoded messages, carried as they are. Everything goes as `bytes` in
one ConfigRecord, for that costs the engine the fewest requests; what is long is cut into several records.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec import Meta

from narrowcast.wire.messages import Bytes8, WireError

RECORD = "narrowcast"  # the record of a message; those that follow are narrowcast.1, narrowcast.2, ...
FIELD = "data"
CHUNK = 4 << 20  # bytes a record: about what Flower cuts its own arrays into
MAX_CLIENTS = 1 << 20  # of one node

Number = Annotated[int, Meta(ge=0, lt=1 << 32)]
Clients = Annotated[list[Number], Meta(max_length=MAX_CLIENTS)]


class Ask(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: Bytes8


class Have(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a node can start from: the version of its model (None: theta0 alone), in which run."""

    theta0: Bytes8  # digest; a node with another one is sent the server's
    version: Number | None = None


class Here(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    clients: Clients  # the numbers of the clients that the node hosts
    examples: Clients  # how many each of them has
    have: Have
    held: Number = 0  # examples that the node keeps apart to evaluate on


class Exam(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Evaluate this model on what is held out."""

    run: Bytes8
    have: Number | None  # the version that `down` starts from
    down: bytes  # the core's message
    theta0: bytes = b""  # float32, to a node that has another one


class Sums(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Metrics summed over a node's held-out examples, so that the sums of all nodes give the mean."""

    have: Have
    examples: Number = 0
    metrics: Annotated[dict[Annotated[str, Meta(max_length=40)], float], Meta(max_length=16)] = {}
    lacks: Annotated[str, Meta(max_length=200)] = ""


class Order(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: Bytes8
    have: Number | None  # the version that `down` starts from
    down: bytes  # the core's message
    clients: Clients  # who trains
    counted: list[Number | None]  # the last round in which an update of each was counted
    kept: list[
        Number | None
    ]  # the same, as the server's checkpoint has it: a server killed now goes on there
    rate: float
    theta0: bytes = b""  # float32, to a node that has another one


class Upload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    client: Number
    data: bytes  # the core's message; empty: this client has nothing to send, see `why`
    loss: float
    lost: bool = False  # its private state was not to be found, and was begun anew
    why: Annotated[str, Meta(max_length=200)] = ""


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    have: Have
    uploads: Annotated[list[Upload], Meta(max_length=MAX_CLIENTS)] = []
    lacks: Annotated[str, Meta(max_length=200)] = ""  # why the download was of no use: send another


T = TypeVar("T", Ask, Here, Order, Answer, Exam, Sums)
_encoder = msgspec.msgpack.Encoder()


def pack(content: Ask | Here | Order | Answer | Exam | Sums) -> RecordDict:
    """The content as records."""
    data = _encoder.encode(content)
    return RecordDict(
        {
            _name(i): ConfigRecord({FIELD: data[start : start + CHUNK]})
            for i, start in enumerate(range(0, len(data), CHUNK))
        }
    )


def received(reply: Message | Exception, kind: type[T], limit: int) -> T:
    """The content of a node's reply; that the node has failed, or cannot be read, is an error too."""
    if isinstance(reply, Exception):
        raise reply
    if reply.has_error():
        raise WireError(f"error {reply.error.code}: {reply.error.reason}"[:1000])
    return unpack(reply.content, kind, limit)


def unpack(records: RecordDict, kind: type[T], limit: int = 1 << 34) -> T:
    """The content of a message, checked against its schema; one of more bytes than `limit` is not read."""
    parts, size = list[bytes](), 0
    try:
        while (name := _name(len(parts))) in records:
            part = records[name][FIELD]
            if not isinstance(part, bytes):
                raise WireError(f"record {name} holds a {type(part).__name__}, not bytes")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise WireError(f"over the {limit} bytes that this {kind.__name__} can need")
        return msgspec.msgpack.decode(parts[0] if len(parts) == 1 else b"".join(parts), type=kind)
    except WireError:
        raise
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"not a narrowcast {kind.__name__}: {error}") from None


def _name(part: int) -> str:
    return RECORD if part == 0 else f"{RECORD}.{part}"
