"""A server killed at every message to its fleet: no model leaves before the ledger has it, and none twice."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
pytest.importorskip("dp_accounting", reason="needs the extra narrowcast[privacy]")
from flwr.app import Message, MessageType

from fake_grid import FakeGrid
from federations import impatient, settings, whole  # noqa: F401
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower.messages import Order, unpack
from narrowcast.flower.server import driver
from narrowcast.privacy.ledger import Ledger
from narrowcast.rounds import records
from narrowcast.runs import modelfile, run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.tasks import build
from narrowcast.wire import messages as wire

pytestmark = pytest.mark.usefixtures("impatient")
ROUNDS, NODES = 4, 3
HOW = FleetSettings(wait=600.0)


class Killed(BaseException):
    """What no handler of ours catches."""


class WatchedGrid(FakeGrid):
    """Notes every model that leaves, and what the ledger on disk had by then; dies at a training message."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        super().__init__(client_app(config=config), NODES, {"narrowcast-folder": str(folder / "nodes")})
        self.run, self.left = folder / "run", dict[tuple[int | None, int], set[bytes]]()
        self.calls, self.deadly, self.open = 0, -1, set[str]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        training = [m for m in messages if m.metadata.message_type == MessageType.TRAIN]
        self._live(bool(training))
        for message in training:
            order = unpack(message.content, Order)
            version = wire.decode(order.down).version
            if (self.run / run_folder.CONFIG).is_file() and run_folder.load_config(self.run).dp_noise:
                assert version <= Ledger(self.run).released, "on disk before a byte of it leaves"
            self.left.setdefault((order.have, version), set()).add(order.down)
        ids = super().push_messages(messages)
        self.open = {i for i, m in zip(ids, messages, strict=True) if m in training}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        heard = self.open & set(message_ids) if replies else set()
        self.open -= heard
        self._live(bool(heard) and not self.open)
        return replies

    def _live(self, training: bool) -> None:
        self.calls += training
        if training and self.calls == self.deadly:
            raise Killed


def go(config: RunConfig, grid: WatchedGrid) -> None:
    if run_folder.is_run(grid.run):
        runner.resume(grid.run, driver=driver(grid, HOW))
    else:
        runner.start(config, grid.run, driver=driver(grid, HOW))


def lives(config: RunConfig, grid: WatchedGrid, rounds: int = 1) -> int:
    """Killed after so many rounds, by turns while one is asked for and when it is in, until its end."""
    for life in range(20):
        grid.deadly = grid.calls + 2 * rounds + life % 2
        try:
            go(config, grid)
            return life
        except Killed:
            for part in range(NODES):
                grid.restart(part)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("sampling", ["epoch", "poisson"])
def test_no_model_leaves_before_its_release_or_twice(sampling: str, tmp_path: Path) -> None:
    private = {"dp_noise": 2.0, "dp_delta": 1e-3, "dp_clip": "adaptive", "sampling": sampling}
    config = settings("time-varying", clients=6, cohort=4, rounds=ROUNDS, **private)
    grid = WatchedGrid(config, tmp_path)
    assert lives(config, grid) >= ROUNDS - 1
    assert all(len(downs) == 1 for downs in grid.left.values()), "a version is one model, in every life"
    released = [line.release for line in Ledger(grid.run).lines if line.release is not None]
    assert released == list(range(ROUNDS))
    done = records.read(grid.run / run_folder.RECORDS)
    facts = run_folder.load_facts(grid.run)
    assert facts.privacy is not None
    assert [record.version for record in done] == list(range(1, ROUNDS + 1))
    assert done[-1].epsilon == facts.privacy.epsilon


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_a_rule_against_liars_goes_on_to_the_same_model(rule: str, tmp_path: Path) -> None:
    told = {"tolerate": 0.1} if rule == "krum" else {}
    config = settings("time-varying", clients=6, cohort=6, rounds=ROUNDS, aggregate=rule, **told)
    undisturbed, _ = whole(config, nodes=NODES)
    list(undisturbed)
    grid = WatchedGrid(config, tmp_path)
    assert lives(config, grid, rounds=3) >= 1
    task = build("digits", config.task_options())
    model = modelfile.load_model(grid.run / run_folder.MODEL, task.theta0())
    assert model.equal(undisturbed.theta)
