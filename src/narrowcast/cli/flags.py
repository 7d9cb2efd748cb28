"""One flag for every setting of a run: the config is the only list of them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from narrowcast.runs.config import RunConfig
from narrowcast.runs.words import flag, off

Force = Annotated[bool, typer.Option("--force", help="replace what is there")]


def with_run_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for every setting of a run but `task`; those given arrive as `flags`."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "flags"]
    hints = typing.get_type_hints(command, include_extras=True)
    flags = []
    for name, field in RunConfig.model_fields.items():
        if name == "task":
            continue
        kinds = _types(field.annotation)
        kind = next((t for t in (bool, str, int, float) if t in kinds), str)
        default = "" if field.default in (None, "", False) else f" [default: {field.default}]"
        text = (field.description or "") + default
        hints[name] = Annotated[kind | None, typer.Option(_declaration(name), help=text, show_default=False)]
        flags.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name])
        )

    def wrapped(**arguments: Any) -> None:
        own_names = {p.name for p in own}
        chosen = {k: v for k, v in arguments.items() if k not in own_names and v is not None}
        command(**{k: v for k, v in arguments.items() if k in own_names}, flags=chosen)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in own] + flags
    )
    wrapped.__annotations__ = {k: v for k, v in hints.items() if k != "flags"}
    return wrapped


def _declaration(name: str) -> str:
    on_by_default = RunConfig.model_fields[name].default is True
    return f"{flag(name)}/{off(name)}" if on_by_default else flag(name)


def _types(annotation: Any) -> set[Any]:
    """The plain types in an annotation such as Annotated[int, ...] | None."""
    inner: Iterable[Any] = typing.get_args(annotation)
    return (
        set().union(*map(_types, inner)) if inner else {annotation} if isinstance(annotation, type) else set()
    )
