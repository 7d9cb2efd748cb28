"""Where data is looked for, and where `narrowcast data` puts it."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "NARROWCAST_DATA"


def data_roots() -> list[Path]:
    """Where data is looked for when no folder is named: NARROWCAST_DATA, then the cache of the user."""
    variable = os.environ.get(DATA_VARIABLE)
    return [*([Path(variable)] if variable else []), data_cache()]


def data_cache() -> Path:
    """Where `narrowcast data` puts what it fetches, unless told otherwise."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "narrowcast"
