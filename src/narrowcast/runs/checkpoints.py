"""Checkpoints of a run: when one is taken, and when it is written."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path
from typing import Any

import torch

from narrowcast import files
from narrowcast.rounds.training import Training
from narrowcast.runs.run_folder import CHECKPOINT

COSTS = 10.0  # times what one took, before the next: a model or clients' states may be gigabytes


class Checkpoints:
    """Taken when due, written when the round after went well: one that leads to ruin is never kept."""

    def __init__(self, training: Training, run: bytes, folder: Path, log: io.BufferedWriter) -> None:
        self.training, self.run, self.folder, self.log = training, run, folder, log
        self.held: dict[str, Any] | None = None
        self.due = time.monotonic() + training.checkpoint_seconds

    def take_if_due(self) -> None:
        if self.training.releases is not None:
            return  # every round is on disk already
        started = time.monotonic()
        if self.held is None and started > self.due:
            self.held = self.training.state()
            took = time.monotonic() - started
            self.due = started + max(self.training.checkpoint_seconds, COSTS * took)

    def went_well(self) -> None:
        if self.held is not None:
            started = time.monotonic()
            self.write(self.held)
            self.held = None
            ended = time.monotonic()
            self.due = max(self.due, ended + COSTS * (ended - started))

    def write(self, state: dict[str, Any], told: str | None = None) -> None:
        """`told` is the record of the last round, where this must be on disk before that is told."""
        files.sync(self.log)
        buffer = io.BytesIO()
        kept = {"run": self.run.hex(), "simulation": state} | ({} if told is None else {"told": told})
        torch.save(kept, buffer)
        files.write_atomically(self.folder / CHECKPOINT, files.sealed(buffer.getbuffer()))
        self.training.settle(state)


def read(path: Path) -> dict[str, Any]:
    """What was written, whole; else a ValueError."""
    data = path.read_bytes()
    body = files.unsealed(data)
    if body is None and data[:2] == b"PK":  # of the first version, whose only seals are those of a zip file
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            body = None if archive.testzip() else data
    if body is None:
        raise ValueError("its digest is another")
    found: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    return found
