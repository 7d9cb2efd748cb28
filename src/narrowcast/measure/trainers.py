"""Two ways to make a run: in a folder of its own, where it is kept and gone on with, and in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from narrowcast.errors import Diverged
from narrowcast.measure import rules
from narrowcast.measure.probing import UNCOMPRESSED, About, Trial
from narrowcast.measure.results import Trained
from narrowcast.methods.base import Method
from narrowcast.methods.table import METHODS
from narrowcast.numerics import keyed
from narrowcast.numerics.keyed import Key, Purpose
from narrowcast.rounds import records
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.records import RoundRecord
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Task
from narrowcast.runs import attempts, run_folder, runner
from narrowcast.runs.attempts import folder_of
from narrowcast.runs.config import RunConfig
from narrowcast.runs.run_folder import Facts
from narrowcast.tasks.table import build

Watch = Callable[[Trial, int, int, dict[str, float]], None]  # (trial, rounds done, of, metrics)


def cut(
    curve: list[tuple[int, float]], rounds: int, target: float | None, higher_is_better: bool
) -> tuple[list[tuple[int, float]], str | None]:
    """(the curve up to where it is decided, the verdict): the same whatever was asked of the run before."""
    if target is not None:
        for end in range(1, len(curve) + 1):
            if how := rules.verdict(curve[:end], rounds, target, higher_is_better):
                return curve[:end], how
    return curve, None


def _about(task: Task, plan: Plan) -> About:
    rounds = plan.length(len(task.clients))
    epochs = rounds / plan.cohorts(len(task.clients)).rounds_per_epoch
    return About(task.layout.size, task.metric, task.higher_is_better, rounds, epochs)


class InFolders:
    """Runs of `narrowcast run` in folders named by their settings, decided from their records alone."""

    def __init__(self, config: RunConfig, folder: Path, watch: Watch | None = None) -> None:
        self.config, self.folder, self._watch = config, folder, watch
        self._about: About | None = None

    def about(self) -> About:
        if self._about is None:
            task = build(self.config.task, self.config.task_options())
            self._about = _about(task, self.config.plan(len(task.clients)))
        return self._about

    def config_of(self, trial: Trial) -> RunConfig:
        dim = RunConfig.model_fields["dim"].default if trial.d is None else trial.d
        update = {"method": trial.method, "dim": dim, "lr": trial.rate, "seed": trial.seed}
        return self.config.but(**update)

    def train(self, trial: Trial, target: float | None) -> Trained:
        config = self.config_of(trial)
        folder = self.folder / folder_of(config)
        if (known := self._read(folder, target)) is not None:
            return known
        curve: list[tuple[int, float]] = []
        decided = False

        def watch(facts: Facts, record: RoundRecord) -> None:
            nonlocal decided
            if facts.metric in record.metrics:
                curve.append((record.round + 1, record.metrics[facts.metric]))
                decided = cut(curve, facts.rounds, target, facts.higher_is_better)[1] is not None
            if self._watch:
                self._watch(trial, record.round + 1, facts.rounds, record.metrics)

        def run(config: RunConfig, folder: Path) -> None:
            if run_folder.is_run(folder):
                runner.resume(folder, watch, lambda: decided)
            else:
                runner.start(config, folder, watch, force=True, until=lambda: decided)

        attempts.attempt(config, folder, run)
        made = self._read(folder, target)
        if made is None:
            raise RuntimeError(f"{folder} has no verdict although its run is over: remove it and run again")
        return made

    def _read(self, folder: Path, target: float | None) -> Trained | None:
        """What became of a run, from its folder; None: it is to be begun, or gone on with."""
        if not run_folder.is_run(folder) or not (folder / run_folder.RECORDS).is_file():
            return None
        facts = run_folder.load_facts(folder)
        curve = [*records.curve(records.read(folder / run_folder.RECORDS), facts.metric).items()]
        curve, how = cut(curve, facts.rounds, target, facts.higher_is_better)
        ended = attempts.outcome(folder)
        if how is None and ended is None:
            return None
        return Trained(curve, facts.rounds, diverged=how is None and ended == "diverged")


class InMemory:
    """Simulations of one task. `options` are the method's (`subspace`, `subspaces`, `refresh`, ...)."""

    def __init__(
        self, task: Task, plan: Plan, options: dict[str, Any] | None = None, watch: Watch | None = None
    ) -> None:
        self.task, self.plan, self.options, self._watch = task, plan, options or {}, watch
        self._about = _about(task, plan)

    def about(self) -> About:
        return self._about

    def train(self, trial: Trial, target: float | None) -> Trained:
        about = self._about
        key = keyed.derive(trial.seed, Purpose.RUN)
        made = self._method(trial, key)
        simulation = Simulation(self.task, made, replace(self.plan, lr=trial.rate, key=key))
        curve: list[tuple[int, float]] = []
        try:
            for record in simulation:
                if self._watch:
                    self._watch(trial, record.round + 1, about.rounds, record.metrics)
                if about.metric not in record.metrics:
                    continue
                curve.append((record.round + 1, record.metrics[about.metric]))
                if cut(curve, about.rounds, target, about.higher_is_better)[1] is not None:
                    break
        except Diverged:
            return Trained(curve, about.rounds, diverged=True)
        return Trained(curve, about.rounds)

    def _method(self, trial: Trial, key: Key) -> Method[Any]:
        """The trial's method; the yardstick takes those of the options that it has."""
        entry = METHODS[trial.method]
        asked = entry.fitting(self.options) if trial.method == UNCOMPRESSED else self.options
        dim = {} if trial.d is None else {"dim": trial.d}
        return entry.make(key=key, clients=len(self.task.clients), **dim, **asked)
