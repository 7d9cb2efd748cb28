"""Several runs from one TOML file: shared settings at the top, a `[[run]]` table for each run.

`seeds = [0, 1, 2]`, at the top or in a run's table, makes of a run one for each seed, and of these one row.
Each run has its folder below the comparison's. A finished run is not repeated, an unfinished one goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrowcast.errors import ConfigError, Diverged, located
from narrowcast.rounds.rates import Say
from narrowcast.runs import attempts, run_folder, runner
from narrowcast.runs.config import RunConfig
from narrowcast.runs.own import admit, config_class
from narrowcast.runs.reading import as_config_error, make_config, read_toml
from narrowcast.runs.runner import OnRecord
from narrowcast.runs.tracking import tracked
from narrowcast.runs.used import only_here, refuse_unused


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
    overrides = overrides or {}
    with located(path):
        seeds_of_all = _seeds(table.pop("seeds", None))
    configs: dict[str, RunConfig] = {}
    own = _own_names(table, runs)
    for number, run in enumerate(runs, 1):
        with located(f"{path}, run {number}"):
            seeds = _seeds(run.pop("seeds")) if "seeds" in run else seeds_of_all
            if "seed" in overrides:  # one for every run, over what the file says
                seeds = [None]
            elif seeds != [None] and "seed" in table | run:
                raise ConfigError(
                    f"seed = {(table | run)['seed']!r} beside seeds = {seeds}: leave one of them out"
                )
            mine = own[number - 1]
            shared = {k: v for k, v in table.items() if k in mine or not any(k in names for names in own)}
            asked = {**shared, **run, **overrides}
            each = (asked if seed is None else {**asked, "seed": seed} for seed in seeds)
            made = [make_config(one, admit=True) for one in each]
            refuse_unused(run, made[0])
            only_here(made[0])
        for config, seed in zip(made, seeds, strict=True):
            folder = re.sub(r"[^\w.=+-]+", "-", config.label).strip("-.") or f"run-{number}"
            folder += "" if seed is None else f"-s{seed}"
            if folder in configs:
                raise ConfigError(
                    f"{path}, run {number}: another run is called {config.label!r} too: give it a name"
                )
            configs[folder] = config
    with located(path):
        refuse_unused({**table, **overrides}, *configs.values())
    return Comparison(title, configs)


def _seeds(asked: Any) -> list[int | None]:
    """The seeds of a run; [None]: the one of its settings."""
    if asked is None:
        return [None]
    whole = isinstance(asked, list) and all(isinstance(s, int) and not isinstance(s, bool) for s in asked)
    if not whole or not asked or len(set(asked)) < len(asked):
        raise ConfigError(
            f"seeds must be a list of different whole numbers, such as [0, 1, 2], got {asked!r}"
            + ("" if isinstance(asked, list) else ": FedKSeed's number is called directions")
        )
    return list(asked)


def _own_names(table: dict[str, Any], runs: list[dict[str, Any]]) -> list[set[str]]:
    """Of each run the settings that its method or task alone has: where they are shared, others lack them."""
    names = []
    for run in runs:
        settings = {"method": None, **table, **run}
        admit(settings)
        with as_config_error():
            kind = config_class(settings.get("task"), settings["method"])
        names.append(kind.model_fields.keys() - RunConfig.model_fields.keys())
    return names


def run_all(
    comparison: Comparison,
    out: Path,
    on_record: OnRecord | None = None,
    force: bool = False,
    on_trial: Say | None = None,
    track: Sequence[str] = (),
) -> tuple[list[Path], dict[str, str]]:
    """Run what is missing, in order, followed by these trackers.

    (The folders of the runs; names of those that never began, since no rate was found for them -> why.) One
    that diverges ends no others: its folder says so, where it has one.
    """
    begun: list[Path] = []
    lost: dict[str, str] = {}
    for name, config in comparison.configs.items():
        folder = out / name
        with tracked(track, folder, on_record) as called:
            try:
                if not force and run_folder.is_run(folder):
                    attempts.agree(config, folder, "use --force, or another --out")
                    runner.resume(folder, called)
                else:
                    runner.start(config, folder, called, force=force, on_trial=on_trial)
            except Diverged as error:
                if not run_folder.is_run(folder):
                    lost[name] = str(error)
                    continue
            begun.append(folder)
    return begun, lost
