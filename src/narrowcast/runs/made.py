"""What a configuration stands for: the options of its task and of its method, and its plan."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from narrowcast.aggregates.base import Aggregate
from narrowcast.aggregates.table import AGGREGATES
from narrowcast.errors import ConfigError
from narrowcast.methods.table import METHODS, OPTIMISERS
from narrowcast.privacy import clipping
from narrowcast.privacy.mean import PrivateMean
from narrowcast.rounds import network, schedules
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.sampling import default_cohort
from narrowcast.runs.config import RunConfig
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.table import CUSTOM, SETTINGS, settings_of


def _named(config: RunConfig, names: Any) -> dict[str, Any]:
    """The settings of these names: they are handed on as they are."""
    return {name: getattr(config, name) for name in names if name in type(config).model_fields}


def _fields(kind: Any) -> list[str]:
    return [f.name for f in fields(kind)]


def task_options(config: RunConfig) -> TaskOptions:
    data = Path(config.data) if config.data else None
    shared = _named(config, _fields(TaskOptions))
    theirs = set() if config.task in {*SETTINGS, CUSTOM} else settings_of(config.task) - shared.keys()
    return TaskOptions(**shared | {"key": config.key, "data": data, "own": _named(config, sorted(theirs))})


def method_options(config: RunConfig, clients: int) -> dict[str, Any]:
    """What the method of the run is made with, for a task with so many clients."""
    entry = METHODS[config.method]
    betas = {} if config.optimiser == "sgd" else {"beta": config.momentum}
    own: dict[str, Any] = {
        "key": config.key,
        "clients": clients,
        "refresh": config.refresh if config.refresh == "epoch" else int(config.refresh),
        "optimiser": OPTIMISERS[config.optimiser](**betas),
        "unbiased": config.convention == "unbiased",
    }
    asked = _named(config, _fields(entry.kind)) | own
    return entry.fitting({name: value for name, value in asked.items() if value is not None})


def aggregate(config: RunConfig) -> Aggregate:
    """The rule of the run; with noise, where its settings ask for some, still to be found for an epsilon."""
    if config.private:
        if config.aggregate != "mean":
            raise ConfigError(
                f"--aggregate {config.aggregate}: what one client changes in it has no bound that noise "
                "could be made for, so differential privacy takes the mean alone"
            )
        clip = clipping.rule(config.dp_clip or "1")
        return PrivateMean(clip, config.dp_epsilon, config.dp_delta, config.dp_noise)
    kind: Any = AGGREGATES[config.aggregate]
    made: Aggregate = kind(**_named(config, _fields(kind)))
    return made


def plan(config: RunConfig, clients: int, run: bytes) -> Plan:
    """The plan for a task with so many clients."""
    cohort = config.cohort or default_cohort(clients)
    if cohort > clients:
        raise ConfigError(f"--cohort {cohort}: the task has only {clients} clients")
    per_epoch = -(-clients // cohort)
    epochs = min(e for e in (config.epochs, config.rounds and config.rounds / per_epoch) if e)
    own: dict[str, Any] = {
        "cohort": cohort,
        "schedule": schedules.knots(config.schedule, epochs),
        "evaluate_every": per_epoch if config.evaluate_every is None else config.evaluate_every,
        "network": None if config.network is None else network.find(config.network),
        "aggregate": aggregate(config),
        "key": config.key,
        "run": run,
    }
    return Plan(**_named(config, _fields(Plan)) | own)
