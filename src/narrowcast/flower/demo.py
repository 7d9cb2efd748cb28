"""What `narrowcast flower demo` does: a SuperLink, nodes, a run, and what went over the wire."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tomli_w
from rich.console import Console

from narrowcast.errors import ConfigError, Interrupted
from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.flower.proxy import CountingProxy
from narrowcast.flower.security import certify, make_key
from narrowcast.rounds import records
from narrowcast.runs import run_folder
from narrowcast.runs.compiling import prepare_kernels
from narrowcast.runs.interrupts import interrupts
from narrowcast.runs.progress import RunProgress
from narrowcast.runs.used import of_method

MARK = ".narrowcast-demo"  # in a folder that a demo has made, and the next one may replace
CLIENTS = 10  # logical clients a node: they share its message, and so the engine's fixed cost
ALONG = 40.0  # the rate of methods with a subspace, in its own coordinates; of the others:
ACROSS, RATES = 0.1, {"narrow": 20.0, "signsgd": 0.01, "random-low-rank": 0.01, "fedkseed": 0.001}
# A message costs seconds, so each is worth eight local steps: in eight rounds that is 0.92, and 0.53 without.
LOCAL = {"local-steps": 8, "local-batch": 32, "local-lr": 0.1}
COMPONENTS = {
    "client.py": "from narrowcast.flower import client_app, sizes_mod\n\n"
    "app = client_app(mods=[sizes_mod])\n",
    "server.py": "from narrowcast.flower import server_app\n\napp = server_app()\n",
    "__init__.py": '"""The demo\'s Flower app: a built-in task."""\n',
}


@dataclass(frozen=True)
class Outcome:
    folder: Path  # of the run
    up: int  # payload
    down: int
    wire: tuple[int, int]  # bytes up and down
    messages: int  # orders that reached a node
    nodes: int
    rounds: int
    seconds: float  # in all
    a_round: float  # seconds of the one in the middle
    working: float  # seconds of these in which a node had its message: reconciling, training, compressing


def write_app(folder: Path, settings: dict[str, object]) -> Path:
    """A Flower app that trains one of narrowcast's own tasks."""
    (folder / "demo").mkdir(parents=True, exist_ok=True)
    for name, text in COMPONENTS.items():
        (folder / "demo" / name).write_text(text)
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {"name": "narrowcast-demo", "version": "0.1.0", "description": "", "dependencies": []},
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["demo"]}}}},
            "flwr": {
                "app": {
                    "publisher": "narrowcast",
                    "components": {"serverapp": "demo.server:app", "clientapp": "demo.client:app"},
                    "config": {"narrowcast": settings},
                }
            },
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project))
    return folder


def _work(method: str) -> dict[str, object]:
    """What a client does in a round, and at which rates."""
    options = of_method(method)
    rate = RATES.get(method, ALONG if "dim" in options else ACROSS)
    local = {name: value for name, value in LOCAL.items() if method != "fedkseed" or name != "local-lr"}
    return {"lr": rate, **local}


def show(
    console: Console, folder: Path, method: str, nodes: int, rounds: int, dim: int, tls: bool
) -> Outcome:
    """Train; every process that was started has ended when this returns or raises."""
    folder = folder.resolve()
    if folder.exists() and not (folder / MARK).is_file() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty, and not of an earlier demo: choose another --out")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    clients = CLIENTS * nodes
    own = {name: value for name, value in {"dim": dim, "refresh": "2"}.items() if name in of_method(method)}
    settings: dict[str, object] = {
        "task": "digits", "method": method, **own, "clients": clients, "cohort": clients,
        "partition": "iid", "rounds": rounds, **_work(method), "evaluate-every": 1,
        "folder": str(folder / "run"), "min-clients": clients, "timeout": 300.0,
    }  # fmt: skip
    app = write_app(folder / "app", settings)
    prepare_kernels(console)
    started = time.monotonic()
    with ExitStack() as stack:
        stop = stack.enter_context(interrupts())
        secrets = certify(folder / "secrets") if tls else None
        fleet = stack.enter_context(LocalFleet(folder, secrets, authenticate=tls))
        proxy = stack.enter_context(CountingProxy(fleet.port))
        for part in range(nodes):
            key = make_key(folder / "secrets" / f"node{part}") if tls else None
            if key:
                fleet.register(key)
            fleet.start_node(part, nodes, through=proxy.port, key=key)
        console.print(
            f"a SuperLink and {nodes} SuperNodes are running{' with TLS and keys' if tls else ''}: {clients} "
            f"clients, {CLIENTS} a node. Nodes ask for work every three seconds: a round takes six or more",
            highlight=False,
            soft_wrap=True,
        )
        run = fleet.run(app)
        with RunProgress(console) as progress:
            seen = 0
            while True:
                ended = run.poll() is not None
                for record in _records(folder / "run")[seen:]:
                    progress(run_folder.load_facts(folder / "run"), record)
                    seen += 1
                if ended or run_folder.finished(folder / "run"):
                    break
                if stop.is_set():
                    raise Interrupted("stopped: every process of the demo has been ended")
                time.sleep(0.3)
        if not run_folder.finished(folder / "run"):
            raise RuntimeError(f"the run failed: see {folder}/run.log\n{fleet.log('run')[-1500:]}")
        wire = proxy.up, proxy.down
    done = _records(folder / "run")
    return Outcome(
        folder / "run", sum(r.up for r in done), sum(r.down for r in done), wire, nodes * len(done), nodes,
        len(done), time.monotonic() - started, median(record.seconds for record in done),
        _working(folder),
    )  # fmt: skip


def _working(folder: Path) -> float:
    """The seconds of a message in the middle, as `sizes_mod` writes them to the nodes' logs."""
    said = [re.findall(r"train: .* ([0-9.]+) s$", log.read_text(), re.M) for log in folder.glob("node-*.log")]
    return median([float(seconds) for found in said for seconds in found] or [0.0])


def _records(folder: Path) -> list[records.RoundRecord]:
    path = folder / "records.jsonl"
    return records.read(path) if path.is_file() and run_folder.is_run(folder) else []
