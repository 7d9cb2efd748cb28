"""The ServerApp: a run in a folder of its own, begun or gone on with, whose clients are the fleet's nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from narrowcast.flower import monitoring
from narrowcast.flower.federation import Federation
from narrowcast.flower.fleet import log
from narrowcast.flower.monitoring import Watch
from narrowcast.flower.settings import FleetSettings, fleet_settings, run_settings
from narrowcast.rounds import rates
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.task import Task
from narrowcast.rounds.tune import Found
from narrowcast.runs import attempts, run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.going_on import Past
from narrowcast.runs.prepared import Prepared
from narrowcast.runs.run_folder import Facts
from narrowcast.runs.runner import Driver
from narrowcast.runs.tracking import names_of, tracked
from narrowcast.runs.words import searched
from narrowcast.units import format_bytes


def server_app(build: Callable[[Context], Task] | None = None) -> ServerApp:
    """A ServerApp that trains the model of `build(context)` (see `ModelTask`), or the run's built-in task.

    Settings come from the app's config (`narrowcast.*`). A run that its folder holds already, because the
    server was stopped or killed, goes on from its checkpoint.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        fixed: dict[str, Any] = {} if build is None else {"task": "custom"}
        config = run_settings(context.run_config, **fixed)
        fleet = fleet_settings(context.run_config)
        begin_or_resume(config, fleet, driver(grid, fleet), build(context) if build else None)

    return app


def driver(grid: Grid, fleet: FleetSettings) -> Driver:
    """What brings the clients of a run: this grid's nodes."""
    return lambda task, method, plan, folder: Federation(task, method, plan, grid, fleet)


def begin_or_resume(config: RunConfig, fleet: FleetSettings, driver: Driver, task: Task | None) -> Path:
    """The folder of the finished run."""
    folder = Path(fleet.folder)
    with (
        monitoring.watching(fleet, folder) as watch,
        tracked(names_of(fleet.track), folder, progress := _Progress(watch)) as on_record,
    ):
        if not run_folder.is_run(folder):
            extra: dict[str, Any] = {"driver": driver, "find": partial(find_rate, driver=driver)}
            return runner.start(config, folder, on_record, task=task, **extra)
        attempts.agree(config, folder, "choose another narrowcast.folder, or remove it")
        log.info("going on with the run in %s", folder)
        return runner.resume(folder, on_record, task=task, driver=driver, on_resume=progress.goes_on)


def find_rate(run: Prepared, folder: Path, driver: Driver) -> Found:
    """The rate of `lr = auto` on a fleet, from its nodes' losses and updates: no data is needed here."""
    clients = len(run.task.clients)
    found = rates.on_a_fleet(
        run.plan, run.method, clients, lambda plan: driver(run.task, run.method, plan, folder)
    )
    log.info("%s", searched(found))
    return found


class _Progress:
    """A line a round, in Flower's log, and whoever watches is told: once, if the server restarts too."""

    def __init__(self, watch: Watch) -> None:
        self.bytes, self.told, self.watch = 0, 0, watch

    def goes_on(self, facts: Facts, past: Past) -> None:
        """What was told before a restart is added up."""
        told = past.records[: past.told]
        self.told, self.bytes = past.told, sum(record.up + record.down for record in told)
        self.watch.goes_on(facts, told, past.ended)

    def __call__(self, facts: Facts, record: RoundRecord) -> None:
        if record.round < self.told:
            return
        self.watch(facts, record)
        self.bytes += record.up + record.down
        known = {"loss": record.loss, **record.metrics} if facts.metric in record.metrics else {}
        known = {**(known or {"loss": record.loss}), "epsilon": record.epsilon}
        if facts.privacy and record.round == self.told:
            log.info("differential privacy: %s", facts.privacy)
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in known.items() if value is not None)
        if record.node_metrics:
            held = ", ".join(f"{name} {value:.4g}" for name, value in record.node_metrics.items())
            numbers += f"  at the nodes, on {record.node_examples} held out: {held}"
        dropped = "".join(f"  {why}: {count}" for why, count in record.dropped.items())
        payload = f"  {format_bytes(self.bytes)} of payload" if record.epsilon is None else ""
        log.info("round %d of %d  %s%s%s", record.round + 1, facts.rounds, numbers, payload, dropped)
