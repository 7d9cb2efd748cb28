"""What others bring, as if it were installed: entry points by the road of real ones, gone after the test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from narrowcast import registry

GROUPS = ("methods", "tasks", "subspaces", "formats", "commands")


class Doors:
    """Entry points to play with; `narrowcast.register` and `admit` are undone too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._points = [
            point for group in GROUPS for point in registry._points().select(group=f"narrowcast.{group}")
        ]

    def install(self, group: str, **places: str) -> None:
        made = [
            EntryPoint(name.replace("_", "-"), place, f"narrowcast.{group}") for name, place in places.items()
        ]
        self._now([*self._points, *made])

    def uninstall(self, group: str, *names: str) -> None:
        gone = {(f"narrowcast.{group}", name) for name in names}
        self._now([point for point in self._points if (point.group, point.name) not in gone])

    def _now(self, points: list[EntryPoint]) -> None:
        self._points = points

        class Found:
            def select(self, group: str) -> list[EntryPoint]:
                return [point for point in points if point.group == group]

        registry.forget()
        self._monkeypatch.setattr(registry, "entry_points", Found)


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    tables: list[Any] = [registry._at(place) for place in registry.TABLES.values()]
    before = [(dict(table._given), dict(table._found)) for table in tables]
    yield Doors(monkeypatch)
    for table, (given, found) in zip(tables, before, strict=True):
        table._given, table._found = given, found
    monkeypatch.undo()
    registry.forget()
