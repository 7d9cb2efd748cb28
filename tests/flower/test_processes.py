"""Flower for real: processes of their own, sockets, TLS, Ray. The rest of the faults are slow tests."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flower_runs import rounds, until
from narrowcast.flower.demo import write_app
from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.rounds import records
from narrowcast.runs import modelfile, run_folder
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build

COMMAND = Path(sys.executable).parent / "narrowcast"
SETTINGS = {
    "task": "digits", "method": "time-varying", "dim": 64, "width": 16, "clients": 6, "cohort": 6,
    "partition": "iid", "rounds": 4, "lr": 5.0, "refresh": "2", "evaluate_every": 1,
}  # fmt: skip


def theta_of(folder: Path, settings: dict[str, object]) -> torch.Tensor:
    task = build("digits", make_config(settings).task_options())
    return modelfile.load_model(folder / "model.narrowcast", task.theta0())


@pytest.mark.xdist_group("flower")
def test_the_demo_with_tls_trains_and_ends_every_process(tmp_path: Path) -> None:
    words = [COMMAND, "flower", "demo", "--tls", "--rounds", "1", "--dim", "128", "--out", tmp_path / "demo"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("payload:", "on the wire:", "time-varying d=128", "with TLS and keys"):
        assert expected in done.stdout
    done_records = records.read(tmp_path / "demo/run/records.jsonl")
    assert [r.clients for r in done_records] == [20]
    assert not any(str(tmp_path / "demo") in line for line in _processes())


def _processes() -> list[str]:
    """Command lines and environments of all there are: Flower's own children have our FLWR_HOME."""
    lines = []
    for name in ("cmdline", "environ"):
        for path in Path("/proc").glob(f"[0-9]*/{name}"):
            try:
                lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return lines


@pytest.mark.xdist_group("flower")
def test_ctrl_c_ends_every_process_of_the_demo(tmp_path: Path) -> None:
    words = [COMMAND, "flower", "demo", "--nodes", "1", "--rounds", "50", "--out", tmp_path / "demo"]
    demo = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: (tmp_path / "demo/run.log").is_file(), "the run", 180)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, said
    assert "every process of the demo has been ended" in said
    assert not any(str(tmp_path / "demo") in line for line in _processes())


@pytest.mark.xdist_group("flower, waiting")  # for the engine to notice: it may as well wait beside the others
def test_a_node_killed_in_the_middle_comes_back_and_training_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    app = write_app(
        tmp_path / "app",
        {k.replace("_", "-"): v for k, v in SETTINGS.items()}
        | {"folder": str(run), "min-clients": 6, "timeout": 90.0, "rounds": 3},
    )
    with LocalFleet(tmp_path / "fleet") as fleet:
        nodes = [fleet.start_node(part, 2, **{"narrowcast-folder": str(tmp_path / "n")}) for part in range(2)]
        submitted = fleet.run(app)
        until(lambda: rounds(run) >= 1, "the first round", 180)
        fleet.kill(nodes[1])
        fleet.start_node(1, 2, **{"narrowcast-folder": str(tmp_path / "n")})
        until(lambda: run_folder.finished(run) or submitted.poll() is not None, "the end of the run", 300)
        assert run_folder.finished(run), fleet.log("run")
    done = records.read(run / "records.jsonl")
    assert len(done) == 3
    assert done[0].clients == 6
    assert done[-1].clients == 6  # the node is back: under another id, with what it had on its disk
    assert done[-1].down_first == 0


@pytest.mark.xdist_group("flower")
def test_the_simulation_engine_trains_what_the_simulator_trains(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra narrowcast[flower-sim]")
    flags = [
        word for k, v in SETTINGS.items() if k != "task" for word in (f"--{k.replace('_', '-')}", str(v))
    ]
    for engine in ("here", "flower-sim"):
        words = [COMMAND, "run", "digits", *flags, "--engine", engine, "--out", tmp_path / engine]
        done = subprocess.run(words, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
    here, there = (records.read(tmp_path / engine / "records.jsonl") for engine in ("here", "flower-sim"))
    for a, b in zip(here, there, strict=True):
        assert (a.up, a.down, a.down_first, a.clients) == (b.up, b.down, b.down_first, b.clients)
    first, second = (theta_of(tmp_path / engine, SETTINGS) for engine in ("here", "flower-sim"))
    assert torch.allclose(first, second, atol=1e-5)
