"""A run in a folder of its own (see `run_folder`). Killed at any moment, it can go on.

The order of writing makes a kill harmless: records reach the disk before the checkpoint that counts them, and
a resumed run drops whatever lines lie beyond its checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import torch

from narrowcast import __version__, files
from narrowcast.errors import ConfigError, Diverged, Interrupted
from narrowcast.methods.base import Method, Server
from narrowcast.privacy import ledger
from narrowcast.privacy.ledger import Ledger
from narrowcast.rounds import records
from narrowcast.rounds.plan import AUTO, Plan
from narrowcast.rounds.rates import Say
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.store import ClientStore
from narrowcast.rounds.task import Task
from narrowcast.rounds.training import Training
from narrowcast.rounds.tune import Found
from narrowcast.runs import going_on, modelfile, tracking
from narrowcast.runs.checkpoints import Checkpoints
from narrowcast.runs.config import RunConfig
from narrowcast.runs.interrupts import interrupts
from narrowcast.runs.modelfile import ModelFile
from narrowcast.runs.prepared import Prepared, base_of, named, prepare
from narrowcast.runs.release import InOrder
from narrowcast.runs.run_folder import (
    CONFIG,
    FACTS,
    LAST_GOOD,
    MODEL,
    PRIVATE,
    RECORDS,
    Facts,
    clear,
    finished,
    is_run,
    load_config,
    load_facts,
    note_divergence,
    refuse_diverged,
    to_toml,
)
from narrowcast.runs.threads import using_threads
from narrowcast.runs.used import only_here
from narrowcast.tasks.table import build
from narrowcast.wire.earlier import digest1

OnRecord = Callable[[Facts, RoundRecord], None]
Driver = Callable[[Task, Method[Any], Plan, Path], Training]  # the path is the run's folder
Find = Callable[[Prepared, Path], Found]  # the rate of a run, in this folder
Until = Callable[[], bool]  # asked after a round: True ends the run there, to be gone on with or left


def start(
    config: RunConfig,
    folder: Path,
    on_record: OnRecord | None = None,
    force: bool = False,
    until: Until | None = None,
    *,
    task: Task | None = None,
    driver: Driver | None = None,
    find: Find | None = None,
    on_trial: Say | None = None,
) -> Path:
    """Run in a new folder. One that holds a run already is refused, or its run replaced with `force`.

    `task` is the caller's own, in place of the one that the configuration names; `driver` brings the clients,
    who are simulated without one; `find` finds the rate where that is "auto", by trials here without one,
    after each of which `on_trial` is called.
    """
    if driver is None:
        only_here(config)
    _check_free(folder, force)
    # Whatever is wrong with the settings or the data is said before a file is written.
    prepared = prepare(config, task, os.urandom(8))
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        _check_free(folder, force)  # another may have run here while the data were read
        files.sweep(folder)
        tracking.forget(folder)
        clear(folder)
        run = _settled(prepared, folder, driver, find or partial(_by_trials, say=on_trial))
        files.write_atomically(folder / FACTS, msgspec.json.format(msgspec.json.encode(run.facts)))
        files.write_atomically(folder / CONFIG, to_toml(run.prepared.config))
        return _go(run, folder, on_record, until)


def _check_free(folder: Path, force: bool) -> None:
    """A ConfigError where a run cannot be begun."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if is_run(folder) and not force:
        raise ConfigError(
            f"{folder} holds a run already: go on with --resume {folder}, replace it with --force, "
            "or choose another --out"
        )
    if (folder / CONFIG).exists() and not is_run(folder):
        raise ConfigError(f"{folder} has a config.toml that no run has written: choose another --out")
    if (folder / ledger.FILE).exists():
        raise ConfigError(
            f"{folder} has the ledger of a run with differential privacy: what that has released stays "
            "released, and no --force takes it back. Choose another --out, or remove the folder yourself"
        )


def resume(
    folder: Path,
    on_record: OnRecord | None = None,
    until: Until | None = None,
    *,
    task: Task | None = None,
    driver: Driver | None = None,
    device: str | None = None,
    on_resume: Callable[[Facts, going_on.Past], None] | None = None,  # before on_record has those again
) -> Path:
    """Go on with a run that was stopped or killed, on another `device` if so; a finished one is left."""
    config = load_config(folder)
    if device is not None:
        config = config.model_copy(update={"device": device})
    with files.locked(folder):
        if finished(folder):
            return folder
        if driver is None:
            only_here(config)
        refuse_diverged(folder)
        files.sweep(folder)
        before = load_facts(folder)
        prepared = prepare(config, task, bytes.fromhex(before.salt))
        run = _with_driver(prepared, folder, driver, before.search)
        facts = run.facts
        if (facts.theta0, facts.clients, facts.rounds) != (before.theta0, before.clients, before.rounds):
            raise ConfigError(
                f"{folder} was begun with another config.toml, other data or another model: it cannot go on"
            )
        try:
            past = going_on.restore(run.training, run.prepared.plan.run, folder)
        except Diverged as error:  # seen only now: it was killed before it looked
            note_divergence(folder, error)
            raise
        if on_resume:
            on_resume(facts, past)
        for record in past.records:
            if on_record:
                on_record(facts, record)
        return _go(run, folder, on_record, until)


def rebuild(folder: Path) -> tuple[Any, torch.Tensor]:
    """(the task with its data, theta) of a finished run, from its folder."""
    (model, _), config = model_of(folder), load_config(folder)
    task = build(config.task, config.task_options())
    return task, modelfile.rebuild(model, task.theta0())


def model_of(folder: Path) -> tuple[ModelFile, str | None]:
    """(the model of a finished run, the folder of its pretrained weights where its settings name one)."""
    config = load_config(folder)
    if not finished(folder):
        refuse_diverged(folder)
        raise ConfigError(f"{folder} has no model yet: finish it with narrowcast run --resume {folder}")
    model = modelfile.read(folder / MODEL)
    if not model.base.task:  # written before files said where their base is from
        model = msgspec.structs.replace(model, base=named(config))
    return model, config.model if config.model and Path(config.model).is_dir() else None


@dataclass(frozen=True)
class _Run:
    """A run with a driver, ready to go."""

    prepared: Prepared
    facts: Facts
    training: Training


def _simulated(task: Task, method: Method[Any], plan: Plan, folder: Path) -> Training:
    return Simulation(task, method, plan, ClientStore(folder / PRIVATE))


def _settled(run: Prepared, folder: Path, driver: Driver | None, find: Find) -> _Run:
    """The run with a number for its rate: what is found now is a setting like the others from here on."""
    if run.plan.lr != AUTO:
        return _with_driver(run, folder, driver, None)
    assert run.config.threads is not None
    with using_threads(run.config.threads):
        found = find(run, folder)
    return _with_driver(run.with_rate(found.rate), folder, driver, found)


def _by_trials(run: Prepared, folder: Path, say: Say | None) -> Found:
    """By trials in this process; what clients keep in one lies in the run's folder, and goes with it."""

    def begin(plan: Plan) -> Training:
        shutil.rmtree(folder / PRIVATE, ignore_errors=True)
        return _simulated(run.task, run.method, plan, folder)

    try:
        return run.find_rate(begin, say)
    finally:
        shutil.rmtree(folder / PRIVATE, ignore_errors=True)


def _with_driver(run: Prepared, folder: Path, driver: Driver | None, search: Found | None) -> _Run:
    training = (driver or _simulated)(run.task, run.method, run.plan, folder)
    facts = Facts(
        label=run.config.label,
        task=run.config.task,
        method=run.config.method,
        parameters=run.theta0.numel(),
        clients=len(run.task.clients),
        rounds=run.rounds,
        rounds_per_epoch=run.cohorts.rounds_per_epoch,
        metric=run.task.metric,
        higher_is_better=run.task.higher_is_better,
        theta0=digest1(run.theta0).hex(),
        seed=run.config.seed,
        narrowcast=__version__,
        torch=str(torch.__version__),
        commit=files.commit(),
        network=run.plan.network.name if run.plan.network else "",
        search=search,
        salt=run.salt.hex(),
        privacy=training.aggregate.guarantee(run.rounds),
    )
    return _Run(run, facts, training)


def _go(run: _Run, folder: Path, on_record: OnRecord | None, until: Until | None) -> Path:
    """Rounds to the end, with checkpoints, on the run's threads."""
    assert run.prepared.config.threads is not None
    with (
        using_threads(run.prepared.config.threads),
        files.appending(folder / RECORDS) as log,
        interrupts() as stop,
    ):
        keeper = Checkpoints(run.training, run.prepared.plan.run, folder, log)
        if run.training.aggregate.discreet:
            run.training.releases = InOrder(run.training, keeper, Ledger(folder))
        try:
            _rounds(run, keeper, on_record, until, stop)
        except Diverged as error:
            if run.training.good is not None:
                _save(run, run.training.good, folder / LAST_GOOD)
            note_divergence(folder, error)
            raise
    training = run.training
    if training.round == training.rounds:
        _save(run, training.server, folder / MODEL)
        shutil.rmtree(folder / PRIVATE, ignore_errors=True)
    if stop.is_set():
        raise Interrupted(f"stopped after round {training.round} of {training.rounds}")
    return folder


def _save(run: _Run, server: Server, path: Path) -> None:
    training, config = run.training, run.prepared.config
    options, layout = config.method_options(len(training.task.clients)), training.task.layout
    base = base_of(config, training.task)
    modelfile.save(path, config.method, options, server, training.theta0, layout, base)


def _rounds(
    run: _Run, keeper: Checkpoints, on_record: OnRecord | None, until: Until | None, stop: Event
) -> None:
    training, log = run.training, keeper.log
    if training.round == 0:
        keeper.write(training.state())
    for record in training:
        if record.rolled_back:
            keeper.held = None  # it led to ruin
        elif record.clients:  # they trained from it
            keeper.went_well()
        files.append(log, records.to_line(record))
        if on_record:
            on_record(run.facts, record)
        keeper.take_if_due()
        if stop.is_set() or (until is not None and until()):
            break
    if training.releases is None:
        keeper.write(training.state())
