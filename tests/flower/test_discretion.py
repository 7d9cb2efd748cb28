"""With differential privacy nothing that leaves the server depends on one client beyond the noised sum."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType, RecordDict

from fake_grid import FakeGrid
from federations import PATIENT, federation, impatient, settings
from narrowcast.errors import ConfigError
from narrowcast.flower import NarrowcastStrategy, client_app
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, Order, Upload, pack, unpack
from narrowcast.numerics.kernels import discrete
from narrowcast.privacy import noise
from narrowcast.rounds import records

__all__ = ["impatient"]  # a fixture
VICTIM = 103  # the node of client 3
PRIVATE = {"dp_noise": 2.0, "dp_delta": 1e-3}


class World:
    """A run of few rounds on a grid, and all that left the server: messages, records, words, its state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, **how: Any) -> None:
        count = itertools.count()
        monkeypatch.setattr(noise, "discrete_gaussian", _counting(count))
        config = settings("time-varying", **{"rounds": 4, **PRIVATE, **how.pop("settings", {})})
        self.grid = FakeGrid(client_app(config=config), 12)
        self.run: Federation = federation(config, self.grid, PATIENT)
        self.grid.lie = how.get("lie", self.grid.lie)
        self.grid.fault = how.get("fault", self.grid.fault)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            self.records = list(self.run)
        self.words = [line for line in caplog.messages if "narrowcast" not in line]

    def messages(self, but: int) -> list[tuple[int, bytes]]:
        """To all nodes but one, from training: (node, bytes of the order)."""
        return [
            (m.metadata.dst_node_id, msgspec.msgpack.encode(unpack(m.content, Order)))
            for m in self.grid.sent
            if m.metadata.message_type == MessageType.TRAIN and m.metadata.dst_node_id != but
        ]

    @property
    def told(self) -> list[bytes]:
        return [records.to_line(record) for record in self.records]


def _counting(count: itertools.count[int]) -> Callable[..., Any]:
    def seeded(s: int, shape: tuple[int, ...], entropy: Any = None) -> Any:
        out, rng = np.empty(int(np.prod(shape)), np.int64), np.random.Generator(np.random.Philox(next(count)))
        words = rng.integers(0, 1 << 64, 40 * out.size + 99, np.uint64)
        assert discrete.gaussian(words, np.int64(s), out, 0)[0] == out.size
        return out.reshape(shape)

    return seeded


def of_victim(change: Callable[[Answer], Answer]) -> Callable[[int, RecordDict], RecordDict]:
    def lie(node: int, records: RecordDict) -> RecordDict:
        return pack(change(unpack(records, Answer))) if node == VICTIM else records

    return lie


def bytes_of(data: bytes) -> Callable[[Answer], Answer]:
    return lambda a: Answer(a.have, [Upload(u.client, data, u.loss) for u in a.uploads])


def loss_of(loss: float) -> Callable[[Answer], Answer]:
    return lambda a: Answer(a.have, [Upload(u.client, u.data, loss) for u in a.uploads])


def nobody(node: int, message: Message) -> Message | None:
    return None if node == VICTIM and message.metadata.message_type == MessageType.TRAIN else message


def crashes(node: int, message: Message) -> Message | str:
    train = message.metadata.message_type == MessageType.TRAIN
    return "a bug" if node == VICTIM and train else message


SILENCES = {
    "garbage": {"lie": of_victim(bytes_of(b"garbage"))},
    "no bytes": {"lie": of_victim(bytes_of(b""))},
    "a loss that is none": {"lie": of_victim(loss_of(float("nan")))},
    "no upload": {"lie": of_victim(lambda a: Answer(a.have, []))},
    "it is dead": {"fault": nobody},
    "it crashes": {"fault": crashes},
}


def test_all_ways_to_send_nothing_look_alike(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    """What others are sent, what is recorded, logged and kept is the same to the bit."""
    worlds = {name: World(monkeypatch, caplog, **how) for name, how in SILENCES.items()}
    first = worlds["garbage"]
    assert first.run.server.version == 4, "every round steps"
    for name, world in worlds.items():
        assert world.messages(but=VICTIM) == first.messages(but=VICTIM), name
        assert world.told == first.told, name
        assert world.words == first.words, name
        assert torch.equal(world.run.theta, first.run.theta), name
        state = world.run.state()
        assert not state["counted"].numel(), name
        assert not state["norms"].numel(), name


def test_what_is_told_of_a_client_that_trains_is_the_noised_sum_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    silent = World(monkeypatch, caplog, **SILENCES["no upload"])
    honest = World(monkeypatch, caplog)
    assert not torch.equal(honest.run.theta, silent.run.theta)
    sizes = [[(node, len(data)) for node, data in world.messages(but=VICTIM)] for world in (silent, honest)]
    assert sizes[0] == sizes[1]
    assert honest.words == silent.words
    for one, other in zip(honest.records, silent.records, strict=True):
        one.metrics = other.metrics = {}  # of the model, on data that is no client's
    assert honest.told == silent.told


def test_huge_numbers_move_nobody_elses_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    """A bound by the median of others would drop or keep updates by what one client sends."""
    world = World(monkeypatch, caplog, settings={"dp_clip": "0.5"})
    assert world.run.norms.limit([1.0] * 9 + [1e9]) == float("inf")
    assert not world.run.norms.history


def test_a_round_to_which_nobody_comes_steps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    def dead(node: int, message: Message) -> Message | None:
        return None if message.metadata.message_type == MessageType.TRAIN else message

    world = World(monkeypatch, caplog, fault=dead)
    assert [record.version for record in world.records] == [1, 2, 3, 4]
    assert not any(record.rolled_back for record in world.records)


def test_secret_coins_over_the_roster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    asked = []
    for _ in range(2):
        world = World(monkeypatch, caplog, settings={"sampling": "poisson", "rounds": 12})
        orders = [
            unpack(m.content, Order) for m in world.grid.sent if m.metadata.message_type == MessageType.TRAIN
        ]
        asked.append([client for order in orders for client in order.clients])
        assert not any("client" in line and "round" in line for line in world.words), "nobody is named"
    assert asked[0] != asked[1], "the run's key does not decide"
    assert len(asked[0]) > 4 * 5 * 0.2


def test_a_strategy_without_a_ledger_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder for the ledger"):
        NarrowcastStrategy(torch.nn.Linear(2, 2), lr=1.0, clients=4, **PRIVATE)
