"""`narrowcast run TASK --engine flower-sim`: a node for every client, in Flower's simulation engine (Ray).

The run's folder, its records and its bytes are those of the in-process simulator. With RAY_ADDRESS set, an
existing cluster is used.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from narrowcast.errors import Interrupted
from narrowcast.flower.client import client_app
from narrowcast.flower.fleet import EngineEnded
from narrowcast.flower.server import driver
from narrowcast.flower.settings import FleetSettings
from narrowcast.numerics import pool
from narrowcast.runs import run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.interrupts import interrupts
from narrowcast.runs.runner import OnRecord
from narrowcast.tasks.table import build

TIMEOUT = 3600.0  # seconds: of a round of virtual clients, who neither sleep nor leave


def run(config: RunConfig, folder: Path, on_record: OnRecord | None, *, force: bool, resume: bool) -> None:
    """Begin a run, or go on with one, in Flower's simulation engine."""
    task = build(config.task, config.task_options())
    count = len(task.clients)
    fleet = FleetSettings(min_clients=count, timeout=TIMEOUT)
    failed: list[BaseException] = []
    app, ended = ServerApp(), threading.Event()
    with interrupts() as stop:

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            _end_with(grid, ended)
            extra: dict[str, Any] = {"until": stop.is_set, "task": task, "driver": driver(grid, fleet)}
            try:
                if resume:
                    runner.resume(folder, on_record, **extra)
                else:
                    runner.start(config, folder, on_record, force, **extra)
            except BaseException as error:  # Flower would log it and lose it
                failed.append(error)

        try:
            _simulate(app, config, count)
        finally:
            ended.set()
    if failed:
        raise failed[0]
    if not run_folder.finished(folder):
        raise Interrupted("stopped")


def _end_with(grid: Any, ended: threading.Event) -> None:
    """Let the server's thread end when the engine has crashed, instead of waiting for nodes that are gone."""

    def checked(call: Callable[..., Any]) -> Callable[..., Any]:
        def checking(*arguments: Any, **more: Any) -> Any:
            if ended.is_set():
                raise EngineEnded("the simulation engine has ended: no node will answer any more")
            return call(*arguments, **more)

        return checking

    grid.get_node_ids, grid.pull_messages = checked(grid.get_node_ids), checked(grid.pull_messages)


def _simulate(app: ServerApp, config: RunConfig, nodes: int) -> None:
    cores = pool.default_threads()
    # An existing cluster has its own cores; a new one is told, for Ray counts those of the whole machine, and
    # told that it is new, for Ray looks for one of which a killed process has left a note.
    own = {"address": "local", "num_cpus": cores, "include_dashboard": False}
    start = {"log_to_driver": False} | ({} if os.environ.get("RAY_ADDRESS") else own)
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": start}
    logging.getLogger("flwr").setLevel(logging.ERROR)  # who was dropped is in the records, and in the table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(app, client_app(config=config), nodes, backend_config=backend)
