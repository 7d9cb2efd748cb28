"""narrowcast on Flower: the same methods, messages and bytes, with real nodes.

`client_app` and `server_app` make the two halves of a Flower app; `NarrowcastStrategy` is for people who have
a ServerApp of their own. See docs/flower.md. Flower itself is imported with the first of these names.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowcast.flower.client import client_app
    from narrowcast.flower.mods import sizes_mod
    from narrowcast.flower.node import Hosted
    from narrowcast.flower.server import server_app
    from narrowcast.flower.settings import FleetSettings
    from narrowcast.flower.strategy import NarrowcastStrategy
    from narrowcast.flower.tasks import LoaderTask, ModelTask

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: nothing is reported

_HOME = {
    "FleetSettings": "settings",
    "Hosted": "node",
    "LoaderTask": "tasks",
    "ModelTask": "tasks",
    "NarrowcastStrategy": "strategy",
    "client_app": "client",
    "server_app": "server",
    "sizes_mod": "mods",
}

__all__ = [
    "FleetSettings", "Hosted", "LoaderTask", "ModelTask", "NarrowcastStrategy", "client_app", "server_app",
    "sizes_mod",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"narrowcast.flower has no {name!r}")
    return getattr(import_module(f"narrowcast.flower.{_HOME[name]}"), name)
