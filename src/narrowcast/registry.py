"""Names and what they stand for: listing them imports nothing, asking for one imports its module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from narrowcast import choices

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """name -> the object at "package.module:attribute", in the order in which they were written down."""

    def __init__(self, what: str, places: Mapping[str, str]) -> None:
        self.what, self._places = what, dict(places)
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._found:
            module, _, attribute = self._places[name].partition(":")
            found: Any = getattr(import_module(module), attribute)
            self._found[name] = found
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def find(self, name: str) -> T:
        """What the name stands for; one that is not here is said with those that are."""
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """A ValueError that names those that are here, unless this is one of them."""
        choices.check(self.what, name, self)
