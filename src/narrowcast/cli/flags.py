"""One flag for every setting of a run: the config is the only list of them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from click import BadParameter

from narrowcast.runs.config import CHOICES, RunConfig
from narrowcast.runs.kinds import COUNT, RATE
from narrowcast.runs.words import flag, off

METAVARS = {int: "COUNT", str: "NUMBER|auto"}
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
        shown = f"{field.description or ''}{_choices(name, field.description or '')}{_default(field.default)}"
        metavar = METAVARS.get(kind) if _parsers(name) else None
        kind = str if _parsers(name) else kind
        option = typer.Option(_declaration(name), help=shown, show_default=False, metavar=metavar)
        hints[name] = Annotated[kind | None, option]
        flags.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hints[name])
        )

    def wrapped(**arguments: Any) -> None:
        own_names = {p.name for p in own}
        chosen = {k: _parsed(k, v) for k, v in arguments.items() if k not in own_names and v is not None}
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


def _choices(name: str, text: str) -> str:
    """The words that a setting may be, where its text does not say them."""
    known = CHOICES.get(name, ())
    return "" if all(choice in text for choice in known) else f" ({', '.join(known)})"


def _default(value: Any) -> str:
    return "" if value is None or value is False or value == "" else f" [default: {value}]"


def _parsers(name: str) -> list[Any]:
    """How a setting is read that may be written in more ways than its type is: 64k, auto."""
    field = RunConfig.model_fields[name]
    inner = [part for option in typing.get_args(field.annotation) for part in typing.get_args(option)]
    return [part for part in (*field.metadata, *inner) if part in (COUNT, RATE)]


def _parsed(name: str, value: Any) -> Any:
    for parser in _parsers(name):
        try:
            read = parser.func(value)
            value = int(read) if parser is COUNT else read
        except ValueError as error:
            raise BadParameter(str(error), param_hint=flag(name)) from None
    return value


def _types(annotation: Any) -> set[Any]:
    """The plain types in an annotation such as Annotated[int, ...] | None."""
    inner: Iterable[Any] = typing.get_args(annotation)
    return (
        set().union(*map(_types, inner)) if inner else {annotation} if isinstance(annotation, type) else set()
    )
