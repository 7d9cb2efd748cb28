"""A run's folder as a reader finds it; `runner` writes it. Reading needs neither torch nor numba.

config.toml      the resolved configuration         facts.json    what the task turned out to be
records.jsonl    a line a round                     checkpoint.pt the state to go on from
model.narrowcast the exported model, at the end     private/      what clients keep, until then
diverged.txt     why the run cannot go on, if it cannot
privacy.jsonl    what a run with differential privacy has released
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomli_w
from msgspec import Meta

from narrowcast import files
from narrowcast.aggregates.guarantee import Guarantee
from narrowcast.errors import ConfigError, Diverged
from narrowcast.rounds.records import Natural
from narrowcast.rounds.tune import Found
from narrowcast.runs.config import RunConfig
from narrowcast.runs.reading import make_config, read_toml

CONFIG, FACTS, RECORDS = "config.toml", "facts.json", "records.jsonl"
CHECKPOINT, MODEL = "checkpoint.pt", "model.narrowcast"
TRACK = "track.json"  # the trackers that follow the run, see `tracking`
DIVERGED = "diverged.txt"  # why it did
LAST_GOOD = "last-good.narrowcast"  # the model before that, where the driver kept one
# That of privacy is none of them (privacy/ledger.py): what was released stays released.
FILES = (CONFIG, FACTS, RECORDS, CHECKPOINT, MODEL, DIVERGED, LAST_GOOD, TRACK)
LARGEST = 1 << 20  # bytes of those that are a few words
PRIVATE = "private"  # a folder for what the clients keep, while the run is going on


Count = Annotated[int, Meta(ge=1, le=1 << 48)]


class Facts(msgspec.Struct, frozen=True):
    """What a report needs to know of a run beside its records."""

    label: str
    task: str
    method: str
    parameters: Count
    clients: Count
    rounds: Natural
    rounds_per_epoch: Count
    metric: str
    higher_is_better: bool
    theta0: str
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    narrowcast: str
    torch: str
    commit: str = ""  # of narrowcast's own source, where that is a clone
    search: Found | None = None  # of the rate, where it was left to us (--lr auto), and what it cost
    network: str = ""  # the name of the network whose seconds the records have
    privacy: Guarantee | None = None  # what its clients are guaranteed, if anything
    salt: str = ""  # hex: what tells this run from others of equal settings


def is_run(folder: Path) -> bool:
    """Whether a run was begun here; one that was killed before the second of its first files was not."""
    return (folder / FACTS).is_file() and (folder / CONFIG).is_file()


def find(paths: Iterable[Path]) -> list[Path]:
    """The run folders among these, and those right below the others; a path without any stands for itself."""
    found: list[Path] = []
    for path in paths:
        below = sorted(p.parent for p in path.glob(f"*/{FACTS}") if is_run(p.parent))
        found += [path] if is_run(path) or not below else below
    return found


def load_config(folder: Path) -> RunConfig:
    """Its configuration; what it names by place (`package.module:name`) is imported."""
    return make_config(load_settings(folder), admit=True)


def load_settings(folder: Path) -> dict[str, Any]:
    """The table of config.toml as it stands: nothing that it names is looked up."""
    if not is_run(folder):
        lacks = CONFIG if (folder / FACTS).is_file() else FACTS
        raise ConfigError(f"{folder} is not a run folder, or its run has not begun: it has no {lacks}")
    try:
        files.refuse_large(folder / CONFIG, LARGEST)
    except ValueError as error:
        raise ConfigError(f"{folder / CONFIG} is damaged: {error}") from None
    return read_toml(folder / CONFIG)


def load_facts(folder: Path) -> Facts:
    try:
        files.refuse_large(folder / FACTS, LARGEST)
        return msgspec.json.decode((folder / FACTS).read_bytes(), type=Facts)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is not a run folder, or its run has not begun: it has no facts.json"
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{folder}/facts.json is damaged: {error}") from None


def finished(folder: Path) -> bool:
    return (folder / MODEL).is_file()


def diverged(folder: Path) -> str | None:
    """Why the run diverged; None: it did not."""
    path = folder / DIVERGED
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(LARGEST).decode(errors="replace").strip()


def refuse_diverged(folder: Path) -> None:
    """A run that has diverged cannot go on: it would diverge again."""
    if (why := diverged(folder)) is not None:
        good = folder / LAST_GOOD
        kept = f" Its last good model is {good}." if good.is_file() else ""
        raise Diverged(
            f"the run in {folder} diverged ({why}), and would again.{kept} Run it anew with a lower --lr, or "
            "--lr auto, and --force"
        )


def note_divergence(folder: Path, error: Diverged) -> None:
    """The folder says that its run diverged; what clients kept, gigabytes perhaps, goes."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / PRIVATE, ignore_errors=True)
    files.write_atomically(folder / DIVERGED, f"{error}\n".encode())


def clear(folder: Path) -> None:
    """The run here is to be replaced: nothing of it is left."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PRIVATE, ignore_errors=True)


def to_toml(config: RunConfig) -> bytes:
    return tomli_w.dumps(config.model_dump(exclude_none=True)).encode()
