"""Where a task would find its data: by the task's own `find`, so that the list says what a run will see."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Finder = Callable[[Path | None], Path | None]  # in this folder, None: where tasks look -> the place


def by_task(module: str) -> Finder:
    """As narrowcast.tasks.<module>.find does."""

    def find(root: Path | None) -> Path | None:
        from narrowcast.tasks.options import TaskOptions

        task: Any = import_module(f"narrowcast.tasks.{module}")
        try:
            found = task.find(TaskOptions(0, data=root))
        except FileNotFoundError:
            return None
        place: Path = found if isinstance(found, Path) else found[0]  # CIFAR-10's form comes with it
        return place

    return find


def in_roots(name: str, *needed: str) -> Finder:
    """root/NAME with the needed files: a model by name, and one of the texts that text-lm could train on."""

    def find(root: Path | None) -> Path | None:
        from narrowcast.tasks.places import data_roots

        places = [place / name for place in (data_roots() if root is None else [root])]
        return next((p for p in places if all((p / file).exists() for file in needed)), None)

    return find


def by_package(package: str, file: str) -> Finder:
    """The folder of a file that a Python package brings along, wherever that is installed."""

    def find(root: Path | None) -> Path | None:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return None
        place = Path(spec.origin).parent / file
        return place.parent if place.is_file() else None

    return find
