"""Methods from one list of options for all of them: each takes those that concern it."""

from typing import Any

from narrowcast.methods import METHODS, Method


def made(name: str, **options: Any) -> Method[Any]:
    entry = METHODS[name]
    return entry.make(**entry.fitting(options))
