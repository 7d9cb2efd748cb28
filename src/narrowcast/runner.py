"""A run in a folder of its own: config, records, checkpoint, model. Killed at any moment, it can go on.

    config.toml      the resolved configuration         facts.json    what the task turned out to be
    records.jsonl    a line a round                     checkpoint.pt the state to go on from
    model.narrowcast the exported model, at the end     private/      what clients keep, until then

The order of writing makes a kill harmless: records reach the disk before the checkpoint that counts them, and
a resumed run drops whatever lines lie beyond its checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
import torch

from narrowcast import exchange, files, modelfile, records, wire
from narrowcast.allocator import keep_memory
from narrowcast.checkpoints import Checkpoints
from narrowcast.config import ConfigError, RunConfig, make_config, read_toml
from narrowcast.interrupts import interrupts
from narrowcast.kernels import pool
from narrowcast.methods import Method
from narrowcast.plan import Plan
from narrowcast.records import RoundRecord
from narrowcast.simulate import Simulation
from narrowcast.store import ClientStore
from narrowcast.tasks import build
from narrowcast.tasks.base import Task
from narrowcast.training import Training

SMALL_MODEL = 1_000_000  # parameters: below, a second thread only waits for the first
PRIVATE = "private"  # a folder for what the clients keep, while the run is going on
FILES = ("config.toml", "facts.json", "records.jsonl", "checkpoint.pt", "model.narrowcast")


class Facts(msgspec.Struct, frozen=True):
    """What a report needs to know of a run beside its records."""

    label: str
    task: str
    method: str
    parameters: int
    clients: int
    rounds: int
    rounds_per_epoch: int
    metric: str
    higher_is_better: bool
    theta0: str
    seed: int
    narrowcast: str
    torch: str
    commit: str = ""  # of narrowcast's own source, where that is a clone


class Interrupted(Exception):
    """The user asked to stop; the round was finished and a checkpoint written."""


OnRecord = Callable[[Facts, RoundRecord], None]
Driver = Callable[[Task, Method[Any], Plan, Path], Training]  # the path is the run's folder
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
) -> Path:
    """Run in a new folder. One that holds a run already is refused, or its run replaced with `force`.

    `task` is the caller's own, in place of the one that the configuration names; `driver` brings the clients,
    who are simulated without one.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if is_run(folder) and not force:
        raise ConfigError(
            f"{folder} holds a run already: go on with --resume {folder}, replace it with --force, "
            "or choose another --out"
        )
    if (folder / "config.toml").exists() and not is_run(folder):
        raise ConfigError(f"{folder} has a config.toml that no run has written: choose another --out")
    # Whatever is wrong with the settings or the data is said before a file is written.
    run = _prepare(config, folder, task, driver)
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / PRIVATE, ignore_errors=True)
        files.write_atomically(folder / "facts.json", msgspec.json.format(msgspec.json.encode(run.facts)))
        files.write_atomically(folder / "config.toml", to_toml(run.config))
        return _go(run, folder, on_record, until)


def resume(
    folder: Path,
    on_record: OnRecord | None = None,
    until: Until | None = None,
    *,
    task: Task | None = None,
    driver: Driver | None = None,
) -> Path:
    """Go on with a run that was stopped or killed; a finished one is left as it is."""
    config = load_config(folder)
    with files.locked(folder):
        if finished(folder):
            return folder
        run = _prepare(config, folder, task, driver)
        before = load_facts(folder)
        if (run.facts.theta0, run.facts.clients, run.facts.rounds) != (
            before.theta0,
            before.clients,
            before.rounds,
        ):
            raise ConfigError(
                f"{folder} was begun with another config.toml, other data or another model: it cannot go on"
            )
        _restore(run, folder, on_record)
        return _go(run, folder, on_record, until)


def is_run(folder: Path) -> bool:
    return (folder / "facts.json").is_file()


def load_config(folder: Path) -> RunConfig:
    if not is_run(folder) or not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no config.toml")
    return make_config(read_toml(folder / "config.toml"))


def load_facts(folder: Path) -> Facts:
    try:
        return msgspec.json.decode((folder / "facts.json").read_bytes(), type=Facts)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is not a run folder, or its run has not begun: it has no facts.json"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{folder}/facts.json is damaged: {error}") from None


def finished(folder: Path) -> bool:
    return (folder / "model.narrowcast").is_file()


def to_toml(config: RunConfig) -> bytes:
    return tomli_w.dumps(config.model_dump(exclude_none=True)).encode()


def rebuild(folder: Path) -> tuple[Any, torch.Tensor]:
    """(the task, theta) of a finished run, from its folder: theta0 anew, then the exported model."""
    config = load_config(folder)
    if not finished(folder):
        raise ConfigError(f"{folder} has no model yet: finish it with narrowcast run --resume {folder}")
    task = build(config.task, config.task_options())
    return task, modelfile.load(folder / "model.narrowcast", task.theta0())


@dataclass(frozen=True)
class _Run:
    """A run that is ready to go."""

    config: RunConfig  # resolved: nothing is left to defaults
    facts: Facts
    training: Training
    id: bytes


def _simulated(task: Task, method: Method[Any], plan: Plan, folder: Path) -> Training:
    return Simulation(task, method, plan, ClientStore(folder / PRIVATE))


def _prepare(config: RunConfig, folder: Path, task: Task | None, driver: Driver | None) -> _Run:
    from narrowcast import __version__

    task = task or build(config.task, config.task_options())
    theta0 = task.theta0()
    method = config.build_method(len(task.clients))
    plan = config.plan(len(task.clients), b"\0" * 8)
    config = config.model_copy(
        update={
            "cohort": plan.cohort,
            "evaluate_every": plan.evaluate_every,
            "local_steps": plan.local_steps or method.local_steps,
            "prox": method.prox if plan.prox is None else plan.prox,
            "clients": len(task.clients),
            "threads": config.threads or (1 if theta0.numel() < SMALL_MODEL else pool.default_threads()),
        }
    )
    run = exchange.run_id(to_toml(config) + wire.digest(theta0))
    training = (driver or _simulated)(task, method, replace(plan, run=run), folder)
    facts = Facts(
        label=config.label,
        task=config.task,
        method=config.method,
        parameters=theta0.numel(),
        clients=len(task.clients),
        rounds=training.rounds,
        rounds_per_epoch=training.cohorts.rounds_per_epoch,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        theta0=wire.digest(theta0).hex(),
        seed=config.seed,
        narrowcast=__version__,
        torch=str(torch.__version__),
        commit=files.commit(),
    )
    return _Run(config, facts, training, run)


def _go(run: _Run, folder: Path, on_record: OnRecord | None, until: Until | None) -> Path:
    """Rounds to the end, with checkpoints."""
    training, config = run.training, run.config
    assert config.threads is not None
    keep_memory()
    torch.set_num_threads(config.threads)
    pool.set_threads(config.threads)
    with (folder / "records.jsonl").open("ab") as log, interrupts() as stop:
        checkpoints = Checkpoints(training, run.id, folder, log)
        if training.round == 0:
            checkpoints.write(training.state())
        for record in training:
            checkpoints.went_well()
            log.write(records.to_line(record))
            log.flush()
            if on_record:
                on_record(run.facts, record)
            checkpoints.take_if_due()
            if stop.is_set() or (until is not None and until()):
                break
        checkpoints.write(training.state())
    if training.round == training.rounds:
        options = config.method_options(len(training.task.clients))
        path, layout = folder / "model.narrowcast", training.task.layout
        modelfile.save(path, config.method, options, training.server, training.theta0, layout)
        shutil.rmtree(folder / PRIVATE, ignore_errors=True)
    if stop.is_set():
        raise Interrupted(f"stopped after round {training.round} of {training.rounds}")
    return folder


def _restore(run: _Run, folder: Path, on_record: OnRecord | None) -> None:
    """Go to the checkpoint, if there is one, and cut the records to it."""
    path = folder / "checkpoint.pt"
    if not path.is_file():
        (folder / "records.jsonl").unlink(missing_ok=True)
        return
    try:
        state = torch.load(path, weights_only=True)
        if state["run"] != run.id.hex():
            raise ConfigError(
                f"{path} belongs to other settings than {folder / 'config.toml'}: it cannot go on"
            )
        run.training.restore(state["simulation"])
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}): start the run anew with --force"
        ) from error
    done = records.read(folder / "records.jsonl", before=run.training.round)
    if len(done) != run.training.round:
        raise ConfigError(
            f"{folder}/records.jsonl has {len(done)} of the {run.training.round} rounds of its checkpoint: "
            "start the run anew with --force"
        )
    files.write_atomically(folder / "records.jsonl", b"".join(map(records.to_line, done)))
    for record in done:
        if on_record:
            on_record(run.facts, record)
