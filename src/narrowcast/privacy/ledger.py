"""The ledger of a run: which rounds were spent, and which models were released. Lines are only ever added.

    {"spend": 3}                                      the noise of round 4 is about to be drawn
    {"release": 3, "digest": "...", "epsilon": 1.2}   the model after it is on disk, and may leave from now on

A line is on the disk before what it announces happens. So whenever a process is killed, the ledger says
which rounds others may have seen: those are never drawn again, and a state from before the last of them is
refused, wherever it came from.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from narrowcast import files
from narrowcast.errors import ConfigError

FILE = "privacy.jsonl"


class Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One of the two."""

    spend: int | None = None
    release: int | None = None
    digest: str = ""
    epsilon: float | None = None


class Ledger:
    """That of the run in this folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.lines = _read(self.path)

    @property
    def spent(self) -> int:
        """Rounds whose noise was drawn, or was about to be."""
        return max((line.spend + 1 for line in self.lines if line.spend is not None), default=0)

    @property
    def released(self) -> int:
        """Rounds whose model may have left."""
        return max((line.release + 1 for line in self.lines if line.release is not None), default=0)

    @property
    def digest(self) -> str:
        """Of the last model that may have left."""
        return next((line.digest for line in reversed(self.lines) if line.release is not None), "")

    def spend(self, round: int) -> None:
        """This round is spent, unless it was already and nothing came of it."""
        if round < self.released or round > self.spent:
            raise ConfigError(
                f"{self.path} has {self.released} released rounds and {self.spent} that are spent: round "
                f"{round + 1} cannot be next"
            )
        if round == self.spent:
            self._add(Line(spend=round))

    def release(self, round: int, digest: str, epsilon: float | None) -> None:
        """The model after this round may leave: its state is on disk."""
        if round != self.spent - 1:
            raise ConfigError(f"{self.path} has {self.spent} spent rounds: round {round + 1} is not the last")
        self._add(Line(release=round, digest=digest, epsilon=epsilon))

    def check(self, round: int, digest: str) -> None:
        """A ConfigError, unless a run may go on from here: `round` rounds done, a model of this digest."""
        if round < self.released or (round == self.released and digest != self.digest and self.released):
            raise ConfigError(
                f"{self.path} says that the models of {self.released} rounds were released, and the "
                f"checkpoint is another one, of {round} rounds: to go on from it would release rounds twice, "
                "which epsilon does not count. Put the newest checkpoint back, or begin a new run"
            )
        if round > self.spent or round > self.released + 1:
            raise ConfigError(
                f"{self.path} says that {self.spent} rounds were spent, the checkpoint has {round}: lines "
                "are missing, so nobody knows what was released. Begin a new run"
            )

    def _add(self, line: Line) -> None:
        new = not self.path.exists()
        with files.naming(self.path), self.path.open("ab") as f:
            f.write(msgspec.json.encode(line) + b"\n")
            files.sync(f)
        if new:
            files.sync_path(self.path.parent)
        self.lines.append(line)


def _read(path: Path) -> list[Line]:
    """Its lines; one that a kill cut off announced nothing yet, and goes."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as f:
            f.truncate(len(whole))
            os.fsync(f.fileno())
    try:
        return [msgspec.json.decode(line, type=Line) for line in whole.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}): what was released is not known, so the run cannot go on"
        ) from None
