"""Packages that only some need: a clear word where one is missing."""

from __future__ import annotations

from importlib.util import find_spec


class Missing(ImportError):
    """A package that only some need is not installed."""


def require(package: str, extra: str, what: str) -> None:
    """A `Missing` that says how to get it, by which extra of pyproject.toml, unless the package is there."""
    if find_spec(package) is None:
        raise Missing(f"{what} needs {package}: pip install 'narrowcast[{extra}]'")
