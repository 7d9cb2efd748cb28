"""What a node keeps for a run, when the server begins that run again."""

import msgspec
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from fake_grid import FakeGrid
from federations import federation, settings
from narrowcast import files
from narrowcast.flower import FleetSettings, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build


@pytest.mark.parametrize("method", ["topk", "time-varying"])
def test_a_run_begun_anew_is_the_run_once_more(
    method: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings make the same run id: the nodes have the first run's model and private states."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    config = make_config(
        {
            "task": "digits", "method": method, "dim": 64, "width": 8, "clients": 4, "partition": "iid",
            "cohort": 4, "rounds": 7, "lr": 0.1, "refresh": "2", "k": 40, "schedule": "constant",
        }
    )  # fmt: skip
    task = build(config.task, config.task_options())
    plan = config.plan(4, b"run-test")
    grid = FakeGrid(client_app(config=config), 4, {"narrowcast-folder": str(tmp_path)})
    thetas, lost = [], []
    for _ in range(2):
        run = Federation(task, config.build_method(4), plan, grid, FleetSettings(min_clients=4, wait=600.0))
        lost.append(sum(record.lost for record in run))
        thetas.append(run.theta.clone())
    assert lost == [0, 0]
    assert torch.equal(*thetas)
    assert len(list(tmp_path.rglob("client-0-*"))) <= 3


@pytest.mark.parametrize("method", ["uncompressed", "fedavg"])
def test_where_the_whole_model_is_sent_none_is_kept(method: str, tmp_path) -> None:
    config = make_config(
        {
            "task": "digits",
            "method": method,
            "width": 8,
            "clients": 2,
            "partition": "iid",
            "rounds": 2,
            "lr": 0.1,
        }
    )
    task = build(config.task, config.task_options())
    grid = FakeGrid(client_app(config=config), 1, {"narrowcast-folder": str(tmp_path)})
    run = Federation(
        task, config.build_method(2), config.plan(2, b"run-test"), grid, FleetSettings(wait=600.0)
    )
    assert all((record.clients, record.dropped) == (1, {}) for record in run)
    assert all(path.stat().st_size < 100 for path in tmp_path.rglob("model"))


@pytest.mark.parametrize(
    "kept",
    [b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1, 0, b"12345678", None]),
     msgspec.msgpack.encode([1, 0, b"123", None]), msgspec.msgpack.encode({"residual": b"123"})],
    ids=["no msgpack", "another schema", "another size", "no numbers", "a state of no numbers"],
)  # fmt: skip
def test_what_another_version_has_kept_is_begun_anew(
    kept: bytes, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole by its digest, and not to be read: the node is sent the model, the state counts as lost."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)
    config = settings("topk", clients=4, cohort=4)
    grid = FakeGrid(client_app(config=config), 4, {"narrowcast-folder": str(tmp_path)})
    run = federation(config, grid)
    run.step()
    for path in [*tmp_path.rglob("client-1-*"), *tmp_path.rglob("from-1/model")]:
        path.write_bytes(files.sealed(kept))
    assert [(record.clients, record.lost, record.dropped) for record in run][:2] == [(4, 1, {}), (4, 0, {})]
