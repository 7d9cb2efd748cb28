"""Settings of methods and tasks that others have brought: fields of a configuration, checked like ours.

An option whose name no setting of a run has is a setting of its own: a flag, and a key of a TOML file. Its
type is what it is annotated with, `Annotated[float, Field(gt=0, description="...")]` for rules and a help.
"""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from pydantic import create_model

from narrowcast.methods.table import METHODS
from narrowcast.registry import PLACE, Registry
from narrowcast.runs.config import CHOICES, RunConfig
from narrowcast.tasks.table import CUSTOM, TASKS

if TYPE_CHECKING:  # neither torch nor numba is needed to read settings
    from narrowcast.methods.entry import Entry

PLAIN = {bool, int, float, str, type(None)}
SHARED = {"key", "clients", "optimiser", "unbiased"}  # of every run, by other names or none
Fields = dict[str, tuple[Any, Any]]  # name -> (annotation, default)
_classes: dict[tuple[str, str], tuple[Any, Any, type[RunConfig]]] = {}


def admit(table: dict[str, Any]) -> None:
    """Let a table of settings name code to import: for one that was written, or chosen, on this machine."""
    for name, known in CHOICES.items():
        if isinstance(known, Registry) and known.group and isinstance(table.get(name), str):
            known.admit(table[name])


def named_by_place(table: dict[str, Any]) -> bool:
    """Whether the table names code to import, by its place."""
    named = [table.get(name) for name, known in CHOICES.items() if isinstance(known, Registry)]
    return any(isinstance(name, str) and PLACE.fullmatch(name) for name in named)


def again(settings: dict[str, Any]) -> RunConfig:
    """A configuration of this machine's, in another process of it."""
    admit(settings)
    return config_class(settings["task"], settings["method"])(**settings)


def config_class(task: Any, method: Any) -> type[RunConfig]:
    """Of a run of this task by this method: RunConfig, with what others' have of their own beside it."""
    entry = METHODS[method] if _brought(METHODS, method) else None
    builder: Any = TASKS[task] if _brought(TASKS, task) and task != CUSTOM else None
    if entry is None and builder is None:
        return RunConfig
    before = _classes.get((task, method))
    if before and before[0] is entry and before[1] is builder:
        return before[2]
    theirs = (of_entry(method, entry) if entry else {}) | (of_task(task, builder.own) if builder else {})
    made: Any = {
        name: (annotation, ... if default is MISSING else default)
        for name, (annotation, default) in theirs.items()
    }
    kind = create_model("RunConfig", __base__=RunConfig, __module__=__name__, **made)
    _classes[task, method] = (entry, builder, kind)
    return kind


def _brought(table: Registry[Any], name: Any) -> bool:
    return isinstance(name, str) and name not in table.own and name in table


def of_entry(name: str, entry: Entry) -> Fields:
    """The options of a method that are settings of its own."""
    hints = typing.get_type_hints(entry.kind, include_extras=True)
    own: Fields = {}
    for f in fields(typing.cast(Any, entry.kind)):
        if f.name not in entry.options or f.name in SHARED:
            continue
        default = entry.defaults.get(f.name, f.default)
        if f.name not in RunConfig.model_fields:
            if plain_types(hints[f.name]) <= PLAIN:
                own[f.name] = (hints[f.name], default)
        elif f.name in vars(entry.kind).get("__annotations__", {}):
            _same_default(name, f.name, default)
    return own


def of_task(name: str, options: Fields) -> Fields:
    """Likewise of a task: one with the name of another setting would be taken for that."""
    for option, (annotation, _) in options.items():
        if option in RunConfig.model_fields:
            raise ValueError(f"the task {name!r}: {option} is a setting of every run: rename the parameter")
        if not plain_types(annotation) <= PLAIN:
            raise ValueError(
                f"the task {name!r}: {option} is {annotation}: a setting is a bool, int, float or str"
            )
    return options


def _same_default(method: str, option: str, default: Any) -> None:
    """A setting of every run has one default, so that `--help` tells the truth."""
    ours = RunConfig.model_fields[option].default
    if ours is not None and ours != default:
        raise ValueError(
            f"the method {method!r}: {option} is {ours!r} by default in every run, not {default!r}: give it "
            "that default, or another name"
        )


def plain_types(annotation: Any) -> set[Any]:
    """The plain types in an annotation such as Annotated[int, ...] | None; of a Literal its words'."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return plain_types(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return {type(word) for word in typing.get_args(annotation)}
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(plain_types, typing.get_args(annotation)))
    return {annotation}
