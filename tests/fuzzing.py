"""Hostile bytes by the hundred thousand: true messages, mutated, at everything that reads bytes from outside.

    python tests/fuzzing.py 1000000 [SEED]

A target is whatever reads: every method's uploads at the server and downloads at the client, Flower's own
messages, the model file. Each mutated message must be used properly or refused with a WireError, in bounded
time and memory, and leave the state of whoever read it as it was. A failure prints the message.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from flwr.app import ConfigRecord, RecordDict

from federations import settings, whole
from fitting import made
from narrowcast.aggregates.mean import MEAN
from narrowcast.flower.examination import Examination
from narrowcast.flower.messages import Answer, Ask, Exam, Have, Here, Order, Sums, Upload, pack, unpack
from narrowcast.flower.uploads import Uploads
from narrowcast.methods import METHODS
from narrowcast.methods.base import Accumulator, RoundInfo
from narrowcast.numerics.flat import Layout
from narrowcast.rounds import exchange, records
from narrowcast.rounds.exchange import Round
from narrowcast.runs import modelfile
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

RUN, KEY = exchange.run_id(b"fuzzing"), 5
SHAPES = ((6, 5), (6,), (4, 6), (4,))
D = sum(a * b for a, b in ((6, 5), (6, 1), (4, 6), (4, 1)))
LAYOUT = Layout(("a", "b", "c", "d"), SHAPES)
SECONDS = 2.0  # of this process's time, for one message
MEMORY = 256 << 20  # beyond what a target took before
LONGEST = MEMORY >> 10  # of a message: repeats of repeats would else take the memory themselves
BYTES = [b"", b"\0", b"\xff" * 8, b"\xff\xfe", bytes(40), b"\x7f\x80\0\0", b"\xc1", b"\xdd\xff\xff\xff\xff"]
VALUES: list[Any] = [
    0, -1, 1, 127, 128, 255, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, -(1 << 63), 0.0, float("nan"),
    float("inf"), 1e308, None, True, "", "text", "\ud7ff" * 9, b"", bytes(4), bytes(8), b"\xff" * 400, [],
    [[]] * 40, {}, {"": 0}, {"dim": 1 << 40}, [0] * 3000,
]  # fmt: skip


@dataclass
class Target:
    """What reads bytes: `read` raises WireError alone, and `same` says whether its state is as it was."""

    name: str
    corpus: list[bytes]
    read: Callable[[bytes], object]
    same: Callable[[], bool] = lambda: True


def mutated(dice: random.Random, corpus: list[bytes]) -> bytes:
    """One of the corpus, changed once or a few times, as bytes or as a structure."""
    data = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        data = dice.choice(_CHANGES)(dice, data, corpus)[:LONGEST]
    return data


def _flip(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    place = dice.randrange(8 * len(data) + 8) % max(1, 8 * len(data))
    changed = bytearray(data)
    if changed:
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def _overwrite(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    new, at = dice.choice(BYTES), dice.randrange(len(data) + 1)
    return data[:at] + new + data[at + len(new) :]


def _insert(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    at = dice.randrange(len(data) + 1)
    return data[:at] + dice.choice(BYTES) + data[at:]


def _cut(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return dice.choice((data[:a], data[a:], data[:a] + data[b:]))


def _splice(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    other = dice.choice(corpus)
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


def _repeat(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] * dice.choice((1, 3, 200)) + data[b:]


def _structure(dice: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    """Exchange one value somewhere in the message, which stays well formed."""
    try:
        return msgspec.msgpack.encode(_exchanged(dice, msgspec.msgpack.decode(data)))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
        return _flip(dice, data, corpus)


def _exchanged(dice: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], _exchanged(dice, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        return value | {key: _exchanged(dice, value[key])}
    if isinstance(value, bytes) and value and dice.random() < 0.6:
        return _CHANGES[dice.randrange(4)](dice, value, [value])
    return dice.choice(VALUES)


_CHANGES = [_flip, _overwrite, _insert, _cut, _splice, _repeat, _structure, _structure, _structure]


def _of_method(name: str) -> Iterator[Target]:
    """A server after three rounds of two epochs, and a client that came in all of them."""
    method = made(name, dim=8, subspaces=3, key=KEY, directions=8, k=7, sketch_columns=8)
    theta0, ups, downs = torch.linspace(-1, 1, D), list[bytes](), list[bytes]()
    server, model = method.server(theta0, LAYOUT), method.newcomer(theta0, LAYOUT)
    v = torch.linspace(2, -1, 4 if method.probes else D)
    for number in range(4):
        digest = exchange.digest_of(method, server, method.theta(server))
        round = Round(RUN, KEY, number, server.version, digest)
        downs += [exchange.send_down(method, server, round, have) for have in (None, model.version)]
        newer, _, _ = exchange.receive_down(method, model, downs[-1], RUN, KEY)
        up = exchange.send_up(method, None, v, newer, round, 0, 3)[1]
        ups.append(up)
        if number < 3:
            model = newer
            acc = exchange.receive_up(method, method.zero(server), up, round, 0, set(), 3)
            server = method.step(server, acc, RoundInfo(number, number // 2, number % 2 == 1, 0.1))

    def add(data: bytes) -> None:
        acc = method.zero(server)
        before = acc.total.clone()
        try:
            acc = exchange.receive_up(method, acc, _resealed(method, data, round), round, 0, set(), 3)
        except WireError:
            assert torch.equal(acc.total, before), "a refused update has changed the sum"
            raise
        assert torch.isfinite(acc.total).all()

    def receive(data: bytes) -> None:
        newer, theta, seen = exchange.receive_down(method, model, data, RUN, KEY)
        assert wire.digest(theta, newer.side) == seen.digest

    kept = _frozen(method.state(server)), _frozen(model.base)
    same = lambda: kept == (_frozen(method.state(server)), _frozen(model.base))  # noqa: E731
    yield Target(f"upload of {name}", [ups[-1], *ups], add, same)
    yield Target(f"download of {name}", [*downs[-2:], *downs], receive, same)


def _resealed(method: Any, data: bytes, round: Round) -> bytes:
    """With the check that a liar would put on it, so that what it says is looked at."""
    message = wire.decode(data)
    check = wire.check(message, round.run, round.digest, method.route(round.client_key(0)))
    return wire.encode(msgspec.structs.replace(message, check=check))


def _frozen(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    if isinstance(state, dict):
        return {key: _frozen(value) for key, value in state.items()}
    return [_frozen(value) for value in state] if isinstance(state, (list, tuple)) else repr(state)


def _of_flower() -> Iterator[Target]:
    """What a server hears of nodes, and a node of its server."""
    run, _ = whole(settings("static", cohort=12))
    fleet, (round, record) = run.fleet, run.open()
    model, _, _ = exchange.receive_down(
        run.method, run.method.newcomer(run.theta0), exchange.send_down(run.method, run.server, round, None),
        round.run, round.key,
    )  # fmt: skip
    v = torch.ones(run.task.layout.size)
    data = [exchange.send_up(run.method, None, v, model, round, client, 1)[1] for client in (3, 4)]
    have, zero = Have(bytes(8), 3), run.method.zero(run.server)
    contents = {
        Here: [Here([3, 4], [10, 20], have), Here([0], [1], Have(bytes(8)))],
        Answer: [Answer(have, [Upload(3, data[0], 0.5), Upload(4, data[1], 0.5)]), Answer(have, lacks="x")],
        Order: [
            Order(RUN, 3, data[0], [3, 4], [None, 1], [None, 0], 0.1),
            Order(RUN, None, b"", [0], [None], [None], 1.0),
        ],
        Ask: [Ask(RUN)],
        Exam: [Exam(RUN, 3, data[0]), Exam(RUN, None, b"", bytes(40))],
        Sums: [Sums(have, 30, {"accuracy": 21.0, "loss": 17.5}), Sums(have, lacks="x")],
    }  # fmt: skip

    def answer(told: Answer) -> None:
        drops, acc = list[Any](), Accumulator(zero.total.clone())
        drop = lambda *a: drops.append(a)  # noqa: E731
        uploads = Uploads(run.method, MEAN, acc, round, {3: 1, 4: 1}, v.numel(), drop)
        uploads.take(told.uploads, [3, 4])
        acc = uploads.added(run.norms, 10)
        assert torch.isfinite(acc.total).all()
        assert len(drops) <= 2

    def sums(told: Sums) -> None:
        member = SimpleNamespace(held=30, clients=[3])
        exam = Examination(SimpleNamespace(members={7: member}), lambda node: (None, b"", b""), record)
        exam._check(7, told)
        exam.heard[7] = told
        assert all(map(math.isfinite, exam._means()[1].values()))

    here = lambda told: fleet._check(7, told)  # noqa: E731
    uses: dict[Any, Callable[[Any], object]] = {Here: here, Answer: answer, Sums: sums}
    for kind, examples in contents.items():
        corpus = [pack(content)["narrowcast"]["data"] for content in examples]

        def read(data: bytes, kind: Any = kind) -> None:
            told = unpack(RecordDict({"narrowcast": ConfigRecord({"data": data})}), kind, 1 << 20)
            uses.get(kind, lambda told: None)(told)

        yield Target(f"Flower's {kind.__name__}", corpus, read, lambda: not fleet.members and not fleet.host)


def _of_model_file(folder: Path) -> Iterator[Target]:
    theta0, path, corpus = torch.linspace(-1, 1, D), folder / "model.narrowcast", list[bytes]()
    for name in ("static", "k-subspace-time-varying", "uncompressed", "topk", "powersgd", "fedkseed"):
        entry = METHODS[name]
        options = entry.fitting({"dim": 8, "subspaces": 3, "key": KEY, "directions": 8, "k": 7})
        server = entry.make(**options).server(theta0, LAYOUT)
        modelfile.save(path, name, options, server, theta0, LAYOUT)
        corpus += [path.read_bytes(), zlib.decompress(path.read_bytes())]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        model = modelfile.read(path)
        if model.layout.size == D and model.theta0 == wire.digest(theta0):
            modelfile.rebuild(model, theta0)

    yield Target("model file", corpus, read)


def targets(folder: Path) -> list[Target]:
    return [
        *(target for name in METHODS for target in _of_method(name)),
        *_of_flower(),
        *_of_model_file(folder),
    ]


def fuzz(count: int, seed: int, folder: Path) -> dict[str, tuple[int, int]]:
    """`count` messages over all targets: {target: (used, refused)}; an AssertionError if one does harm."""
    found = {}
    all_targets = targets(folder)
    for number, target in enumerate(all_targets):
        dice, used, refused = random.Random(f"{seed} {target.name}"), 0, 0
        for data in target.corpus:
            _try(target, data)
        records.reset_peak_memory()
        before = records.peak_memory()
        share = count * (number + 1) // len(all_targets) - count * number // len(all_targets)
        for _ in range(share):
            if _try(target, mutated(dice, target.corpus)):
                used += 1
            else:
                refused += 1
        assert target.same(), f"{target.name}: its state has changed"
        grown = records.peak_memory() - before
        assert grown < MEMORY, f"{target.name}: {grown >> 20} MB for messages of {LONGEST >> 10} kB at most"
        found[target.name] = used, refused
    return found


def _try(target: Target, data: bytes) -> bool:
    """Whether the message was used; False: refused."""
    started = time.process_time()
    try:
        target.read(data)
        used = True
    except WireError:
        used = False
    except Exception as error:
        raise AssertionError(f"{target.name}: {error!r} for the message {data.hex()}") from error
    took = time.process_time() - started
    assert took < SECONDS, f"{target.name}: {took:.1f} s for the message {data.hex()[:1000]}"
    return used


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    with tempfile.TemporaryDirectory() as temporary:
        print(f"{wanted} messages, seed {first}", flush=True)
        for name, (used, refused) in fuzz(wanted, first, Path(temporary)).items():
            print(f"{name:40} {used:8} used {refused:8} refused")
