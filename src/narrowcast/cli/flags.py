"""One flag for every setting of a run: the config is the only list of them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from click import BadParameter, Context
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperOption

from narrowcast.cli.terminal import plain_errors
from narrowcast.registry import PLACE, Registry
from narrowcast.runs.config import CHOICES, RunConfig
from narrowcast.runs.kinds import COUNT, RATE
from narrowcast.runs.own import admit, config_class, plain_types
from narrowcast.runs.reading import read_toml
from narrowcast.runs.words import either, flag
from narrowcast.tasks.table import TASKS

Track = Annotated[
    str,
    typer.Option(help="follow the run with trackers: tensorboard, mlflow, wandb (several: with commas)"),
]
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
        declared, kind, text, metavar = _flag(name, field)
        option = typer.Option(declared, help=text, show_default=False, metavar=metavar)
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
    wrapped.command_class = WithOwnFlags  # type: ignore[attr-defined]
    return wrapped


class WithOwnFlags(TyperCommand):
    """A command of a run, with flags for what the method and the task at hand have of their own."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        known = {parameter.name for parameter in self.params}
        for parameter in self.params:
            names = CHOICES.get(parameter.name or "")
            if isinstance(names, Registry) and names.others and isinstance(parameter, TyperOption):
                parameter.help = f"{parameter.help}; of others: {', '.join(names.others)}"
        with plain_errors():
            kind = config_class(*self._asked_for(ctx, args))
        for name, field in kind.model_fields.items():
            if name not in known | {"task"}:
                declared, kind_of, text, _ = _flag(name, field)
                words = [name, declared]
                self.params.append(
                    TyperOption(param_decls=words, type=kind_of, default=None, help=text, show_default=False)
                )
        return super().parse_args(ctx, args)

    def _asked_for(self, ctx: Context, args: list[str]) -> tuple[str | None, str | None]:
        """(task, method) that the words name, admitted; what flags those bring is not known yet."""
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        given, words, _ = parser.parse_args(list(args))
        table = {"method": given["method"]} if given.get("method") else {}
        first = given.get("task")
        for word in [*([first] if isinstance(first, str) else []), *words]:
            if word.endswith(".toml") and Path(word).is_file():
                table = {**read_toml(Path(word)), **table}
            elif word in TASKS.others or PLACE.fullmatch(word):
                table["task"] = word
        admit(table)
        return table.get("task"), table.get("method")


def _flag(name: str, field: FieldInfo) -> tuple[str, type, str, str | None]:
    """(how it is written, its type, its help, what stands for its value there) of a setting."""
    kind = next((t for t in (bool, str, int, float) if t in plain_types(field.annotation)), str)
    declared = either(name, field.default)
    text = field.description or ""
    text += _choices(name, text) + _default(field.default)
    return (declared, str, text, METAVARS.get(kind)) if _parsers(field) else (declared, kind, text, None)


def _choices(name: str, text: str) -> str:
    """The words that a setting may be, where its text does not say them."""
    known = CHOICES.get(name, ())
    return (
        ""
        if isinstance(known, Registry) or all(choice in text for choice in known)
        else f" ({', '.join(known)})"
    )


def _default(value: Any) -> str:
    return "" if value is None or value is False or value == "" else f" [default: {value}]"


def _parsers(field: FieldInfo) -> list[Any]:
    """How a setting is read that may be written in more ways than its type is: 64k, auto."""
    inner = [part for option in typing.get_args(field.annotation) for part in typing.get_args(option)]
    return [part for part in (*field.metadata, *inner) if part in (COUNT, RATE)]


def _parsed(name: str, value: Any) -> Any:
    field = RunConfig.model_fields.get(name)
    for parser in _parsers(field) if field else ():
        try:
            read = parser.func(value)
            value = int(read) if parser is COUNT else read
        except ValueError as error:
            raise BadParameter(str(error), param_hint=flag(name)) from None
    return value
