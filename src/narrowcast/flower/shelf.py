"""Where a node keeps what it has between messages: a folder, or the engine's own memory of the run.

Every message may meet a new process, so whatever is to last is put here as bytes with their digest. What is
missing or damaged reads as None: a cache and private state may both be lost, never wrong.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context

from narrowcast import files

PREFIX = "narrowcast."
FOLDER = "narrowcast-folder"  # of the node's config


class Shelf(Protocol):
    def get(self, name: str) -> bytes | None:
        """What was put there, whole; None: nothing, or no longer whole."""

    def put(self, name: str, data: bytes) -> None: ...

    def remove(self, name: str) -> None: ...

    def names(self) -> list[str]: ...


def of_node(context: Context, run: str, clients: str) -> Shelf:
    """The node's shelf for a run: below its `narrowcast-folder`, or in the engine's memory without one."""
    folder = context.node_config.get(FOLDER)
    return Folder(Path(str(folder)) / run / clients) if folder else Memory(context)


class Folder:
    """Files, written whole or not at all. They outlive the process, the node and the engine's run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        files.sweep(path)

    def get(self, name: str) -> bytes | None:
        try:
            return files.unsealed((self.path / name).read_bytes())
        except OSError:
            return None

    def put(self, name: str, data: bytes) -> None:
        files.write_atomically(self.path / name, files.sealed(data))

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(p.name for p in self.path.iterdir() if re.fullmatch(r"[a-z0-9-]+", p.name))


class Memory:
    """Flower's `Context.state`: lasts for one run of the engine, and is lost with the node's process."""

    def __init__(self, context: Context) -> None:
        self.state: Any = context.state

    def get(self, name: str) -> bytes | None:
        record = self.state.get(PREFIX + name)
        return files.unsealed(record["data"]) if record is not None else None

    def put(self, name: str, data: bytes) -> None:
        self.state[PREFIX + name] = ConfigRecord({"data": files.sealed(data)})

    def remove(self, name: str) -> None:
        self.state.pop(PREFIX + name, None)

    def names(self) -> list[str]:
        return sorted(name.removeprefix(PREFIX) for name in self.state if name.startswith(PREFIX))
