"""NarrowcastStrategy in a ServerApp of one's own: Flower's loop, the same model."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict

from fake_grid import Clock, FakeGrid, LateGrid
from narrowcast.errors import ConfigError
from narrowcast.flower import FleetSettings, LoaderTask, ModelTask, NarrowcastStrategy, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, pack, unpack
from narrowcast.flower.server import driver, find_rate
from narrowcast.rounds import rates
from narrowcast.runs.prepared import prepare
from narrowcast.runs.reading import make_config

CLIENTS, ROUNDS = 4, 6
SETTINGS = {
    "method": "time-varying", "dim": 40, "lr": 2.0, "refresh": "2", "clients": CLIENTS, "cohort": CLIENTS,
    "schedule": "constant", "evaluate_every": 0,
}  # fmt: skip
FLEET = FleetSettings(min_clients=CLIENTS, wait=600.0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def build(context: Context) -> LoaderTask:
    draw = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    x = torch.randn(50, 8, generator=draw)
    return LoaderTask(make_model(), loss, DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=50))


def grid() -> FakeGrid:
    return FakeGrid(
        client_app(build, config=make_config({"task": "custom", "rounds": ROUNDS, **SETTINGS})), CLIENTS
    )


def test_flowers_loop_trains_the_model_of_the_servers_own() -> None:
    config = make_config({"task": "custom", "rounds": ROUNDS, **SETTINGS})
    task = ModelTask(make_model(), clients=CLIENTS)
    plan = config.plan(CLIENTS, b"run-test")
    expected = Federation(task, config.build_method(CLIENTS), plan, grid(), FLEET)
    records = list(expected)
    strategy, model, seen = NarrowcastStrategy(make_model(), fleet=FLEET, **SETTINGS), make_model(), []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(round)
        return MetricRecord({"weights": len(arrays)})

    result = strategy.start(grid(), num_rounds=ROUNDS, evaluate_fn=evaluate)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.equal(trained, expected.theta)
    assert [(r.up, r.down, r.loss) for r in strategy.records] == [(r.up, r.down, r.loss) for r in records]
    assert strategy.records[-1].loss < 0.8 * strategy.records[0].loss
    assert seen == list(range(ROUNDS + 1))
    assert [m["bytes-up"] for m in result.train_metrics_clientapp.values()] == [r.up for r in records]


def test_it_starts_from_the_arrays_it_is_given() -> None:
    torch.manual_seed(4)
    other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    strategy = NarrowcastStrategy(make_model(), fleet=FLEET, **SETTINGS)
    arrays = ArrayRecord(other.state_dict())
    result = strategy.start(grid(), initial_arrays=arrays, num_rounds=1)
    assert strategy.records[0].clients == CLIENTS  # nodes with another start are sent this one
    trained = result.arrays.to_torch_state_dict()
    way = sum((trained[name] - value).norm() for name, value in other.state_dict().items())
    assert 0 < way < 2 * 40**0.5


def test_a_node_that_fails_is_dropped() -> None:
    strategy, there = NarrowcastStrategy(make_model(), fleet=FLEET, **SETTINGS), grid()
    there.fault = lambda node, message: (
        "out of memory" if node == 101 and message.metadata.group_id == "2" else message
    )
    strategy.start(there, num_rounds=3)
    assert [r.dropped for r in strategy.records] == [{}, {"failed": 1}, {}]


def test_who_lacks_something_is_asked_again_however_long_the_server_has_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lacked = Clock(), set[int]()
    for module in ("fleet", "federation", "strategy"):
        monkeypatch.setattr(f"narrowcast.flower.{module}.time", clock)
    there = LateGrid(grid().app, CLIENTS, clock, come=700.0, trained=5.0)

    def lacks_once(node: int, records: RecordDict) -> RecordDict:
        if node in lacked:
            return records
        lacked.add(node)
        return pack(Answer(unpack(records, Answer).have, lacks="another model"))

    there.lie = lacks_once
    run = NarrowcastStrategy(make_model(), fleet=FLEET.model_copy(update={"wait": 3600.0}), **SETTINGS)
    run.start(there, num_rounds=1, timeout=600.0)
    assert len(lacked) == CLIENTS
    assert (run.records[0].clients, run.records[0].dropped) == (CLIENTS, {})


def test_a_wrong_setting_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="unknown method 'zip'"):
        NarrowcastStrategy(make_model(), method="zip")
    with pytest.raises(RuntimeError, match="has not begun"):
        NarrowcastStrategy(make_model(), **SETTINGS).summary()


def test_flowers_result_has_what_the_nodes_found() -> None:
    """On what they hold out, in the rounds that are evaluated; the engine's own evaluation sends nothing."""

    def holding(context: Context) -> LoaderTask:
        task = build(context)
        x = torch.randn(10, 8, generator=torch.Generator().manual_seed(9))
        held = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=4)
        whole = DataLoader(task._train.data, batch_size=50)
        return LoaderTask(make_model(), loss, whole, held_out=held)

    settings = {**SETTINGS, "evaluate_every": 2}
    config = make_config({"task": "custom", "rounds": 4, **settings})
    strategy = NarrowcastStrategy(make_model(), fleet=FLEET, **settings)
    result = strategy.start(FakeGrid(client_app(holding, config=config), CLIENTS), num_rounds=4)
    found = {r: m["loss"] for r, m in result.evaluate_metrics_clientapp.items()}
    assert found == {2: strategy.records[1].node_metrics["loss"], 4: strategy.records[3].node_metrics["loss"]}
    assert strategy.records[3].node_examples == 40


def test_lr_auto_is_taken_from_a_first_round_of_the_nodes() -> None:
    """No data at the server, no trial: one round more on the wire, then a run that learns."""
    settings = {**SETTINGS, "lr": "auto"}
    config = make_config({"task": "custom", "rounds": ROUNDS, **settings})
    strategy = NarrowcastStrategy(make_model(), fleet=FLEET, **settings)
    strategy.start(FakeGrid(client_app(build, config=config), CLIENTS), num_rounds=ROUNDS)
    assert strategy.run is not None
    assert 0 < strategy.run.plan.rate < 100
    assert len(strategy.records) == ROUNDS
    assert strategy.records[-1].loss < strategy.records[0].loss


def test_a_long_run_on_a_fleet_is_worth_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes' own losses tell good rates from bad ones: no data at the server."""
    settings = {**SETTINGS, "lr": "auto"}
    assert rates.LONG > 12
    monkeypatch.setattr(rates, "LONG", 12)
    monkeypatch.setattr(rates, "SHORTEST", 3)
    config = make_config({"task": "custom", "rounds": 12, **settings})
    grid, task = FakeGrid(client_app(build, config=config), CLIENTS), ModelTask(make_model(), clients=CLIENTS)
    run = prepare(config, task, b"the salt")
    found = find_rate(run, Path("unused"), driver(grid, FLEET))
    assert found.rounds == 1 + 3 * len(found.trials)
    assert len(found.trials) >= 5
    rate = found.rate
    low, high = (found.trials[f"{r:g}"] for r in sorted(map(float, found.trials))[:: len(found.trials) - 1])
    best = min(loss for loss in found.trials.values() if loss is not None)
    assert low is not None
    assert best < low
    assert high is None or best <= high
    assert rate < max(map(float, found.trials))
