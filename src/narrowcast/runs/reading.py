"""Settings from a table: from flags, from a TOML file, from Flower's config."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from narrowcast.choices import meant
from narrowcast.errors import ConfigError
from narrowcast.runs import own
from narrowcast.runs.config import RunConfig
from narrowcast.runs.words import flag


def make_config(values: dict[str, Any], admit: bool = False) -> RunConfig:
    """A checked configuration, or a ConfigError that names each wrong flag.

    `admit` lets it name code to import (`package.module:name`): for settings that were written, or chosen, on
    this machine, and for no others.
    """
    if admit:
        own.admit(values)
    with as_config_error():
        kind = own.config_class(values.get("task"), values.get("method"))
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e) for e in error.errors())) from None


@contextmanager
def as_config_error() -> Iterator[None]:
    """What is wrong with a method or a task that others have brought is said like any wrong setting."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error


def _explain(error: Any) -> str:
    message: str = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return message
    named = flag(str(error["loc"][0]))
    if error["type"] == "extra_forbidden":
        known = [name.replace("_", "-") for name in RunConfig.model_fields]
        return f"{named}: there is no such setting{meant(named.removeprefix('--'), known)}"
    said = "got" in message or repr(error["input"]) in message or error["type"] == "missing"
    return f"{named}: {message}" + ("" if said else f", got {error['input']!r}")


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return _underscored(path, tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def _underscored(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Settings by their own names, however written: local-steps is local_steps, in [[run]] tables too."""
    named: dict[str, Any] = {}
    for name, value in table.items():
        plain = name.replace("-", "_")
        own = plain if plain in RunConfig.model_fields else name
        if own in named:
            raise ConfigError(f"{path} has {flag(plain)} twice, with a dash and with an underscore")
        several = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        named[own] = [_underscored(path, item) for item in value] if several else value
    return named
