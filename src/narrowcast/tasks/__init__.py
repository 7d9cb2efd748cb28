"""The built-in tasks by name. Nothing heavy is imported before a task is built."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowcast.tasks.base import Task
    from narrowcast.tasks.options import TaskOptions

Builder = Callable[["TaskOptions"], "Task"]


def _lazy(module: str, function: str = "build") -> Builder:
    def builder(options: TaskOptions) -> Task:
        task: Task = getattr(import_module(f"narrowcast.tasks.{module}"), function)(options)
        return task

    return builder


TASKS: dict[str, Builder] = {
    "digits": _lazy("digits"),
    "fashion-mnist": _lazy("fashion_mnist"),
    "fashion-mnist-conv": _lazy("fashion_mnist", "build_conv"),
    "mnist": _lazy("mnist"),
    "cifar10": _lazy("cifar10"),
    "cifar10-small": _lazy("cifar10", "build_small"),
    "sst2": _lazy("text.sst2"),
    "personachat": _lazy("text.personachat"),
    "text-lm": _lazy("text.text_lm"),
    "quadratic": _lazy("quadratic"),
}

TEXT = ("sst2", "personachat", "text-lm")


def build(name: str, options: TaskOptions) -> Task:
    """The task of this name."""
    if name == "custom":
        raise ValueError("this run's task is its program's own: go on with it, or load its model, from there")
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    if name not in TEXT and (said := options.for_text()):
        raise ValueError(
            f"{', '.join(said)}: only the tasks over text ({', '.join(TEXT)}) have a choice of that"
        )
    return TASKS[name](options)
