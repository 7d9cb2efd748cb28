"""Evaluation at the nodes: what the server learns is the mean over all that is held out, and nothing else."""

import math
from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fake_grid import FakeGrid
from narrowcast.flower import FleetSettings, LoaderTask, ModelTask, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Here, Sums, pack, unpack
from narrowcast.flower.server import driver
from narrowcast.flower.tasks import apart
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import runner, summarise, table
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config

NODES, EACH, ROUNDS = 3, 20, 4


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)


def data(part: int) -> TensorDataset:
    """Node p has EACH + 10 p examples."""
    x = torch.randn(EACH + 10 * part, 5, generator=torch.Generator().manual_seed(part))
    return TensorDataset(x, (x.sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))


def loss(module: nn.Module, batch: list[Tensor]) -> Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def right(module: nn.Module, batch: list[Tensor]) -> dict[str, float]:
    return {"accuracy": float((module(batch[0]).argmax(1) == batch[1]).sum())}


def node_task(part: int, held_out: float | DataLoader[object] = 0.25) -> LoaderTask:
    return LoaderTask(model(), loss, DataLoader(data(part), batch_size=4), held_out=held_out, measure=right)


def config(method: str = "time-varying", **more: object) -> RunConfig:
    own = {"dim": 16, "refresh": "2"} if method == "time-varying" else {}
    common = {"task": "custom", "clients": NODES, "cohort": 2, "rounds": ROUNDS, "evaluate_every": 2}
    return make_config({**common, "lr": 1.0, "method": method, **own, **more})


def federation(
    settings: RunConfig, nodes: int = NODES, held_out: float | DataLoader[object] = 0.25, **how: object
) -> tuple[Federation, FakeGrid]:
    def build(context: object) -> LoaderTask:
        return node_task(int(context.node_config["partition-id"]), held_out)  # type: ignore[attr-defined]

    grid = FakeGrid(client_app(build, config=settings), nodes)
    fleet_settings = FleetSettings(wait=600.0, min_clients=nodes, **how)  # type: ignore[arg-type]
    method, plan = settings.build_method(NODES), settings.plan(NODES, b"run-test")
    return Federation(ModelTask(model(), clients=NODES), method, plan, grid, fleet_settings), grid


def expected(theta: Tensor) -> dict[str, float]:
    """The naive twin: all that is held out, in one place."""
    tasks = [node_task(part) for part in range(NODES)]
    held = [task.examine(theta) for task in tasks]
    count = sum(task.held for task in tasks)
    return {name: sum(sums[name] for sums in held) / count for name in ("accuracy", "loss")}


@pytest.mark.parametrize("method", ["time-varying", "uncompressed", "topk", "powersgd"])
def test_the_means_are_those_over_all_that_is_held_out(method: str) -> None:
    run, grid = federation(config(method, lr=1.0 if method == "time-varying" else 0.1))
    for record in run:
        if (record.round + 1) % 2:
            assert not record.node_metrics
            assert (record.node_examples, record.evaluate_up, record.evaluate_down) == (0, 0, 0)
            continue
        assert record.node_metrics == pytest.approx(expected(run.theta))
        assert record.node_examples == 5 + 8 + 10
        assert not record.metrics
    exams = [m for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    assert len(exams) == NODES * ROUNDS / 2


def test_training_is_what_it_is_without_evaluation_and_its_bytes_stand_apart() -> None:
    """What is held out is not trained on; asking about it changes neither the model nor `up`."""
    with_it, _ = federation(config())
    without, _ = federation(config(evaluate_every=0))
    a, b = list(with_it), list(without)
    assert torch.equal(with_it.theta, without.theta)
    assert [r.up for r in a] == [r.up for r in b]
    assert all(r.evaluate_up > 0 and r.evaluate_down > 64 for r in a if r.node_metrics)
    assert sum(r.down for r in a) <= sum(r.down for r in b)
    trained = set(node_task(0).clients[0].tolist())
    assert not trained & set(apart(EACH, 0.25)[1].tolist())


def test_a_loader_of_others_may_be_held_out_and_nothing_need_be() -> None:
    other = DataLoader(data(7), batch_size=16)
    task = node_task(0, other)
    assert (task.held, len(task.clients[0])) == (EACH + 70, EACH)
    sums = task.examine(task.theta0())
    x, y = data(7).tensors
    assert sums["accuracy"] == float((model()(x).argmax(1) == y).sum())
    assert sums["loss"] == pytest.approx(loss(model(), [x, y]).item() * len(y), rel=1e-5)
    run, grid = federation(config(), held_out=0.0)
    assert not any(record.node_metrics for record in run)
    assert not [m for m in grid.sent if m.metadata.message_type == MessageType.EVALUATE]
    for share in (-0.1, 1.0, 2.5, math.nan):
        with pytest.raises(ValueError, match="held_out is a share"):
            node_task(0, share)


@pytest.mark.parametrize(("count", "share", "held"), [(1, 0.5, 0), (2, 0.01, 1), (10, 0.1, 1), (10, 0.99, 9)])
def test_somebody_is_left_to_train(count: int, share: float, held: int) -> None:
    train, kept = apart(count, share)
    assert (len(train), len(kept)) == (count - held, held)
    assert sorted([*train, *kept]) == list(range(count))


def test_a_node_that_was_restarted_is_sent_what_it_lacks() -> None:
    run, grid = federation(config())
    for record in run:
        if record.node_metrics:
            assert record.node_metrics == pytest.approx(expected(run.theta))
            assert record.node_examples == 23
        for part in range(NODES):
            grid.restart(part)


@pytest.mark.parametrize(
    "lie",
    [
        {"examples": 4_000_000},
        {"examples": 0},
        {"metrics": {"accuracy": math.nan}},
        {"metrics": {"accuracy": 1e30}},
        {"metrics": {"\x1b[31m": 1.0}},
        {"metrics": {f"m{i}": 1.0 for i in range(17)}},
    ],
    ids=str,
)
def test_a_lie_is_its_nodes_own_loss(lie: dict[str, object]) -> None:
    run, grid = federation(config())
    answered: dict[int, Sums] = {}

    def told(node: int, records: RecordDict) -> RecordDict:
        if node != 101:
            return records
        answered[node] = unpack(records, Sums)
        return pack(msgspec.structs.replace(answered[node], **lie))

    grid.exam = told
    done = list(run)
    assert answered
    assert all(math.isfinite(v) for r in done for v in r.node_metrics.values())
    assert {r.node_examples for r in done if r.node_metrics} == {15}


def test_a_node_that_fails_or_is_silent_holds_nobody_up() -> None:
    run, grid = federation(config(), timeout=0.2)

    def fault(node: int, message: Message) -> Message | str | None:
        if message.metadata.message_type != MessageType.EVALUATE or node == 100:
            return message
        return "it broke" if node == 101 else None

    grid.fault = fault
    done = list(run)
    assert [r.node_examples for r in done] == [0, 5, 0, 5]


def test_records_summary_and_table_have_it(tmp_path: Path) -> None:
    settings = config()
    run, _ = federation(settings)
    bring = driver(run.fleet.grid, run.settings)
    task = ModelTask(model(), clients=NODES)
    folder = runner.start(settings, tmp_path / "run", task=task, driver=bring)
    rows = records.read(folder / "records.jsonl")
    assert rows[1].node_examples == 23
    assert RoundRecord(0, 0, 0, 0.1, None, 0, 0, 0).node_metrics == {}
    summary = summarise(folder)
    assert summary.metric is None
    assert summary.at_nodes == rows[-1].node_metrics["accuracy"]
    assert summary.evaluation == sum(r.evaluate_up + r.evaluate_down for r in rows)
    assert "at the nodes" in table.head([summary])
    assert f"{summary.at_nodes:.4f}" in table.rows([summary])[0]
    assert "evaluation at the nodes" in table.caption([summary])


def test_what_nodes_found_of_a_model_that_was_taken_back_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, _ = federation(config())
    monkeypatch.setattr(run.task, "evaluate", lambda theta: {"accuracy": math.nan if run.round == 2 else 0.5})
    done = list(run)
    assert [r.rolled_back for r in done] == [False, True, False, False]
    assert not done[1].node_metrics
    assert done[1].node_examples == 0
    assert done[3].node_metrics


def test_a_node_of_before_takes_part_without_being_asked() -> None:
    """What it says of itself is shorter by the held-out examples: a server is upgraded before its nodes."""
    before = msgspec.msgpack.encode([[0], [20], [bytes(8), None]])
    assert msgspec.msgpack.decode(before, type=Here).held == 0
