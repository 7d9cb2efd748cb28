"""The built-in tasks by name, and the settings that each of them takes. Nothing heavy is imported here.

Others join by the entry-point group `narrowcast.tasks`, or by `narrowcast.register("task", ...)`: see own.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.rounds.task import Task
    from narrowcast.tasks.options import TaskOptions
    from narrowcast.tasks.start import Start


class Builder(Protocol):
    def __call__(self, options: TaskOptions) -> Task: ...


class Starter(Protocol):
    def __call__(self, options: TaskOptions) -> Start: ...


CUSTOM = "custom"  # a task of the caller's own, as in a Flower app

TASKS: Registry[Builder] = Registry(
    "task",
    {
        "digits": "narrowcast.tasks.digits:build",
        "fashion-mnist": "narrowcast.tasks.fashion_mnist:build",
        "fashion-mnist-conv": "narrowcast.tasks.fashion_mnist:build_conv",
        "mnist": "narrowcast.tasks.mnist:build",
        "cifar10": "narrowcast.tasks.cifar10:build",
        "cifar10-small": "narrowcast.tasks.cifar10:build_small",
        "sst2": "narrowcast.tasks.text.sst2:build",
        "personachat": "narrowcast.tasks.text.personachat:build",
        "text-lm": "narrowcast.tasks.text.text_lm:build",
        "quadratic": "narrowcast.tasks.quadratic:build",
    },
    group="narrowcast.tasks",
    adapt="narrowcast.tasks.own:as_builder",
)

STARTS: Registry[Starter] = Registry(
    "task",
    {
        "digits": "narrowcast.tasks.digits:start",
        "fashion-mnist": "narrowcast.tasks.fashion_mnist:start",
        "fashion-mnist-conv": "narrowcast.tasks.fashion_mnist:start_conv",
        "mnist": "narrowcast.tasks.mnist:start",
        "cifar10": "narrowcast.tasks.cifar10:start",
        "cifar10-small": "narrowcast.tasks.cifar10:start",
        "sst2": "narrowcast.tasks.text.sst2:start",
        "personachat": "narrowcast.tasks.text.personachat:start",
        "text-lm": "narrowcast.tasks.text.text_lm:start",
        "quadratic": "narrowcast.tasks.quadratic:start",
    },
)
"""The model of each task before training, for which no data is needed."""

_CUT = {"clients", "partition", "alpha"}
_CHOSEN = {"validation", "examples", "test_examples"}
_TRAINED = {"trainable", "lora_rank", "lora_alpha", "freeze"}
_FILES = {*_CUT, *_CHOSEN, *_TRAINED, "width", "data"}
_TEXT = {"model", "tokens", "precision", "checkpointing"}

SETTINGS: dict[str, set[str]] = dict.fromkeys(TASKS.own, _FILES) | {
    "digits": _FILES - {"data"},  # they come with scikit-learn
    "sst2": _FILES | _TEXT,
    "personachat": _FILES | _TEXT,
    "text-lm": _FILES | _TEXT,
    "quadratic": {*_CUT, "width"},
    CUSTOM: {"clients"},
}


def settings_of(name: str) -> set[str]:
    """The settings of a run that the task of this name takes."""
    if name in SETTINGS:
        return SETTINGS[name]
    theirs: Any = TASKS.find(name)
    return set(theirs.settings)


def build(name: str, options: TaskOptions) -> Task:
    """The task of this name."""
    if name == CUSTOM:
        raise ValueError("this run's task is its program's own: go on with it, or load its model, from there")
    build = TASKS.find(name)
    if strange := [setting for setting in options.chosen() if setting in _TEXT - settings_of(name)]:
        text = ", ".join(task for task, settings in SETTINGS.items() if settings >= _TEXT)
        raise ValueError(f"{', '.join(strange)}: only the tasks over text ({text}) have a choice of that")
    return build(options)
