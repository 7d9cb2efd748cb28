"""A line of the table of methods: the class, what is said of it in words, what its name fixes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from narrowcast.methods.base import Method


@dataclass(frozen=True)
class About:
    """`narrowcast methods` and docs/methods.md are made from these; "": nothing is said of it."""

    up: str = ""  # what a client sends
    down: str = ""  # what it is sent
    client: str = ""  # what it keeps between visits beside the model
    server: str = ""  # what the server keeps
    formula: str = ""  # one line of mathematics
    source: str = ""  # who proposed it
    text: str = ""  # a paragraph with the equations, in Markdown


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

    def default(self, name: str) -> Any:
        """What an option is where nobody says it; None: it has none, or it depends on the model."""
        kind: Any = self.kind
        own = next((f.default for f in fields(kind) if f.name == name and f.default is not MISSING), None)
        return self.defaults.get(name, own)

    def fitting(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the options that this method has: for settings that several methods share."""
        return {name: options[name] for name in self.options if name in options}

    def make(self, **options: Any) -> Method[Any]:
        """The method with these options; a ValueError names what it does not have.

        The run's key and its number of clients may be given to any: a method that needs neither ignores them.
        """
        options = {
            k: v.item() if isinstance(v, np.generic) else v  # NumPy's numbers are not Python's
            for k, v in options.items()
            if k in self.options or k not in ("key", "clients")
        }
        if strange := [name for name in options if name not in self.options]:
            raise ValueError(
                f"{self.kind.__name__} has no option {', '.join(strange)} here: it takes "
                f"{', '.join(self.options) or 'none'}"
            )
        return self.kind(**{**self.defaults, **options, **self.fixes})


def as_entry(name: str, found: Any) -> Entry:
    """The line of a method that somebody else has brought: an `Entry`, or a dataclass that is a `Method`.

    Of a class alone, its docstring is what is said of it.
    """
    kind: Any = found.kind if isinstance(found, Entry) else found
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"the method {name!r} is {found!r}: it must be a class that inherits from Method")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ValueError(f"the method {name!r} lacks {', '.join(missing)}: {kind.__name__} must define them")
    own = vars(kind)
    if "__dataclass_fields__" not in own and (own.get("__annotations__") or not is_dataclass(kind)):
        raise ValueError(f"the method {name!r} has no options yet: put @dataclass(frozen=True) on its class")
    options = fields(typing.cast(Any, kind))
    if bare := [f.name for f in options if f.init and f.default is f.default_factory is MISSING]:
        raise ValueError(f"the method {name!r} has no default for {', '.join(bare)}: every option needs one")
    if isinstance(found, Entry):
        return found
    first, _, rest = (kind.__doc__ or "").strip().partition("\n")
    place = f"{kind.__module__}:{kind.__name__}"
    return Entry(kind, About(formula=first, source=place, text=inspect.cleandoc(rest)))
