"""The app of the fault tests: both sides note the theta they have, and a node misbehaves when it is told to.

A copy goes into the app's folder, for nodes are processes of their own. The node's config says where to take
notes (`notes`, a folder) and what to do wrong in which round (`faults`, "1:exception 4:nan", or "*:sleep").
One that waits ("*:wait") does not answer in a round while the file `hold` among the notes names it or an
earlier one: so a test lets others come, however long they take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from narrowcast.flower.messages import Answer, Order, Upload, pack, unpack
from narrowcast.rounds import exchange
from narrowcast.wire import messages as wire

LATE = 100.0  # seconds that a straggler sleeps, unless its node's config says otherwise
CLIENT = "from demo.faulty_app import misbehave, watch_clients\nfrom narrowcast.flower import client_app\n\n"
CLIENT += "watch_clients()\napp = client_app(mods=[misbehave])\n"
SERVER = "from demo.faulty_app import watch_server\nfrom narrowcast.flower import server_app\n\n"
SERVER += "watch_server()\napp = server_app()\n"

_notes: Path | None = None  # of the node whose message this process handles
_round: Any = None  # that it is in


def install(app: Path) -> Path:
    """Make a demo app (`demo.write_app`) one that takes notes and misbehaves."""
    (app / "demo" / "faulty_app.py").write_text(Path(__file__).read_text())
    (app / "demo" / "client.py").write_text(CLIENT)
    (app / "demo" / "server.py").write_text(SERVER)
    return app


def watch_clients() -> None:
    """Note the digest of every theta that a client is about to train on, taken from its own numbers."""
    plain = exchange.receive_down

    def receive_down(*arguments: Any, **more: Any) -> Any:
        global _round
        model, theta, round = plain(*arguments, **more)
        _round = round
        if _notes is not None:
            _note(_notes, f"{round.number} {_digest(theta)}")
        return model, theta, round

    exchange.receive_down = receive_down


def watch_server() -> None:
    """Note the digest of the server's theta at the beginning of every round, and who was counted in it."""
    from narrowcast.flower.federation import Federation

    plain, plain_close = Federation.open, Federation.close

    def open_(self: Any) -> Any:
        round, record = plain(self)
        _note(Path(f"{self.settings.folder}.thetas"), f"{round.number} {_digest(self.theta)}")
        return round, record

    def close(self: Any, acc: Any, record: Any) -> None:
        counted = sorted(client for client, last in self.counted.items() if last == record.round)
        _note(Path(f"{self.settings.folder}.counted"), " ".join(map(str, [record.round, *counted])))
        plain_close(self, acc, record)

    Federation.open, Federation.close = open_, close  # type: ignore[method-assign]


def misbehave(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """The mod."""
    global _notes
    config = context.node_config
    folder, part = Path(str(config["notes"])), config["partition-id"]
    folder.mkdir(parents=True, exist_ok=True)
    _notes = folder / f"node-{part}.thetas"
    if message.metadata.message_type != MessageType.TRAIN:
        _note(folder / f"node-{part}.asked", str(message.metadata.message_type))
        return call_next(message, context)
    round = wire.decode(unpack(message.content, Order).down).round
    _note(folder / f"node-{part}.begun", str(round))
    faults = dict(pair.split(":") for pair in str(config.get("faults", "")).split())
    fault = faults.get(str(round), faults.get("*"))
    if fault == "exception":
        raise RuntimeError("the disk is full")
    if fault == "sleep":
        time.sleep(float(config.get("late", LATE)))
    while fault == "wait" and _held(folder / "hold", round):
        time.sleep(0.2)
    reply = call_next(message, context)
    answer, first = unpack(reply.content, Answer), folder / f"node-{part}.answer"
    if answer.uploads and not first.exists():
        first.write_bytes(msgspec.msgpack.encode(answer))
    if answer.uploads and fault in LIES:  # without uploads it asks for another download, and lies then
        return Message(LIES[fault](answer, first.read_bytes()), reply_to=message)
    return reply


def _garbage(answer: Answer, old: bytes) -> RecordDict:
    return RecordDict({"narrowcast": ConfigRecord({"data": b"\xff" * 99})})


def _rubbish(answer: Answer, old: bytes) -> RecordDict:
    return pack(Answer(answer.have, [Upload(u.client, b"\xff" * 99, u.loss) for u in answer.uploads]))


def _nan(answer: Answer, old: bytes) -> RecordDict:
    def poison(message: wire.Message) -> wire.Message:
        numbers = message.payload.blocks[0]
        blocks = [wire.Block(numbers.format, b"\x00\x00\xc0\x7f" * (len(numbers.data) // 4))]
        return _replace(message, payload=_replace(message.payload, blocks=blocks))

    return _edited(answer, poison)


def _another_run(answer: Answer, old: bytes) -> RecordDict:
    return _edited(answer, lambda message: _replace(message, run=b"anot"))


def _old_round(answer: Answer, old: bytes) -> RecordDict:
    """What it sent in its first round, once more, bit for bit."""
    return pack(msgspec.msgpack.decode(old, type=Answer))


def _billion(answer: Answer, old: bytes) -> RecordDict:
    return _edited(answer, lambda message: _replace(message, weight=wire.MAX_WEIGHT))


LIES: dict[str, Callable[[Answer, bytes], RecordDict]] = {
    "garbage": _garbage,
    "rubbish": _rubbish,
    "nan": _nan,
    "another-run": _another_run,
    "old-round": _old_round,
    "billion": _billion,
}
_replace: Any = msgspec.structs.replace


def _edited(answer: Answer, edit: Callable[[wire.Message], wire.Message]) -> RecordDict:
    uploads = [Upload(u.client, forged(u.data, edit, _round), u.loss) for u in answer.uploads]
    return pack(Answer(answer.have, uploads))


def forged(data: bytes, edit: Callable[[wire.Message], wire.Message], round: exchange.Round) -> bytes:
    """An upload of this round, edited, with the check that a liar would put on it."""
    honest = wire.decode(data)
    route = next(r for r in range(64) if wire.check(honest, round.run, round.digest, r) == honest.check)
    message = edit(honest)
    return wire.encode(_replace(message, check=wire.check(message, round.run, round.digest, route)))


def _held(path: Path, round: int) -> bool:
    try:
        return int(path.read_text() or 0) <= round
    except FileNotFoundError:
        return False


def _digest(theta: Any) -> str:
    return xxhash.xxh3_64_hexdigest(theta.contiguous().numpy().tobytes())


def _note(path: Path, line: str) -> None:
    with path.open("a") as f:
        f.write(line + "\n")
