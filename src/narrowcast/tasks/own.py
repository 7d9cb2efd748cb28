"""A task that somebody else has brought: a function that returns one, whose parameters are its settings.

    def build(clients: int = 20, key: int = 0, noise: float = 0.1) -> nc.Task: ...

A parameter with the name of one of `TaskOptions` is that setting of the run (clients, width, data, ...), and
`key` is the run's key, from which everything random follows. One called `options` is given all of them. Any
other is a setting of the task's own: `--noise 0.2`, or `noise = 0.2` in a file.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from narrowcast.rounds.task import Task
from narrowcast.tasks.options import TaskOptions

ALL = "options"
PARTS = ("name", "layout", "clients", "metric", "higher_is_better", "theta0", "gradient", "evaluate")
_SHARED = {f.name: f.default for f in fields(TaskOptions) if f.name != "own"}


class OwnTask:
    """The function as a builder, with what it takes."""

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self._make = name, make
        hints = typing.get_type_hints(make, include_extras=True)
        parameters = inspect.signature(make).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._asked = tuple(p.name for p in named)
        self.own = {
            p.name: (hints.get(p.name, str), MISSING if p.default is p.empty else p.default)
            for p in named
            if p.name not in _SHARED and p.name != ALL
        }
        shared = _SHARED.keys() if ALL in self._asked else _SHARED.keys() & set(self._asked)
        self.settings = (set(shared) - {"key"}) | self.own.keys()
        for p in named:
            _same_default(name, p)

    def __call__(self, options: TaskOptions) -> Task:
        given = {name: getattr(options, name) for name in self._asked if name in _SHARED}
        given = {name: value for name, value in given.items() if value is not None}
        if ALL in self._asked:
            given[ALL] = options
        task = self._make(**given, **{name: options.own[name] for name in self.own if name in options.own})
        if missing := lacks(task):
            raise ValueError(
                f"the task {self.name!r} returned {type(task).__name__}, which lacks {', '.join(missing)}: "
                "return a TorchTask, or an object of a class that inherits from narrowcast.Task"
            )
        made: Task = task
        return made


def lacks(task: Any) -> list[str]:
    """What an object has not that a task must have."""
    return [part for part in PARTS if not hasattr(task, part)]


def as_builder(name: str, found: Any) -> OwnTask:
    """What stands in the table for a function, or for a class whose constructor takes settings."""
    if not callable(found):
        raise ValueError(f"the task {name!r} is {found!r}: it must be a function that returns a task")
    return OwnTask(name, found)


def _same_default(name: str, p: inspect.Parameter) -> None:
    """A setting of every run has one default, so that `--help` tells the truth."""
    default = _SHARED.get(p.name, MISSING)
    if default is MISSING or default is None or p.default in (p.empty, default):
        return
    raise ValueError(
        f"the task {name!r}: {p.name} is {default!r} by default in every run, not {p.default!r}: give the "
        "parameter that default, or another name"
    )
