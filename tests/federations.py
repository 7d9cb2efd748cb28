"""Federations on the grid in this process: what the tests of the Flower driver share."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from fake_grid import FakeGrid
from faulty_app import forged
from narrowcast.flower import FleetSettings, client_app, fleet
from narrowcast.flower.federation import Federation
from narrowcast.flower.messages import Answer, Upload
from narrowcast.rounds.exchange import Round, digest_of
from narrowcast.rounds.simulator import Simulation
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config
from narrowcast.tasks import build
from narrowcast.wire import messages as wire

RUN = b"run-test"
ROUNDS = 8
PATIENT = FleetSettings(wait=600.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sleep worth the name between two looks at the grid."""
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.001)


def settings(method: str = "time-varying", **more: object) -> RunConfig:
    table = {
        "task": "digits", "method": method, "dim": 64, "width": 8, "clients": 12, "partition": "iid",
        "cohort": 5, "rounds": ROUNDS, "lr": 0.5, "refresh": "2", "k": 40, "directions": 16, "subspaces": 3,
        "evaluate_every": 0, "schedule": "constant", "sketch_columns": 40,
    }  # fmt: skip
    return make_config({**table, **more})


def federation(config: RunConfig, grid: FakeGrid, how: FleetSettings = PATIENT) -> Federation:
    task = build(config.task, config.task_options())
    plan = config.plan(len(task.clients), RUN)
    return Federation(task, config.build_method(len(task.clients)), plan, grid, how)


def simulation(config: RunConfig) -> Simulation:
    task = build(config.task, config.task_options())
    plan = dataclasses.replace(config.plan(len(task.clients), RUN), per_client=True)
    return Simulation(task, config.build_method(len(task.clients)), plan)


def whole(config: RunConfig, nodes: int = 12, **how: object) -> tuple[Federation, FakeGrid]:
    grid = FakeGrid(client_app(config=config), nodes)
    return federation(config, grid, PATIENT.model_copy(update=how)), grid


def edited(answer: Answer, sealed_for: Federation | None = None, **fields: object) -> Answer:
    """An answer whose first upload's message has other fields, and the check that a liar would put on it."""
    upload = answer.uploads[0]

    def edit(message: wire.Message) -> wire.Message:
        return msgspec.structs.replace(message, **fields)

    data = wire.encode(edit(wire.decode(upload.data)))
    if run := sealed_for:
        round = Round(run.plan.run, 0, 0, 0, digest_of(run.method, run.server, run.theta))
        data = forged(upload.data, edit, round)
    return Answer(answer.have, [Upload(upload.client, data, upload.loss)])
