"""Models that people bring, on nodes: running statistics are refused, dropout follows the run's key."""

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import narrowcast as nc
from fake_grid import FakeGrid
from narrowcast.flower import FleetSettings, LoaderTask, ModelTask, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.numerics import pool
from narrowcast.rounds.task import Batch
from narrowcast.runs.reading import make_config

NODES, EACH, ROUNDS = 4, 6, 5
COMMON = {
    "task": "custom",
    "clients": NODES,
    "cohort": 3,
    "rounds": ROUNDS,
    "local_batch": 4,
    "evaluate_every": 0,
}
METHODS = {"static": {"dim": 20, "lr": 1.0}, "topk": {"k": 10, "lr": 0.1}}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)


def examples() -> tuple[Tensor, Tensor]:
    x = torch.randn(NODES * EACH, 5, generator=torch.Generator().manual_seed(3))
    return x, (x.sum(1) > 0).long()


def model(norm: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), norm or nn.Dropout(0.4), nn.ReLU(), nn.Linear(12, 2))


class Shaken(Dataset[tuple[Tensor, Tensor]]):
    """A part of the data; with `by`, pictures that are changed at random, as many data sets do."""

    def __init__(self, part: int, by: float = 0.0) -> None:
        x, y = examples()
        self.x, self.y, self.by = x[part::NODES], y[part::NODES], by

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + self.by * torch.randn(5) if self.by else self.x[i], self.y[i]


def loss(module: nn.Module, batch: list[Tensor]) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def run(method: str, by: float = 0.0) -> tuple[Federation, FakeGrid]:
    config = make_config({**COMMON, "method": method, **METHODS[method]})

    def build(context: Context) -> LoaderTask:
        part = int(context.node_config["partition-id"])
        return LoaderTask(model(), loss, DataLoader(Shaken(part, by), batch_size=3))

    return start(config, FakeGrid(client_app(build, config=config), NODES))


def start(config, grid: FakeGrid) -> tuple[Federation, FakeGrid]:
    plan = config.plan(NODES, b"run-test")
    task = ModelTask(model(), clients=NODES)
    return Federation(task, config.build_method(NODES), plan, grid, FleetSettings(wait=5.0)), grid


@pytest.mark.parametrize("by", [0.0, 0.1])
@pytest.mark.parametrize("method", METHODS)
def test_killed_after_any_round_it_goes_on_to_the_same_model(method: str, by: float) -> None:
    config = make_config({**COMMON, "method": method, **METHODS[method]})
    whole, _ = run(method, by)
    assert all(record.clients and not record.dropped for record in whole)
    for stop in range(ROUNDS):
        first, grid = run(method, by)
        for _ in range(stop):
            first.step()
        torch.manual_seed(100 + stop)  # another process would be elsewhere in its stream
        again, _ = start(config, grid)
        again.restore(copy.deepcopy(first.state()))
        for _ in again:
            pass
        assert torch.equal(again.theta, whole.theta)


@pytest.mark.parametrize("method", METHODS)
def test_nodes_drop_what_the_simulator_drops(method: str) -> None:
    config = make_config({**COMMON, "method": method, **METHODS[method]})
    there, _ = run(method)
    x, y = examples()
    clients = [np.arange(part, len(y), NODES) for part in range(NODES)]
    task = nc.TorchTask(model(), train=(x, y), test=(x, y), clients=clients, chunk=3)
    here = nc.Simulation(task, config.build_method(NODES), config.plan(NODES, b"run-test"))
    for mine, theirs in zip(here, there, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert (here.theta - there.theta).norm() < 1e-5 * (here.theta - here.theta0).norm()


def test_running_statistics_are_refused_on_both_sides() -> None:
    loader = DataLoader(Shaken(0), batch_size=3)
    for make in (ModelTask, lambda module: LoaderTask(module, loss, loader)):
        with pytest.raises(
            ValueError, match=r"BatchNorm1d 1 keeps running statistics .*nc\.freeze_batch_norm"
        ):
            make(model(nn.BatchNorm1d(12)))
        make(nc.freeze_batch_norm(model(nn.BatchNorm1d(12))))
        make(model(nn.GroupNorm(3, 12)))


def test_other_buffers_that_training_changes_are_refused_by_the_node() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += len(x)
            return x

    task = LoaderTask(model(Counts()), loss, DataLoader(Shaken(0), batch_size=3))
    with pytest.raises(ValueError, match=r"training changes 1\.seen"):
        task.gradient(task.theta0(), Batch(np.arange(4), torch.full((4,), 0.25), 0))


class Flushing(FakeGrid):
    """Nodes whose process takes denormal numbers for zero, as some set it up to be faster."""

    def _deliver(self, message: Message) -> Message | None:
        assert torch.set_flush_denormal(True)
        pool.set_threads(2)  # threads that begin now inherit it
        try:
            return super()._deliver(message)
        finally:
            torch.set_flush_denormal(False)
            pool.set_threads(None)


@pytest.mark.parametrize("method", METHODS)
def test_a_node_that_flushes_denormals_takes_part(method: str) -> None:
    """Its theta was another than the server's, and it was dropped in every round."""
    config = make_config({**COMMON, "method": method, **METHODS[method]})

    def faint() -> nn.Module:
        module = model()
        with torch.no_grad():
            module[3].weight.view(-1)[::3] = 1e-41
        return module

    def build(context: Context) -> LoaderTask:
        part = int(context.node_config["partition-id"])
        return LoaderTask(made.pop(), loss, DataLoader(Shaken(part), batch_size=3))

    made = [faint() for _ in range(NODES * (ROUNDS + 2))]  # before anything is flushed
    task = ModelTask(faint(), clients=NODES)
    run = Federation(
        task,
        config.build_method(NODES),
        config.plan(NODES, b"run-test"),
        Flushing(client_app(build, config=config), NODES),
        FleetSettings(wait=5.0),
    )
    for record in run:
        assert record.clients
        assert not record.dropped
