"""Several runs from one TOML file: shared settings at the top, a `[[run]]` table for each run.

Each run has its folder below the comparison's. A finished run is not repeated, an unfinished one goes on.
`attempt` does so for one run of a longer series, where some may diverge.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrowcast import files, runner
from narrowcast.config import ConfigError, RunConfig, make_config, read_toml
from narrowcast.methods import Diverged
from narrowcast.runner import OnRecord

DIVERGED = "diverged.txt"  # in a run's folder: why it did
Run = Callable[[RunConfig, Path], None]  # runs, or goes on, to the end


@dataclass(frozen=True)
class Comparison:
    title: str | None
    configs: dict[str, RunConfig]  # folder name -> configuration


def load(path: Path, overrides: dict[str, Any] | None = None) -> Comparison:
    """The runs of a comparison, every one of them checked before the first begins."""
    table = read_toml(path)
    title = table.pop("title", None)
    runs = table.pop("run", None)
    if not isinstance(runs, list) or not runs or not all(isinstance(r, dict) for r in runs):
        raise ConfigError(f"{path} compares nothing: it needs a [[run]] table for each run")
    configs: dict[str, RunConfig] = {}
    for number, run in enumerate(runs, 1):
        try:
            config = make_config({**table, **run, **(overrides or {})})
        except ConfigError as error:
            raise ConfigError(f"{path}, run {number}: {error}") from None
        folder = re.sub(r"[^\w.=+-]+", "-", config.label).strip("-.") or f"run-{number}"
        if folder in configs:
            raise ConfigError(
                f"{path}, run {number}: another run is called {config.label!r} too: give it a name"
            )
        configs[folder] = config
    return Comparison(title, configs)


def run_all(
    comparison: Comparison, out: Path, on_record: OnRecord | None = None, force: bool = False
) -> list[Path]:
    """Run what is missing, in order; the folders of all runs."""
    for name, config in comparison.configs.items():
        folder = out / name
        if not force and runner.is_run(folder):
            _check(config, folder, "use --force, or another --out")
            runner.resume(folder, on_record)
        else:
            runner.start(config, folder, on_record, force)
    return [out / name for name in comparison.configs]


def attempt(config: RunConfig, folder: Path, run: Run | None = None) -> bool:
    """Whether the run in this folder came to its end; False: it diverged. Neither is ever repeated."""
    if begun(folder):
        _check(config, folder, "remove it")
        if outcome(folder) is not None:
            return runner.finished(folder)
    try:
        (run or in_process)(config, folder)
    except Diverged as error:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / runner.PRIVATE, ignore_errors=True)  # may be gigabytes
        files.write_atomically(folder / DIVERGED, f"{error}\n".encode())
        return False
    return True


def begun(folder: Path) -> bool:
    """Whether there is a run to go on with: a kill may come before the last of its first files."""
    return runner.is_run(folder) and (folder / "config.toml").is_file()


def outcome(folder: Path) -> str | None:
    """ "finished", or "diverged"; None: it is still to be run, or to be gone on with."""
    if begun(folder) and runner.finished(folder):
        return "finished"
    return "diverged" if begun(folder) and (folder / DIVERGED).is_file() else None


def in_process(config: RunConfig, folder: Path) -> None:
    """Run here, or go on."""
    if begun(folder):
        runner.resume(folder)
    else:
        runner.start(config, folder, force=True)


def _check(config: RunConfig, folder: Path, advice: str) -> None:
    if not config.agrees_with(runner.load_config(folder)):
        raise ConfigError(f"{folder} holds a run with other settings: {advice}")
