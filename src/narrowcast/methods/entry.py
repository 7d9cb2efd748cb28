"""A line of the table of methods: the class, what is said of it in words, what its name fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from narrowcast.methods.base import Method


@dataclass(frozen=True)
class About:
    """`narrowcast methods` and docs/methods.md are made from these."""

    up: str  # what a client sends
    down: str  # what it is sent
    client: str  # what it keeps between visits beside the model
    server: str  # what the server keeps
    formula: str  # one line of mathematics
    source: str  # who proposed it
    text: str  # a paragraph with the equations, in Markdown


@dataclass(frozen=True)
class Entry:
    """The options of a method are the fields of its dataclass, but for those that its name `fixes`."""

    kind: type[Method[Any]]
    about: About
    fixes: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they are not those of the class

    @property
    def options(self) -> tuple[str, ...]:
        kind: Any = self.kind
        return tuple(f.name for f in fields(kind) if f.init and f.name not in self.fixes)

    def fitting(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the options that this method has: for settings that several methods share."""
        return {name: options[name] for name in self.options if name in options}

    def make(self, **options: Any) -> Method[Any]:
        """The method with these options; a ValueError names what it does not have.

        The run's key and its number of clients may be given to any: a method that needs neither ignores them.
        """
        options = {k: v for k, v in options.items() if k in self.options or k not in ("key", "clients")}
        if strange := [name for name in options if name not in self.options]:
            raise ValueError(
                f"{self.kind.__name__} has no option {', '.join(strange)} here: it takes "
                f"{', '.join(self.options) or 'none'}"
            )
        return self.kind(**{**self.defaults, **options, **self.fixes})
