"""Real processes killed at random, for every method with private state.

    python tests/chaos.py MINUTES [SEED]

A SuperLink and three nodes train by all of these methods at once, each in a run of its own; now and then one
of them is killed as a power cut would, and started again. Server kills: each model is that of an undisturbed
run, bit for bit. Node kills: it is that of a run in this process in which the same clients took part in the
same rounds. Both are done by turns until the minutes are over, and once at least.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import torch
from flwr.app import Message, MessageType

from fake_grid import FakeGrid
from fitting import made
from flower_runs import app, is_free, rounds, table, until
from forking_fleet import ForkingFleet
from narrowcast.flower import FleetSettings, client_app
from narrowcast.flower import fleet as fleet_module
from narrowcast.flower.federation import Federation
from narrowcast.flower.local_fleet import CONNECTION
from narrowcast.flower.security import certify, make_key
from narrowcast.flower.settings import run_settings
from narrowcast.methods import METHODS
from narrowcast.runs import modelfile, run_folder
from narrowcast.runs.config import RunConfig
from narrowcast.tasks import build

NODES, CLIENTS, ROUNDS = 3, 6, 8
PATIENCE = 600.0  # seconds without a round of anybody: a run that dies of itself, again and again
STATEFUL = [name for name in METHODS if made(name).stateful]


def settings(method: str, kind: str) -> dict[str, object]:
    own = {"k": 40, "lr": 0.1, "dim": 64, "rank": 1}
    used = {name: value for name, value in own.items() if name in METHODS[method].options or name == "lr"}
    enough = CLIENTS if kind == "server" else 2
    patience = 600.0 if kind == "server" else 150.0  # nobody is missed there, however busy the machine
    return {"method": method, **used, "rounds": ROUNDS, "min-clients": enough, "timeout": patience}


class Fleet(ForkingFleet):
    """With nodes that are started again by their number, and a run for every method."""

    def __init__(self, folder: Path, kind: str) -> None:
        # Nodes find a SuperLink that was started again by their keys, which its database keeps; a key is
        # refused for a minute after its node was killed.
        tls = certify(folder / "secrets") if kind == "server" else None
        super().__init__(folder / "fleet", tls, authenticate=tls is not None)
        self.place, self.kind, self.kills = folder, kind, 0
        self.apps = {method: app(folder / method, **settings(method, kind)) for method in STATEFUL}
        self.runs = {method: folder / method / "run" for method in STATEFUL}

    def begin(self) -> None:
        self.keys: dict[int, Path] = {}
        for part in range(NODES if self.tls else 0):
            self.keys[part] = make_key(self.place / "secrets" / f"node{part}")
            self.register(self.keys[part])
        self.nodes = [self.node(part) for part in range(NODES)]
        self.submitted = {method: self.submit(method) for method in STATEFUL}

    def node(self, part: int) -> subprocess.Popen[bytes]:
        own = {"narrowcast-folder": str(self.place / f"shelf-{part}"), "notes": str(self.place / "notes")}
        return self.start_node(part, NODES, key=self.keys.get(part), **own)

    def submit(self, method: str) -> subprocess.Popen[bytes]:
        return self.start(f"run-{method}", "flwr", "run", str(self.apps[method]), CONNECTION, "--stream")

    def going(self) -> list[str]:
        return [method for method, run in self.runs.items() if not run_folder.finished(run)]

    def live(self, more: int) -> None:
        """Until every run has ended or has this many rounds more."""
        wanted = {method: rounds(self.runs[method]) + more for method in self.going()}
        last, seen = time.monotonic(), -1
        while any(rounds(self.runs[method]) < wanted[method] for method in self.going()):
            time.sleep(0.5)
            if seen != (seen := sum(map(rounds, self.runs.values()))):
                last = time.monotonic()
            for method in self.going():
                run = self.runs[method]
                if self.submitted[method].poll() is None or (run.is_dir() and not is_free(run)):
                    continue  # a stream of a log may end before its run
                if not run_folder.finished(run):
                    assert self.kind == "server", self.log(f"run-{method}")[-5000:]
                    self.submitted[method] = self.submit(method)  # it went down with its SuperLink
            assert time.monotonic() < last + PATIENCE, "\n".join(
                self.log(f"run-{method}")[-2000:] for method in self.going()
            )

    def kill_one(self, dice: random.Random) -> None:
        self.kills += 1
        if self.kind == "node":
            part = dice.randrange(NODES)
            self.kill(self.nodes[part])
            self.nodes[part] = self.node(part)
            return
        self.kill(self.superlink)
        for method, run in self.runs.items():
            if self.submitted[method].poll() is None:
                self.kill(self.submitted[method])
            until(lambda run=run: is_free(run), f"the end of {method}'s ServerApp, which was killed")
        self.superlink = self.start_superlink()
        self.submitted |= {method: self.submit(method) for method in self.going()}


def chaos(kind: str, dice: random.Random, folder: Path) -> dict[str, str]:
    """A run of each method with kills of this kind; what happened in it."""
    with Fleet(folder, kind) as fleet:
        fleet.begin()
        while fleet.going():
            fleet.live(dice.choice((2, 3)))  # rounds of a life: a shorter one might end where it began
            time.sleep(dice.uniform(0, 10))  # at any moment of the round
            if fleet.going():
                fleet.kill_one(dice)
    return {method: f"{fleet.kills} kills, {_judged(method, kind, folder / method)}" for method in STATEFUL}


def _judged(method: str, kind: str, folder: Path) -> str:
    """How many updates the run did without; its model must be that of its replay."""
    values = table(**settings(method, kind))
    config = run_settings({f"narrowcast.{name}": value for name, value in values.items()})
    theta0 = build(config.task, config.task_options()).theta0()
    theta = modelfile.load_model(folder / "run" / run_folder.MODEL, theta0)
    counted = _counted(folder / "run.counted")
    assert set(counted) == set(range(ROUNDS)), counted
    if kind == "server":
        assert all(len(clients) == CLIENTS for clients in counted.values()), counted
    assert torch.equal(theta, _replayed(config, counted, folder / "replay")), f"{method}: another model"
    missed = sum(CLIENTS - len(clients) for clients in counted.values())
    return f"{missed} updates missed, the model is the same"


def _counted(path: Path) -> dict[int, set[int]]:
    """Round -> the clients whose updates were counted; of a round that was trained twice, the last time."""
    found = {}
    for line in path.read_text().splitlines():
        number, *clients = line.split()
        found[int(number)] = set(map(int, clients))
    return found


def _replayed(config: RunConfig, counted: dict[int, set[int]], folder: Path) -> torch.Tensor:
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
    for kind in cycle(("server", "node")):
        with tempfile.TemporaryDirectory() as folder:
            for method, word in chaos(kind, dice, Path(folder)).items():
                print(f"{method}, {kind}s killed: {word}", flush=True)
        if kind == "node" and time.monotonic() > end:
            return


if __name__ == "__main__":
    main()
