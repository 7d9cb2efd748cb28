"""ClientStore: what clients alone keep (error feedback and the like), in memory up to a limit, then on disk.

A state is a file CLIENT-GENERATION, written once and never changed. A checkpoint holds the generation of
every client, so going back to it is exact; files that neither it nor the present needs are removed once the
checkpoint is safe (`settle`). A file that is missing or damaged is a lost state: its client begins anew, and
`lost` counts it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgspec
import torch

from narrowcast import files
from narrowcast.methods.base import Private
from narrowcast.numerics import flat
from narrowcast.numerics.process import machine_memory

# Bytes of states held in memory, a quarter of the machine's; those unused for longest go to disk.
MEMORY = machine_memory() // 4


class ClientStore:
    """States of clients by number. Without a folder, files are temporary and a snapshot holds the states."""

    def __init__(self, folder: Path | None = None, memory: int = MEMORY) -> None:
        self.memory, self.lost = memory, 0
        self._folder, self._keeps = folder, folder is not None
        self._generation: dict[int, int] = {}  # of every client's present state
        self._next = 0  # generation
        self._held: OrderedDict[int, Private] = OrderedDict()  # in memory, the longest unused first
        self._bytes = 0  # of them
        self._unwritten: set[int] = set()  # which of them no file has
        self._unsynced: set[Path] = set()  # files that a crash of the machine may still take
        self._pinned: list[dict[int, int]] = []  # snapshots that may be gone back to, the oldest first

    def __len__(self) -> int:
        return len(self._generation)

    def get(self, client: int) -> Private | None:
        """The client's state; None before its first, or when it was lost."""
        if client not in self._generation:
            return None
        if client in self._held:
            self._held.move_to_end(client)
            return self._held[client]
        private = _read(self._path(client, self._generation[client]))
        if private is None:
            self.lost += 1
            del self._generation[client]
            return None
        self._hold(client, private)
        return private

    def put(self, client: int, private: Private) -> None:
        """The client's new state."""
        self.forget(client)
        self._generation[client], self._next = self._next, self._next + 1
        self._unwritten.add(client)
        self._hold(client, private)

    def forget(self, client: int) -> None:
        """Drop a client's state."""
        written = client in self._generation and client not in self._unwritten
        self._drop(client)
        generation = self._generation.pop(client, -1)
        if written:
            self._remove(client, generation)

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps: the states, or the generation of each where a folder keeps the files."""
        if not self._keeps:
            states = {client: self.get(client) for client in list(self._generation)}
            return {"states": {client: private for client, private in states.items() if private is not None}}
        for client in sorted(self._unwritten):
            self._write(client)
        self._sync()
        self._pinned.append(dict(self._generation))
        pairs = sorted(self._generation.items())
        return {"generations": torch.tensor(pairs, dtype=torch.int64).view(-1, 2)}

    def settle(self, snapshot: dict[str, Any]) -> None:
        """A checkpoint with this snapshot is safe on disk: none before it will be gone back to."""
        if not self._keeps:
            return
        safe = dict(snapshot["generations"].tolist())
        while self._pinned and self._pinned[0] != safe:
            for client, generation in self._pinned.pop(0).items():
                if generation != self._generation.get(client):
                    self._remove(client, generation)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go back to a snapshot."""
        for client in list(self._held):
            self._drop(client)
        self._generation = {}
        for client, private in snapshot.get("states", {}).items():
            self.put(client, private)
        if "generations" in snapshot:
            self._generation = dict(snapshot["generations"].tolist())
            self._next = max(self._generation.values(), default=-1) + 1
            self._pinned = [dict(self._generation)]
            self._sweep()

    def _sweep(self) -> None:
        """Remove files that came after the checkpoint; leave what is none of ours."""
        for path in self._root().glob("*-*"):
            client, _, generation = path.name.partition("-")
            ours = client.isdigit() and generation.isdigit()
            if ours and self._generation.get(int(client)) != int(generation):
                path.unlink()

    def _root(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="narrowcast-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _path(self, client: int, generation: int) -> Path:
        return self._root() / f"{client}-{generation}"

    def _remove(self, client: int, generation: int) -> None:
        """Remove a file, unless a snapshot needs it."""
        if not any(snapshot.get(client) == generation for snapshot in self._pinned):
            self._path(client, generation).unlink(missing_ok=True)

    def _hold(self, client: int, private: Private) -> None:
        self._held[client] = private
        self._bytes += _size(private)
        while self._bytes > self.memory:
            oldest = next(iter(self._held))
            if oldest in self._unwritten:
                self._write(oldest)
            self._drop(oldest)

    def _drop(self, client: int) -> None:
        """Out of memory."""
        self._bytes -= _size(self._held.pop(client, {}))
        self._unwritten.discard(client)

    def _write(self, client: int) -> None:
        sealed = files.sealed(to_bytes(self._held[client]))
        path = self._path(client, self._generation[client])
        with files.naming(path):
            path.write_bytes(sealed)
        self._unsynced.add(path)
        self._unwritten.discard(client)

    def _sync(self) -> None:
        """What a checkpoint is about to count is on the disk before it."""
        for path in self._unsynced:
            if path.exists():
                files.sync_path(path)
        if self._unsynced:
            files.sync_path(self._root())
        self._unsynced.clear()


def to_bytes(private: Private) -> bytes:
    return msgspec.msgpack.encode({name: flat.to_bytes(x) for name, x in private.items()})


def from_bytes(data: bytes) -> Private:
    vectors = msgspec.msgpack.decode(data, type=dict[str, bytes])
    return {name: flat.from_bytes(x) for name, x in vectors.items()}


def _read(path: Path) -> Private | None:
    """The state in a file, if it is there and whole."""
    try:
        body = files.unsealed(path.read_bytes())
        return None if body is None else from_bytes(body)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def _size(private: Private) -> int:
    return sum(4 * x.numel() for x in private.values())
