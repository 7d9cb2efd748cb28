"""Runs of a longer series, each in a folder named by its settings: what is finished is never repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from narrowcast.errors import ConfigError, Diverged
from narrowcast.runs import run_folder, runner
from narrowcast.runs.config import RunConfig

Run = Callable[[RunConfig, Path], None]  # runs, or goes on, to the end


def folder_of(config: RunConfig) -> str:
    """The name of a run's folder: what a reader looks for, and a digest of every setting."""
    part = "tune" if config.validation else "test"
    rate = config.lr if isinstance(config.lr, str) else f"{config.lr:g}"
    return f"{config.method}-{part}-lr{rate}-s{config.seed}-{config.digest()}"


def attempt(config: RunConfig, folder: Path, run: Run | None = None) -> bool:
    """Whether the run in this folder came to its end; False: it diverged. Neither is ever repeated."""
    if run_folder.is_run(folder):
        agree(config, folder, "remove it")
        if outcome(folder) is not None:
            return run_folder.finished(folder)
    try:
        (run or in_process)(config, folder)
    except Diverged as error:
        if not run_folder.diverged(folder):  # of a run in another process, which could not write it down
            run_folder.note_divergence(folder, error)
        return False
    return True


def outcome(folder: Path) -> str | None:
    """ "finished", or "diverged"; None: it is still to be run, or to be gone on with."""
    if not run_folder.is_run(folder):
        return None
    if run_folder.finished(folder):
        return "finished"
    return "diverged" if run_folder.diverged(folder) is not None else None


def in_process(config: RunConfig, folder: Path) -> None:
    """Run here, or go on."""
    if run_folder.is_run(folder):
        runner.resume(folder)
    else:
        runner.start(config, folder)


def agree(config: RunConfig, folder: Path, advice: str) -> None:
    """A ConfigError where the folder holds a run with other settings."""
    searched = run_folder.load_facts(folder).search is not None
    if not config.agrees_with(run_folder.load_config(folder)) or (config.lr == "auto") != searched:
        raise ConfigError(f"{folder} holds a run with other settings: {advice}")
