"""What reads bytes from outside, each with true messages to mutate: see `fuzzing`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from flwr.app import ConfigRecord, MessageType, RecordDict

from federations import settings, whole
from fitting import made
from narrowcast.aggregates.base import Aggregate, Gathering
from narrowcast.aggregates.mean import MEAN
from narrowcast.aggregates.table import AGGREGATES
from narrowcast.flower import shelf
from narrowcast.flower.client import built_in
from narrowcast.flower.examination import Examination
from narrowcast.flower.messages import Answer, Ask, Exam, Have, Here, Order, Sums, Upload, pack, unpack
from narrowcast.flower.node import Node
from narrowcast.flower.uploads import Uploads
from narrowcast.methods import METHODS
from narrowcast.methods.base import Accumulator, RoundInfo
from narrowcast.numerics import flat
from narrowcast.numerics.flat import Layout
from narrowcast.privacy.clipping import Adaptive, Fixed
from narrowcast.privacy.mean import Clipped, PrivateMean
from narrowcast.rounds import exchange
from narrowcast.rounds.exchange import Round
from narrowcast.runs import modelfile
from narrowcast.wire import messages as wire
from narrowcast.wire.messages import WireError

COMPATIBILITY = Path(__file__).with_name("compatibility")
RUN, KEY = exchange.run_id(b"fuzzing"), 5
SHAPES = ((6, 5), (6,), (4, 6), (4,))
D = sum(a * b for a, b in ((6, 5), (6, 1), (4, 6), (4, 1)))
LAYOUT = Layout(("a", "b", "c", "d"), SHAPES)


@dataclass
class Target:
    """What reads bytes: `read` raises WireError alone, and `same` says whether its state is as it was."""

    name: str
    corpus: list[bytes]
    read: Callable[[bytes], object]
    same: Callable[[], bool] = lambda: True


OPTIONS = {"dim": 8, "subspaces": 3, "key": KEY, "directions": 8, "k": 7, "sketch_columns": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "k-subspace-time-varying": {"up_bits": 1.5, "down_bits": 2.5},
    "static": {"up_bits": 0.5, "down_bits": 4},
    "time-varying": {"uplink": "int4", "downlink": "f16", "carry": True},
    "topk": {"uplink": "int8"},
}


def _of_method(name: str, **more: Any) -> Iterator[Target]:
    """A server after three rounds of two epochs, and a client that came in all of them."""
    method = made(name, **OPTIONS | more)
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
    label = ", ".join([name, *(f"{option} {value}" for option, value in more.items())])
    yield Target(f"upload of {label}", [ups[-1], *ups], add, same)
    yield Target(f"download of {label}", [*downs[-2:], *downs], receive, same)


def _of_aggregates() -> Iterator[Target]:
    """One hostile update among five of a round, by every rule, and by the private mean."""
    gathering = Gathering(clients=60, cohort=6, sampling="poisson", weighting="clients")
    method, theta0 = made("static", **OPTIONS), torch.linspace(-1, 1, D)
    server, model = method.server(theta0, LAYOUT), method.newcomer(theta0, LAYOUT)
    round = Round(RUN, KEY, 0, server.version, exchange.digest_of(method, server, method.theta(server)))
    model, _, _ = exchange.receive_down(
        method, model, exchange.send_down(method, server, round, None), RUN, KEY
    )
    vs = [torch.linspace(2, -1, D).roll(5 * client) for client in range(6)]
    ups = [exchange.send_up(method, None, v, model, round, client, 1)[1] for client, v in enumerate(vs)]
    rules: dict[str, Aggregate] = {name: AGGREGATES[name]() for name in AGGREGATES}
    for clip in (Fixed(0.5), Adaptive(0.5)):
        rules[f"private mean, clip {clip}"] = PrivateMean(clip, noise=1.0).settled(gathering, 10)
    for name, rule in rules.items():

        def add(data: bytes, rule: Aggregate = rule) -> None:
            acc = rule.zero(method, server, rule.start())
            for client in range(1, 6):
                acc = exchange.receive_up(method, acc, ups[client], round, client, set(), 1, rule)
            before = acc.sums.copy() if isinstance(acc, Clipped) else None
            found = exchange.receive_up(method, acc, _resealed(method, data, round), round, 0, set(), 1, rule)
            if isinstance(found, Clipped) and isinstance(rule, PrivateMean):
                moved = (found.sums - before).astype(object)
                assert int((moved**2).sum()) <= rule._steps**2, "beyond the sensitivity"
            _, total = rule.total(method, found, rule.start(), RoundInfo(0, 0, False, 0.1))
            assert torch.isfinite(total.total).all()

        yield Target(f"upload to the {name}", [ups[0]], add)


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

    def here(told: Here) -> None:
        fleet._check(7, told)
        fleet._welcome(7, told)
        assert set(fleet.host) == set(told.clients)
        fleet.forget(7)

    uses: dict[Any, Callable[[Any], object]] = {Here: here, Answer: answer, Sums: sums}
    for kind, examples in contents.items():
        corpus = [pack(content)["narrowcast"]["data"] for content in examples]

        def read(data: bytes, kind: Any = kind) -> None:
            told = unpack(RecordDict({"narrowcast": ConfigRecord({"data": data})}), kind, 1 << 20)
            uses.get(kind, lambda told: None)(told)

        yield Target(f"Flower's {kind.__name__}", corpus, read, lambda: not fleet.members and not fleet.host)


def _of_node() -> Iterator[Target]:
    """A node that is told nonsense without end, and then what is right, does that as if it were the first."""
    config = settings("topk", cohort=12)
    run, grid = whole(config, nodes=4)
    run.step(), run.step()
    context, orders = grid.contexts[100], list[bytes]()
    for message in grid.sent:
        if message.metadata.dst_node_id == 100 and message.metadata.message_type == MessageType.TRAIN:
            orders.append(message.content["narrowcast"]["data"])
    right = msgspec.msgpack.decode(orders[0], type=Order)
    right = msgspec.structs.replace(right, theta0=flat.to_bytes(run.theta0))
    exams = [Exam(right.run, right.have, right.down, theta0) for theta0 in (b"", right.theta0)]

    def node() -> Node:
        return Node(built_in(context, config), config, shelf.of_node(context, right.run.hex(), "from-0"))

    def same(expected: list[Upload] = node().answer(right).uploads) -> bool:
        return bool(expected) and node().answer(right).uploads == expected

    def read(kind: Any, do: Callable[[Any], object]) -> Callable[[bytes], None]:
        def told(data: bytes) -> None:
            pack(do(unpack(RecordDict({"narrowcast": ConfigRecord({"data": data})}), kind, 1 << 20)))

        return told

    orders.append(msgspec.msgpack.encode(right))
    yield Target("a node's order", orders, read(Order, lambda told: node().answer(told)), same)
    examined = read(Exam, lambda told: node().examine(told))
    yield Target("a node's exam", [msgspec.msgpack.encode(exam) for exam in exams], examined, same)


def _of_model_file(folder: Path) -> Iterator[Target]:
    theta0, path, corpus = torch.linspace(-1, 1, D), folder / "model.narrowcast", list[bytes]()
    base = modelfile.Base(
        "sst2", "org/model", "main", 3, {"width": 4, "trainable": "lora"}, "AutoModel",
        {"b": bytes(24), "d": b""}, {"e": "a"}, bytes(8),
    )  # fmt: skip
    for name in (
        "static",
        "narrow",
        "k-subspace-time-varying",
        "uncompressed",
        "topk",
        "powersgd",
        "fedkseed",
    ):
        entry = METHODS[name]
        options = entry.fitting({"dim": 8, "subspaces": 3, "key": KEY, "directions": 8, "k": 7})
        server = entry.make(**options).server(theta0, LAYOUT)
        modelfile.save(
            path, name, options, server, theta0, LAYOUT, base if name == "static" else modelfile.Base()
        )
        corpus += [path.read_bytes(), zlib.decompress(path.read_bytes())]
    corpus += [old.read_bytes() for old in sorted(COMPATIBILITY.glob("format-*/*.narrowcast"))]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        model = modelfile.read(path)
        modelfile.described(model.base)
        if model.layout.size == D and model.theta0 == wire.digest(theta0):
            modelfile.rebuild(model, theta0)

    yield Target("model file", corpus, read)


def targets(folder: Path) -> list[Target]:
    return [
        *(target for name in METHODS for target in _of_method(name)),
        *(target for name, more in VARIANTS.items() for target in _of_method(name, **more)),
        *_of_aggregates(),
        *_of_node(),
        *_of_flower(),
        *_of_model_file(folder),
    ]
