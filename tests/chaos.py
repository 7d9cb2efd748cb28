"""Real processes killed at random, for every method with private state.

    python tests/chaos.py MINUTES [SEED]

A SuperLink and three nodes train; now and then one of them is killed as a power cut would, and started again.
Server kills: the model is that of an undisturbed run, bit for bit. Node kills: it is that of a run in this
process in which the same clients took part in the same rounds.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import torch
from flwr.app import Message, MessageType

from fake_grid import FakeGrid
from fitting import made
from flower_runs import app, rounds, table
from narrowcast import files
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower import fleet as fleet_module
from narrowcast.flower.federation import Federation
from narrowcast.flower.local_fleet import LocalFleet
from narrowcast.flower.security import certify, make_key
from narrowcast.flower.settings import run_settings
from narrowcast.methods import METHODS
from narrowcast.runs import modelfile, run_folder
from narrowcast.tasks import build

NODES, CLIENTS, ROUNDS = 3, 6, 8
STATEFUL = [name for name in METHODS if made(name).stateful]


def settings(method: str) -> dict[str, object]:
    own = {"k": 40, "lr": 0.1, "dim": 64, "rank": 1}
    used = {name: value for name, value in own.items() if name in METHODS[method].options or name == "lr"}
    return {"method": method, **used, "rounds": ROUNDS, "min-clients": 2, "timeout": 150.0}


def chaos(method: str, kind: str, dice: random.Random, folder: Path) -> str:
    """One run with kills of this kind; what happened in it."""
    run, notes = folder / "run", folder / "notes"
    shelves = {part: str(folder / "shelves" / str(part)) for part in range(NODES)}
    how = settings(method) | ({"min-clients": CLIENTS} if kind == "server" else {})
    kills, keys = 0, dict[int, Path]()
    # Nodes find a SuperLink that was started again by their keys, which its database keeps; a key is refused
    # for a minute after its node was killed.
    tls = certify(folder / "secrets") if kind == "server" else None
    with LocalFleet(folder / "fleet", tls, authenticate=tls is not None) as fleet:

        def start(part: int):
            own = {"narrowcast-folder": shelves[part], "notes": str(notes)}
            return fleet.start_node(part, NODES, key=keys.get(part), **own)

        for part in range(NODES if tls else 0):
            keys[part] = make_key(folder / "secrets" / f"node{part}")
            fleet.register(keys[part])
        nodes = [start(part) for part in range(NODES)]
        submitted, own = fleet.run(app(folder, **how)), folder / "app"
        wanted, soon = dice.choice((2, 3)), 0.0  # rounds of a life: a shorter one might end where it began
        while not run_folder.finished(run):
            time.sleep(0.2)
            if kind == "server" and submitted.poll() is not None and not run_folder.finished(run):
                submitted = fleet.run(own)  # the run went down with its SuperLink
            if rounds(run) < wanted:
                continue
            soon = soon or time.monotonic() + dice.uniform(0, 10)  # at any moment of the round
            if time.monotonic() < soon:
                continue
            kills, wanted, soon = kills + 1, rounds(run) + dice.choice((2, 3)), 0.0
            if kind == "server":
                fleet.kill(fleet.superlink)
                _until_free(run)
                fleet.superlink = fleet.start_superlink()
                submitted = fleet.run(own)
            else:
                part = dice.randrange(NODES)
                fleet.kill(nodes[part])
                nodes[part] = start(part)
    config = run_settings({f"narrowcast.{name}": value for name, value in table(**how).items()})
    theta0 = build(config.task, config.task_options()).theta0()
    theta = modelfile.load_model(run / run_folder.MODEL, theta0)
    counted = _counted(Path(f"{run}.counted"))
    if kind == "server":
        assert all(len(clients) == CLIENTS for clients in counted.values()), counted
    assert torch.equal(theta, _replayed(config, counted, folder / "replay")), f"{method}: another model"
    missed = sum(CLIENTS - len(clients) for clients in counted.values())
    return f"{kills} kills, {missed} updates missed, the model is the same"


def _until_free(run: Path) -> None:
    """The ServerApp has noticed that its SuperLink is gone."""
    while True:
        try:
            with files.locked(run):
                return
        except RuntimeError:
            time.sleep(0.2)


def _counted(path: Path) -> dict[int, set[int]]:
    """Round -> the clients whose updates were counted; of a round that was trained twice, the last time."""
    found = {}
    for line in path.read_text().splitlines():
        number, *clients = line.split()
        found[int(number)] = set(map(int, clients))
    return found


def _replayed(config, counted: dict[int, set[int]], folder: Path) -> torch.Tensor:
    """The same run in this process, where whoever was not counted does not answer."""
    torch.set_num_threads(1)
    fleet_module.POLL_SECONDS = 0.001
    task = build(config.task, config.task_options())
    grid = FakeGrid(client_app(config=config), NODES, {"narrowcast-folder": str(folder)})
    plan = config.plan(len(task.clients), b"run-test")
    how = FleetSettings(min_clients=CLIENTS, wait=30.0)
    run = Federation(task, config.build_method(len(task.clients)), plan, grid, how)

    def fault(node: int, message: Message) -> Message | None:
        own = set(range(node - 100, CLIENTS, NODES))
        asked = message.metadata.message_type != MessageType.TRAIN
        return message if asked or own <= counted[run.round] else None

    grid.fault = fault
    for _ in run:
        pass
    return run.theta


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{minutes:g} minutes, seed {seed}: {', '.join(STATEFUL)}", flush=True)
    dice, end = random.Random(seed), time.monotonic() + 60 * minutes
    for method, kind in cycle([(m, k) for m in STATEFUL for k in ("server", "node")]):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{method}, {kind}s killed: ", end="", flush=True)
            print(chaos(method, kind, dice, Path(folder)), flush=True)
        if time.monotonic() > end:
            return


if __name__ == "__main__":
    main()
