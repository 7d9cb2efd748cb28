"""narrowcast as a Flower `Strategy`, for people who have a ServerApp of their own.

    strategy = NarrowcastStrategy(model, method="time-varying", dim=1024, lr=1.0, clients=10, cohort=10)
    result = strategy.start(grid, num_rounds=50)
    model.load_state_dict(result.arrays.to_torch_state_dict())

The clients' side is `client_app`. `server_app` does all of this from the app's settings, with a run folder, a
checkpoint and resuming beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from narrowcast.errors import ConfigError
from narrowcast.flower.federation import Federation
from narrowcast.flower.fleet import log
from narrowcast.flower.server import driver, find_rate
from narrowcast.flower.settings import FleetSettings
from narrowcast.flower.tasks import ModelTask
from narrowcast.rounds.plan import AUTO
from narrowcast.rounds.records import RoundRecord
from narrowcast.runs.prepared import prepare
from narrowcast.runs.reading import make_config
from narrowcast.runs.used import refuse_unused

UNUSED = ("track", "json_log", "metrics_port")  # of FleetSettings: Flower's loop has logs of its own
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class NarrowcastStrategy(Strategy):
    """Any method of the table, with the settings of `narrowcast run` as keywords.

    `records` has one entry a round: bytes, loss, who was dropped.
    """

    def __init__(self, model: nn.Module, *, fleet: FleetSettings | None = None, **settings: Any) -> None:
        self.model, self.settings = model, {"task": "custom", **settings}
        self.fleet = fleet or FleetSettings()
        self.records: list[RoundRecord] = []
        self.run: Federation | None = None
        config = make_config({"rounds": 1, **self.settings})
        if config.private:
            raise ConfigError(
                "a NarrowcastStrategy has no folder for the ledger of what was released, without which a run "
                "begun anew would release more than epsilon says: use server_app for differential privacy"
            )
        # What is wrong is said now, not in the first round.
        refuse_unused(settings, config)
        if unused := [name for name in UNUSED if name in self.fleet.model_fields_set]:
            raise ConfigError(f"a NarrowcastStrategy has no use for {', '.join(unused)}: use server_app")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Flower's own loop. The model starts from `initial_arrays`, or as it stands; a round has `timeout`
        seconds, or those of `fleet`."""
        if initial_arrays is not None:
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        timeout = self.fleet.timeout if timeout is None else timeout
        self.fleet = self.fleet.model_copy(update={"timeout": timeout})
        config = make_config({**self.settings, "rounds": num_rounds})
        task = ModelTask(self.model, clients=config.clients or self.fleet.min_clients)
        run = prepare(config, task, os.urandom(8))
        if run.plan.lr == AUTO:
            begin = driver(grid, self.fleet)
            run = run.with_rate(find_rate(run, Path(self.fleet.folder), begin).rate)
        self.run = Federation(task, run.method, run.plan, grid, self.fleet)
        return super().start(
            grid,
            ArrayRecord(task.state_dict(run.theta0)),
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        run = self._running()
        self._round, self._record = run.open()
        orders = run.orders(self._round, self._record)
        self._end = time.monotonic() + self.fleet.timeout  # from here: orders may have waited for clients
        return orders

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        run, record = self._running(), self._record
        heard = ((reply.metadata.src_node_id, reply) for reply in replies)  # as Flower's loop has them
        run.close(run.gather(self._round, record, heard, self._end), record)
        self.records.append(record)
        metrics = {"clients": record.clients, "bytes-up": record.up, "bytes-down": record.down}
        loss = {} if record.loss is None else {"loss": record.loss}
        return ArrayRecord(run.task.state_dict(run.theta)), MetricRecord({**metrics, **loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: nodes that hold examples out were asked when the round was closed (`evaluate_every`)."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """What nodes found on the examples they hold out, where this round had them evaluate."""
        found = self.records[-1].node_metrics if self.records else {}
        return MetricRecord(dict[str, Any](found)) if found else None

    def summary(self) -> None:
        run = self._running()
        log.info("\t├──> narrowcast: %s, %s", run.method.name, run.method.setting)
        log.info("\t└──> %d parameters, %d clients a round", run.task.layout.size, run.plan.cohort)

    def _running(self) -> Federation:
        if self.run is None:
            raise RuntimeError("the strategy has not begun: call its start(grid, num_rounds=...)")
        return self.run
