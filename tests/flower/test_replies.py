"""Replies that cannot be unpacked, are in another's name, or slow; models that are taken back."""

import time
from pathlib import Path

import httpx
import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import MessageType

from fake_grid import Clock, FakeGrid, LateGrid
from federations import federation, impatient, settings, whole  # noqa: F401
from narrowcast.errors import ConfigError
from narrowcast.flower import FleetSettings, NarrowcastStrategy, client_app, demo
from narrowcast.flower.fleet import EngineEnded
from narrowcast.flower.messages import Answer, Upload, pack, unpack
from narrowcast.flower.server import driver
from narrowcast.flower.shelf import Memory
from narrowcast.rounds import store
from narrowcast.runs import run_folder, runner
from narrowcast.wire import messages as wire

pytestmark = pytest.mark.usefixtures("impatient")


class Unpacking(FakeGrid):
    """As the engine does it: what a node has packed is unpacked at the server, when it is pulled."""

    bad: int | None = None  # a node whose replies to orders cannot be unpacked
    error: Exception = ValueError("Error parsing message")
    forged: tuple[int, int] | None = None  # (a node, in whose name it answers)
    slow: float = 0.0  # seconds that the first node's reply takes to be pulled

    def pull_messages(self, message_ids):
        found = []
        for reply in super().pull_messages(message_ids):
            node = reply.metadata.src_node_id
            if reply.metadata.message_type == MessageType.TRAIN:
                if node == self.bad:
                    raise self.error
                if self.slow and node == 100:
                    time.sleep(self.slow)
                if self.forged and node == self.forged[0]:
                    reply.metadata.__dict__["_src_node_id"] = self.forged[1]
            found.append(reply)
        return found


def unpacking(config, nodes=12, **how):
    grid = Unpacking(client_app(config=config), nodes)
    return federation(config, grid, FleetSettings(wait=600.0, **how)), grid


def test_a_reply_that_cannot_be_unpacked_is_its_nodes_loss() -> None:
    run, grid = unpacking(settings(cohort=12))
    run.step()
    grid.bad = 103
    record = run.step()
    assert (record.clients, record.dropped) == (11, {"failed": 1})
    grid.bad = None
    assert run.step().clients == 12


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), EngineEnded("gone")])
def test_where_the_engine_is_gone_the_run_ends(error: Exception) -> None:
    run, grid = unpacking(settings(cohort=12))
    run.step()
    grid.bad, grid.error = 103, error
    with pytest.raises(type(error)):
        run.step()


def test_nobody_answers_in_anothers_name() -> None:
    config = settings(cohort=12, rounds=2)
    honest, _ = whole(config)
    list(honest)
    run, grid = unpacking(config)
    grid.forged = (103, 104)
    record = run.step()
    assert (record.clients, record.dropped) == (11, {"no answer": 1})
    assert run.counted.keys() == set(range(12)) - {3}


def test_who_was_in_time_is_heard_where_another_was_slow() -> None:
    run, grid = unpacking(settings(cohort=12), timeout=0.2)
    run.fleet.wait(12, 60.0)
    grid.slow = 0.5
    assert run.step().clients == 12


@pytest.mark.parametrize(
    ("private", "trained"), [({}, 5.0), ({"dp_noise": 2.0, "dp_delta": 1e-3}, 5.0), ({}, 601.0)]
)
def test_waiting_for_clients_is_no_part_of_the_time_that_a_round_has(
    private: dict[str, float], trained: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private run spends its epsilon on the round, whoever is counted in it."""
    clock, config = Clock(), settings(cohort=12, **private)
    for module in ("fleet", "federation"):
        monkeypatch.setattr(f"narrowcast.flower.{module}.time", clock)
    grid = LateGrid(client_app(config=config), 12, clock, come=700.0, trained=trained)
    run = federation(config, grid, FleetSettings(timeout=600.0, wait=3600.0))
    dropped = run.step().dropped
    counted, took = len(run._asked.uploads.counted), clock.now - 700.0
    if trained > 600:
        assert (counted, dropped) == (0, {"no answer": 12})
        assert 600 <= took < 601
    else:
        assert (counted, dropped, len(run.fleet.members)) == (12, {}, 12)
        assert 5 <= took < 7


def lie(size: float, when: int, run_of):
    """The first node's update, so large, in one round."""

    def told(node: int, records):
        if node != 100 or run_of() != when:
            return records
        answer = unpack(records, Answer)
        message = wire.decode(answer.uploads[0].data)
        x = torch.frombuffer(bytearray(message.payload.blocks[0].data), dtype=torch.float32)
        block = wire.Block(0, (x / x.abs().max() * size).numpy().tobytes())
        payload = msgspec.structs.replace(message.payload, blocks=[block])
        data = wire.encode(msgspec.structs.replace(message, payload=payload))
        return pack(Answer(answer.have, [Upload(0, data, answer.uploads[0].loss)]))

    return told


def test_finite_nonsense_is_taken_back_too() -> None:
    """Of three clients one lies in the first round, where there is nothing yet to bound its update by."""
    config = settings("uncompressed", clients=3, cohort=3, rounds=4)
    run, grid = whole(config, nodes=3)
    grid.lie = lie(1e9, 0, lambda: run.round)
    assert [record.rolled_back for record in run] == [False, True, False, False]
    assert float(run.theta.abs().max()) < 100


class Killed(BaseException):
    """What no handler of ours catches."""


def test_a_model_that_was_taken_back_is_in_no_checkpoint(tmp_path: Path) -> None:
    config = settings("uncompressed", clients=3, cohort=3, rounds=4)
    grid = FakeGrid(client_app(config=config), 3)
    done: list[bool] = []
    grid.lie = lie(1e9, 0, lambda: len(done))

    def kill(facts, record) -> None:
        done.append(record.rolled_back)
        if record.rolled_back:
            raise Killed

    drive = driver(grid, FleetSettings(wait=600.0))
    with pytest.raises(Killed):
        runner.start(config, tmp_path / "run", kill, driver=drive)
    assert done == [False, True]
    runner.resume(tmp_path / "run", driver=drive)
    assert run_folder.finished(tmp_path / "run")


def test_who_was_taken_back_goes_on_from_what_it_had_kept() -> None:
    """EF21's estimate at the server is the mean of those at the clients, before and after."""
    config = settings("ef21", clients=3, cohort=3, rounds=6, lr=0.05, k=2000)
    run, grid = whole(config, nodes=3)
    grid.lie = lambda node, records: (
        pack(Answer(unpack(records, Answer).have, [Upload(node - 100, b"", float("nan"))]))
        if run.round == 3
        else records
    )
    back = []
    for record in run:
        kept = [Memory(grid.contexts[100 + i]).get(f"client-{i}-{run.counted[i]}") for i in range(3)]
        mean = torch.stack([store.from_bytes(data)["estimate"] for data in kept]).mean(0)
        assert torch.allclose(run.server.estimate, mean, rtol=1e-4, atol=1e-7)
        assert record.lost == 0
        back.append(record.rolled_back)
    assert back == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("asked", "how", "says"),
    [
        ({"network": "4g"}, {}, "--network is of the in-process simulator"),
        ({"per_client": True}, {}, "--per-client is of the in-process simulator"),
        ({}, {"min_answers": 6}, "a round has 5 clients"),
        ({}, {"min_clients": 13}, "the federation has 12 clients"),
    ],
)
def test_what_no_fleet_can_do_is_refused(asked: dict, how: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        whole(settings(**asked), **how)


def test_a_strategy_keeps_its_fleets_timeout_and_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ConfigError, match="no use for json_log"):
        NarrowcastStrategy(torch.nn.Linear(2, 2), lr=1.0, clients=4, fleet=FleetSettings(json_log="x"))
    how = FleetSettings(timeout=7.0)
    made = NarrowcastStrategy(torch.nn.Linear(2, 2), dim=2, lr=1.0, clients=4, fleet=how)

    class Nothing:
        def __getattr__(self, name: str) -> None:
            raise RuntimeError("no grid")

    with pytest.raises(RuntimeError, match="no grid"):
        made.start(Nothing(), num_rounds=1)
    assert made.fleet.timeout == 7.0


def test_a_demo_replaces_no_folder_but_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not of an earlier demo"):
        demo.show(None, tmp_path, "static", 1, 1, 8, False)
    assert (tmp_path / "thesis.tex").is_file()
