"""Which node may host which clients: the first to claim a client keeps it, over restarts, in a file.

Where nodes have keys, a node's id is its key's: Flower gives it when the key is registered, and again
whenever a node with that key comes back. Without keys an id lasts as long as the node's process, and binding
clients to it would lock them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from narrowcast import files
from narrowcast.errors import ConfigError
from narrowcast.wire.messages import WireError


class Roster:
    """Client -> node id, as far as they are bound; without a path nobody is."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.bound: dict[int, int] = _read(path) if path is not None and path.is_file() else {}

    def check(self, node: int, clients: Iterable[int]) -> None:
        """A WireError where one of the clients is another node's."""
        for client in clients:
            if self.bound.get(client, node) != node:
                raise WireError(f"it claims client {client}, who is bound to node {self.bound[client]}")

    def bind(self, node: int, clients: Iterable[int]) -> None:
        """From now on these are the node's."""
        new = [client for client in clients if client not in self.bound]
        if self.path is None or not new:
            return
        self.bound |= dict.fromkeys(new, node)
        nodes: dict[str, list[int]] = {}
        for client, host in sorted(self.bound.items()):
            nodes.setdefault(str(host), []).append(client)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(self.path, msgspec.json.format(msgspec.json.encode(nodes)))


def _read(path: Path) -> dict[int, int]:
    try:
        nodes = msgspec.json.decode(path.read_bytes(), type=dict[str, list[int]])
        return {client: int(node) for node, clients in nodes.items() for client in clients}
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path} is no roster (node id -> client numbers): {error}") from None
