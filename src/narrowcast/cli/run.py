"""`narrowcast run`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from narrowcast.cli.flags import Force, Track, with_run_flags
from narrowcast.cli.terminal import console, going_on_with, plain_errors
from narrowcast.errors import ConfigError
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config, read_toml
from narrowcast.tasks.table import TASKS


@with_run_flags
def run(
    task: Annotated[str | None, typer.Argument(help="a task, or a TOML file of settings")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder of the run [default: runs/TASK-METHOD-...]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with the run in this folder")] = None,
    track: Track = "",
    force: Force = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Train: a task by name or a TOML file, with flags over it. Each run has a folder of its own."""
    with plain_errors():
        if resume is not None and (task or flags.keys() - {"device"} or out or force):
            raise ConfigError(
                "--resume takes its settings from the run's folder: give it alone, or with --device"
            )
        config = None if resume else _config(task, flags)
        folder = resume or out or Path("runs") / _folder_name(config)
        from narrowcast.cli.show import show_runs
        from narrowcast.runs.compiling import prepare_kernels
        from narrowcast.runs.progress import RunProgress
        from narrowcast.runs.tracking import names_of, tracked

        trackers = names_of(track)
        prepare_kernels(console)
        with (
            going_on_with(lambda: _again(folder)),
            RunProgress(console) as progress,
            tracked(trackers, folder, progress) as on_record,
        ):
            _drive(config, folder, on_record, force, progress.trial, flags.get("device"))
        show_runs([folder])


def _again(folder: Path) -> str:
    """How to go on; what was stopped before it began is begun again."""
    from narrowcast.runs import run_folder

    return f"narrowcast run --resume {folder}" if run_folder.is_run(folder) else "the same command"


def _drive(
    config: RunConfig | None, folder: Path, on_record: Any, force: bool, on_trial: Any, device: str | None
) -> None:
    """Begin the run, or go on with it, on the engine it asks for."""
    from narrowcast.runs import run_folder, runner

    settings = config or run_folder.load_config(folder)
    if config is None and device is not None and settings.engine != "here":
        raise ConfigError(f"--device {device}: of --engine {settings.engine} clients compute on the CPU")
    if settings.engine == "flower-sim":
        from narrowcast.cli.flower import require

        require("flower-sim")
        from narrowcast.flower import sim

        sim.run(settings, folder, on_record, force=force, resume=config is None)
    elif config is None:
        runner.resume(folder, on_record, device=device)
    else:
        runner.start(config, folder, on_record, force, on_trial=on_trial)


def _config(task: str | None, flags: dict[str, Any]) -> RunConfig:
    if task is None:
        raise ConfigError("say what to train: a task such as digits, or a TOML file")
    _refuse_file(task)
    table = read_toml(Path(task)) if task.endswith(".toml") else {"task": task}
    if "run" in table:
        raise ConfigError(f"{task} has several runs: use narrowcast compare {task}")
    if "seeds" in table:
        raise ConfigError(
            f"{task}: several seeds are for narrowcast compare, here it is seed = 0; FedKSeed's number is "
            "called directions"
        )
    config = make_config({**table, **flags}, admit=True)
    from narrowcast.runs.used import refuse_unused

    refuse_unused(table, config)
    refuse_unused(flags, config)
    return config


def _refuse_file(task: str) -> None:
    """A file in place of a task; one of settings is known by its suffix."""
    if task.endswith(".toml") or task in TASKS:
        return
    if task.endswith(".py"):
        raise ConfigError(f"{task} is no task: name its function that makes one, {Path(task).stem}:FUNCTION")
    if Path(task).is_file():
        raise ConfigError(f"{task} is no task, and the name of a file of settings must end in .toml")


def _folder_name(config: RunConfig | None) -> str:
    assert config is not None
    trained = "" if config.trainable == "all" else config.trainable
    setting = config.build_method().setting.replace("=", "")
    parts = [config.task, config.method, setting, trained, f"s{config.seed}"]
    return re.sub(r"[^\w.=+-]+", "-", "-".join(filter(None, parts)))
