"""A run in a folder of its own: config, records, checkpoint, model. Killed at any moment, it can go on.

    config.toml      the resolved configuration         facts.json    what the task turned out to be
    records.jsonl    a line a round                     checkpoint.pt the state to go on from
    model.narrowcast the exported model, at the end

The order of writing makes a kill harmless: records reach the disk before the checkpoint that counts them, and
a resumed run drops whatever lines lie beyond its checkpoint.
"""

from __future__ import annotations

import io
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
import torch

from narrowcast import exchange, files, modelfile, records, wire
from narrowcast.config import ConfigError, RunConfig, make_config, read_toml
from narrowcast.kernels import pool
from narrowcast.records import RoundRecord
from narrowcast.simulate import Simulation
from narrowcast.tasks import build

CHECKPOINT_SECONDS = 20.0
SMALL_MODEL = 1_000_000  # parameters


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


class Interrupted(Exception):
    """The user asked to stop; the round was finished and a checkpoint written."""


OnRecord = Callable[[Facts, RoundRecord], None]


def start(config: RunConfig, folder: Path, on_record: OnRecord | None = None, force: bool = False) -> Path:
    """Run in a new folder. One that holds a run already is refused, or replaced with `force`."""
    if (folder / "config.toml").exists() and not force:
        raise ConfigError(
            f"{folder} holds a run already: go on with --resume {folder}, or choose another --out"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if force and (folder / "config.toml").exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with files.locked(folder):
        files.write_atomically(folder / "config.toml", to_toml(config))
        return _run(config, folder, on_record)


def resume(folder: Path, on_record: OnRecord | None = None) -> Path:
    """Go on with a run that was stopped or killed; a finished one is left as it is."""
    config = load_config(folder)
    with files.locked(folder):
        return folder if finished(folder) else _run(config, folder, on_record)


def load_config(folder: Path) -> RunConfig:
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no config.toml")
    return make_config(read_toml(folder / "config.toml"))


def load_facts(folder: Path) -> Facts:
    try:
        return msgspec.json.decode((folder / "facts.json").read_bytes(), type=Facts)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is not a run folder, or its run has not begun: it has no facts.json"
        ) from None


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


def _run(config: RunConfig, folder: Path, on_record: OnRecord | None) -> Path:
    from narrowcast import __version__

    task = build(config.task, config.task_options())
    theta0 = task.theta0()
    _use_threads(config.threads, theta0.numel())
    method = config.build_method()
    run = exchange.run_id(to_toml(config) + wire.digest(theta0))
    simulation = Simulation(task, method, config.plan(len(task.clients), run))
    facts = Facts(
        label=config.label,
        task=config.task,
        method=config.method,
        parameters=theta0.numel(),
        clients=len(task.clients),
        rounds=simulation.rounds,
        rounds_per_epoch=simulation.cohorts.rounds_per_epoch,
        metric=task.metric,
        higher_is_better=task.higher_is_better,
        theta0=wire.digest(theta0).hex(),
        seed=config.seed,
        narrowcast=__version__,
        torch=str(torch.__version__),
    )
    files.write_atomically(folder / "facts.json", msgspec.json.format(msgspec.json.encode(facts)))
    done = _continue(simulation, folder, on_record, facts)
    with (folder / "records.jsonl").open("ab") as log, _interrupts() as stop:
        if not done:
            _checkpoint(simulation, folder, log)
        saved = time.monotonic()
        for record in simulation:
            log.write(records.to_line(record))
            log.flush()
            if on_record:
                on_record(facts, record)
            last = simulation.round == simulation.rounds
            if last or stop.is_set() or time.monotonic() - saved > CHECKPOINT_SECONDS:
                _checkpoint(simulation, folder, log)
                saved = time.monotonic()
            if stop.is_set() and not last:
                raise Interrupted(f"stopped after round {simulation.round} of {simulation.rounds}")
    modelfile.save(
        folder / "model.narrowcast", config.method, config.method_options(), method, simulation.server, theta0
    )
    return folder


def _use_threads(count: int | None, parameters: int) -> None:
    """Threads for torch and our kernels: on small models a second one only waits for the first."""
    count = count or (1 if parameters < SMALL_MODEL else pool.threads())
    torch.set_num_threads(count)
    pool.set_threads(count)


def _continue(
    simulation: Simulation, folder: Path, on_record: OnRecord | None, facts: Facts
) -> list[RoundRecord]:
    """Restore the checkpoint, if there is one, and cut the records to it."""
    if not (folder / "checkpoint.pt").is_file():
        (folder / "records.jsonl").unlink(missing_ok=True)
        return []
    simulation.restore(torch.load(folder / "checkpoint.pt", weights_only=True))
    done = records.read(folder / "records.jsonl", before=simulation.round)
    if len(done) != simulation.round:
        raise ConfigError(
            f"{folder}/records.jsonl has {len(done)} of the {simulation.round} rounds of its checkpoint"
        )
    files.write_atomically(folder / "records.jsonl", b"".join(map(records.to_line, done)))
    for record in done:
        if on_record:
            on_record(facts, record)
    return done


def _checkpoint(simulation: Simulation, folder: Path, log: io.BufferedWriter) -> None:
    files.sync(log)
    buffer = io.BytesIO()
    torch.save(simulation.state(), buffer)
    files.write_atomically(folder / "checkpoint.pt", buffer.getvalue())


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a TERM signal sets; a second Ctrl-C interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
