"""From settings to what is run: the task, the method for it, the plan, and the run's identity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tomli_w
from torch import Tensor

from narrowcast.methods.base import Method
from narrowcast.numerics import pool
from narrowcast.rounds import devices, exchange, rates
from narrowcast.rounds.plan import Plan
from narrowcast.rounds.rates import Begin, Say
from narrowcast.rounds.sampling import Cohorts
from narrowcast.rounds.simulator import Simulation
from narrowcast.rounds.task import Task
from narrowcast.rounds.tune import Found
from narrowcast.runs import bases
from narrowcast.runs.config import ELSEWHERE, RENAMED, RunConfig
from narrowcast.runs.modelfile import Base
from narrowcast.tasks.table import build, settings_of
from narrowcast.tasks.workers import SMALL
from narrowcast.wire.codes.lattice import PLAIN_BITS
from narrowcast.wire.earlier import digest1

# Settings that came after the first version and are never None: an identity lacks those that say nothing.
LATER = ("aggregate", "tolerate", "attackers", "attack")


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to go, once its rate is a number."""

    config: RunConfig  # resolved: nothing is left to defaults
    task: Task
    theta0: Tensor
    method: Method[Any]
    plan: Plan  # names the run
    salt: bytes = b""

    def with_rate(self, rate: float) -> Prepared:
        """The same run at this rate, which is one of its settings: it names the run with the others."""
        config = self.config.model_copy(update={"lr": rate})
        run = _identity(config, self.theta0, self.salt)
        return replace(self, config=config, plan=replace(self.plan, lr=rate, run=run))

    def find_rate(self, begin: Begin | None = None, say: Say | None = None) -> Found:
        """What `lr = auto` comes to, by trials in this process or wherever `begin` has them run."""
        begin = begin or (lambda plan: Simulation(self.task, self.method, plan))
        return rates.by_trials(self.plan, self.method, len(self.task.clients), begin, say)

    @property
    def cohorts(self) -> Cohorts:
        return self.plan.cohorts(len(self.task.clients))

    @property
    def rounds(self) -> int:
        return self.plan.length(len(self.task.clients))

    def simulation(self) -> Simulation:
        """In this process, with nothing on disk."""
        return Simulation(self.task, self.method, self.plan)


def default_threads(task: Task) -> int:
    """One for a small model, where a second only waits for the first, unless its clients are spread over
    processes."""
    return 1 if task.layout.size < SMALL and not task.spreads else pool.default_threads()


def prepare(config: RunConfig, task: Task | None = None, salt: bytes = b"") -> Prepared:
    """`task` is the caller's own, in place of the one that the configuration names.

    `salt` tells two runs of equal settings apart, where others keep something for a run: nodes do.
    """
    ours = task is None  # another's is where it is
    task = task or build(config.task, config.task_options())
    theta0, clients = task.theta0(), len(task.clients)
    method, plan = config.build_method(clients), config.plan(clients)
    plan.aggregate.check(method, plan.gathering(clients))
    plan = plan.settled(clients)
    plan.length(clients)  # a budget that no round fits into is refused now
    if ours:
        devices.placed(task, method, config.device)
        theta0 = task.theta0()
    config = config.model_copy(
        update={
            "cohort": plan.cohort,
            "evaluate_every": plan.evaluate_every,
            "local_steps": plan.local_steps or method.local_steps,
            "prox": method.prox if plan.prox is None else plan.prox,
            "clients": clients,
            **plan.aggregate.found(),
            **{
                name: value
                for name in ("up_bits", "down_bits")
                if (value := getattr(method, name, PLAIN_BITS)) != PLAIN_BITS
            },
            "threads": config.threads or default_threads(task),
        }
    )
    run = _identity(config, theta0, salt)
    return Prepared(config, task, theta0, method, replace(plan, run=run), salt)


def _identity(config: RunConfig, theta0: Tensor, salt: bytes) -> bytes:
    return exchange.run_id(_description(config) + digest1(theta0) + salt)


def base_of(config: RunConfig, task: Task) -> Base:
    """Where the task's model is from, for whoever gets the file: no path of this machine is in it."""
    return bases.described(task, named(config))


def named(config: RunConfig) -> Base:
    """What the settings alone say of it."""
    from_outside = {
        "data",
        "model",
        "clients",
        "partition",
        "alpha",
        "examples",
        "test_examples",
        "validation",
    }
    settings = config.model_dump(include=settings_of(config.task) - from_outside, exclude_none=True)
    return Base(config.task, bases.portable(config.model or ""), "", config.seed, settings)


def _description(config: RunConfig) -> bytes:
    """The settings as the first version wrote them: a run that was begun then has its identity from that."""
    older = {new: old for old, new in RENAMED.items()}
    fields = RunConfig.model_fields
    silent = {name for name in LATER if getattr(config, name) == fields[name].default}
    settings = config.model_dump(exclude_none=True, exclude=silent | ELSEWHERE)
    return tomli_w.dumps({older.get(name, name): value for name, value in settings.items()}).encode()
