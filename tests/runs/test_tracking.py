"""Trackers for real: what TensorBoard, MLflow and W&B have written, read back by their own readers."""

import json
from pathlib import Path

import pytest
import torch

import narrowcast as nc
from narrowcast.errors import ConfigError
from narrowcast.rounds import records
from narrowcast.runs import Trackers, compare, make_config, run_folder, runner, tracked
from narrowcast.runs.tracking import names_of

pytest.importorskip("accelerate", reason="needs the extra narrowcast[track]")
CONFIG = {"task": "quadratic", "rounds": 6, "dim": 8, "width": 100, "evaluate_every": 2, "network": "4g"}
pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own


def begin(folder: Path, name: str, rounds: int = 6) -> Path:
    """A run with a tracker, stopped after so many rounds if they are fewer than all."""
    done = []
    with tracked(names_of(name), folder, lambda facts, record: done.append(record)) as on_record:
        runner.start(make_config(CONFIG), folder, on_record, until=lambda: len(done) >= rounds)
    return folder


def go_on(folder: Path) -> Path:
    """The way `narrowcast run --resume` does: no tracker is named."""
    with tracked([], folder) as on_record:
        return runner.resume(folder, on_record)


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars by step, from the records alone."""
    rows = records.read(folder / "records.jsonl")
    total = 0
    found: dict[str, dict[int, float]] = {"loss": {}, "up": {}, "down": {}, "down_total": {}, "test/loss": {}}
    for r in rows:
        total += r.down
        values = {"loss": r.loss, "up": r.up, "down": r.down, "down_total": total}
        values |= {f"test/{name}": value for name, value in r.metrics.items()}
        for name, value in values.items():
            if name in found:
                found[name][r.round + 1] = value
    return {name: values for name, values in found.items() if values}


def tensorboard_scalars(folder: Path) -> dict[str, dict[int, float]]:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    found = {}
    for name in read.Tags()["scalars"]:
        events = read.Scalars(name)
        assert len({event.step for event in events}) == len(events), f"{name} has a step twice"
        found[name] = {event.step: event.value for event in events}
    return found


def same(found: dict[str, dict[int, float]], folder: Path) -> None:
    for name, values in expected(folder).items():
        assert found[name] == pytest.approx(values, rel=1e-6), name


def test_tensorboard_reads_what_the_records_say(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    folder = begin(tmp_path / "run", "tensorboard")
    same(tensorboard_scalars(folder), folder)
    stored = next((folder / "tensorboard").rglob("hparams.yml")).read_text()
    assert "dim: 8" in stored
    assert "network_seconds_total" in tensorboard_scalars(folder)


def test_a_resumed_run_goes_on_in_the_same_track(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    folder = begin(tmp_path / "run", "tensorboard", rounds=3)
    assert set(tensorboard_scalars(folder)["loss"]) == {1, 2, 3}
    assert not run_folder.finished(go_on(folder).parent)
    same(tensorboard_scalars(folder), folder)
    assert set(tensorboard_scalars(folder)["loss"]) == set(range(1, 7))
    begin_again = begin(folder.with_name("other"), "tensorboard")
    assert json.loads((begin_again / "track.json").read_text())["rounds"] == {"tensorboard": 6}


def test_mlflow_reads_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = go_on(begin(tmp_path / "run", "mlflow", rounds=3))
    name = json.loads((folder / "track.json").read_text())["ids"]["mlflow"]
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name == "narrowcast"]
    (only,) = client.search_runs([experiment.experiment_id])
    assert only.info.run_id == name  # one run, not one a session
    assert only.info.status == "FINISHED"
    assert only.data.params["dim"] == "8"
    found = {
        key: {m.step: m.value for m in client.get_metric_history(name, key)} for key in only.data.metrics
    }
    same(found, folder)
    assert [file.path for file in client.list_artifacts(name)] == ["model.narrowcast"]
    artefact = Path(client.download_artifacts(name, "model.narrowcast"))
    assert artefact.read_bytes() == (folder / "model.narrowcast").read_bytes()


def leveldb_log(data: bytes) -> list[bytes]:
    """The entries of a W&B file, a log of LevelDB's after 7 bytes: blocks of 32 kB, parts with heads."""
    entries, at, whole = [], 7, b""
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, or the last part
            entries.append(whole)
            whole = b""
    return entries


def test_wandb_offline_writes_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = begin(tmp_path / "run", "wandb")
    (written,) = folder.rglob("run-*.wandb")
    found, settings, artefacts = {}, {}, []
    for data in leveldb_log(written.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            for name, value in row.items():
                found.setdefault(name, {})[row["_step"]] = value
        for kind in (record.run.config.update, record.config.update):
            settings |= {i.key: i.value_json for i in kind}
        if record.WhichOneof("record_type") == "artifact":
            artefacts.append(record.artifact.type)
    same(found, folder)
    assert settings["dim"] == "8"
    assert artefacts == ["model"]


def test_a_comparison_is_followed_run_by_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    file = tmp_path / "two.toml"
    file.write_text(
        'task = "quadratic"\nrounds = 2\nwidth = 100\ndim = 8\n'
        '[[run]]\nname = "a"\n[[run]]\nname = "b"\nlr = 0.5\n'
    )
    folders, _ = compare.run_all(compare.load(file), tmp_path / "out", track=["tensorboard"])
    assert [set(tensorboard_scalars(folder)["up"]) for folder in folders] == [{1, 2}, {1, 2}]


def test_the_library_follows_a_loop_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    x = torch.randn(60, 20)
    y = (x @ torch.randn(20, 3)).argmax(1)
    task = nc.TorchTask(torch.nn.Linear(20, 3), train=(x, y), test=(x, y), clients=nc.by_class(y, clients=6))
    plan = nc.Plan(cohort=3, lr=1.0, rounds=3)
    with Trackers(["tensorboard"], tmp_path, settings={"dim": 8}) as track:
        rows = list(nc.simulate(task, nc.method("static", dim=8, key=7), plan, on_record=track))
    assert tensorboard_scalars(tmp_path)["loss"] == pytest.approx(
        {r.round + 1: r.loss for r in rows}, rel=1e-6
    )


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    from accelerate.tracking import TensorBoardTracker

    def full(self, values, step=None, **more):
        raise OSError("no space left on device")

    monkeypatch.setattr(TensorBoardTracker, "log", full)
    assert run_folder.finished(begin(tmp_path / "run", "tensorboard"))


def test_an_unknown_tracker_is_said_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'papyrus': choose among"):
        names_of("tensorboard,papyrus")
    assert names_of("") == names_of(" , ") == []


def test_a_run_that_replaces_another_leaves_none_of_its_curves(tmp_path: Path) -> None:
    """Readers draw all event files of a folder as one run."""
    pytest.importorskip("tensorboard", reason="needs the extra narrowcast[track]")
    folder = begin(tmp_path / "run", "tensorboard")
    with tracked(names_of("tensorboard"), folder) as on_record:
        runner.start(make_config({**CONFIG, "rounds": 3}), folder, on_record, force=True)
    assert set(tensorboard_scalars(folder)["loss"]) == {1, 2, 3}
