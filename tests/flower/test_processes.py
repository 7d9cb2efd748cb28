"""Flower for real: processes of their own, sockets, TLS, Ray. The rest of the faults are slow tests."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra narrowcast[flower]")
from flower_runs import rounds, until
from narrowcast.flower.demo import write_app
from narrowcast.flower.local_fleet import LocalFleet, free_port
from narrowcast.numerics import pool
from narrowcast.rounds import records
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs import modelfile, run_folder, runner
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build

COMMAND = Path(sys.executable).parent / "narrowcast"
SETTINGS = {
    "task": "digits", "method": "time-varying", "dim": 64, "width": 16, "clients": 6, "cohort": 6,
    "partition": "iid", "rounds": 4, "lr": 5.0, "refresh": "2", "evaluate_every": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch, in every process: there are more of them than cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def theta_of(folder: Path, settings: dict[str, object]) -> torch.Tensor:
    task = build("digits", make_config(settings).task_options())
    return modelfile.load_model(folder / "model.narrowcast", task.theta0())


@pytest.mark.xdist_group("flower")
def test_the_demo_with_tls_trains_and_ends_every_process(tmp_path: Path) -> None:
    words = [COMMAND, "flower", "demo", "--tls", "--nodes", "1", "--rounds", "1", "--dim", "128"]
    done = subprocess.run([*words, "--out", tmp_path / "demo"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("payload:", "on the wire:", "time-varying d=128", "with TLS and keys"):
        assert expected in done.stdout
    done_records = records.read(tmp_path / "demo/run/records.jsonl")
    assert [r.clients for r in done_records] == [10]
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
    until(lambda: (tmp_path / "demo/run.log").is_file(), "the run", 600)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=600)
    assert demo.returncode == 130, said
    assert "every process of the demo has been ended" in said
    assert not any(str(tmp_path / "demo") in line for line in _processes())


@pytest.mark.xdist_group("flower")
def test_a_node_killed_in_the_middle_comes_back_and_training_goes_on(tmp_path: Path) -> None:
    """By a rule against liars, which those who are left must be enough for. Two nodes of three clients: the
    processes, one for every message to a node, are the work of this test."""
    run = tmp_path / "run"
    own = {"folder": str(run), "min-clients": 6, "timeout": 300.0, "rounds": 50, "aggregate": "median"}
    app = write_app(tmp_path / "app", {k.replace("_", "-"): v for k, v in SETTINGS.items()} | own)
    kept = {"narrowcast-folder": str(tmp_path / "n")}
    with LocalFleet(tmp_path / "fleet") as fleet:
        nodes = [fleet.start_node(part, 2, **kept) for part in range(2)]
        submitted = fleet.run(app)
        until(lambda: rounds(run) >= 1, "the first round", 600)
        fleet.kill(nodes[1])
        last = rounds(run)  # the round in which it was killed, or in which its answer was in already
        fleet.start_node(1, 2, **kept)
        whole: list[RoundRecord] = []

        def back() -> bool:
            whole.extend(r for r in records.read(run / "records.jsonl")[last + 1 :] if r.clients == 6)
            return bool(whole) or submitted.poll() is not None

        until(back, "a round with both", 1200)
        assert whole, fleet.log("run")
    assert whole[0].down_first == 0  # under another id, with what it had on its disk
    assert records.read(run / "records.jsonl")[0].clients == 6
    assert run_folder.load_config(run).aggregate == "median"


@pytest.fixture
def ray_cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What leads to a Ray of our own, with ports that we choose.

    A Ray that chooses them itself ends where its helpers take 15 s to start: its issue 65983.
    """
    pytest.importorskip("ray", reason="needs the extra narrowcast[flower-sim]")
    flags = ("port", "dashboard-agent-grpc-port", "dashboard-agent-listen-port", "runtime-env-agent-port")
    flags += ("metrics-export-port", "ray-client-server-port")
    ports = {flag: free_port() for flag in flags}
    words = [COMMAND.with_name("ray"), "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"]
    words += ["--include-dashboard=false", "--node-ip-address=127.0.0.1"]
    log = tmp_path / "ray.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*words, *(f"--{flag}={port}" for flag, port in ports.items())],
            stdout=out,
            stderr=out,
            start_new_session=True,
            env=os.environ | {"RAY_agent_register_timeout_ms": "600000"},
        )
    try:
        started = "Ray runtime started"
        until(lambda: started in log.read_text() or process.poll() is not None, started, 600)
        assert process.poll() is None, log.read_text()
        yield os.environ | {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}"}
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)


@pytest.mark.xdist_group("flower")
def test_the_simulation_engine_trains_what_the_simulator_trains(
    tmp_path: Path, ray_cluster: dict[str, str]
) -> None:
    """With few bits a number, whose dither and lattices both must find alike."""
    assert_trained_alike(tmp_path, ray_cluster, SETTINGS | {"method": "narrow"})


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_the_simulation_engine_starts_a_ray_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra narrowcast[flower-sim]")
    assert_trained_alike(tmp_path, dict(os.environ), SETTINGS)


def assert_trained_alike(folder: Path, environment: dict[str, str], settings: dict[str, object]) -> None:
    flags = [
        word for k, v in settings.items() if k != "task" for word in (f"--{k.replace('_', '-')}", str(v))
    ]
    words = [COMMAND, "run", "digits", *flags, "--engine", "flower-sim", "--out", folder / "there"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    runner.start(make_config(settings), folder / "here")
    here, there = (records.read(folder / engine / "records.jsonl") for engine in ("here", "there"))
    for a, b in zip(here, there, strict=True):
        assert (a.up, a.down, a.down_first, a.clients) == (b.up, b.down, b.down_first, b.clients)
    first, second = (theta_of(folder / engine, settings) for engine in ("here", "there"))
    assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("address", ["", "127.0.0.1:6379"])
def test_a_ray_of_our_own_is_told_its_cores_and_one_that_is_there_is_not(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = pytest.importorskip("narrowcast.flower.sim", reason="needs the extra narrowcast[flower-sim]")
    asked = {}
    monkeypatch.setattr(sim, "run_simulation", lambda *_, backend_config: asked.update(backend_config))
    monkeypatch.setenv("RAY_ADDRESS", address)
    sim._simulate(None, make_config(SETTINGS), 6)
    own = {"address": "local", "num_cpus": pool.default_threads(), "include_dashboard": False}
    assert asked["init_args"] == {"log_to_driver": False} | ({} if address else own)
