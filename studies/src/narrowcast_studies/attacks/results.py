"""What an attack gave, as it stands in files. Reports read these and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import xxhash

from narrowcast.files import write_atomically

# Weight of the total variation by attacker, chosen on three training images: 0.003, 0.01, 0.03 for the one
# whose numbers are exact, 0.01 to 0.3 for those that fit noise and need a smoother picture.
VARIATION = {"honest": 0.01, "paper": 0.3, "blind": 0.3}


class Upload(msgspec.Struct, frozen=True):
    """A method and how many numbers it sends: k of Top-K, d of a subspace, cells of a sketch; 0: all D."""

    method: str
    numbers: int = 0

    @property
    def label(self) -> str:
        if self.method == "uncompressed":
            return "full gradient"
        letter = {"topk": "k", "fetchsgd": "cells"}.get(self.method, "d")
        return f"{self.method}, {letter} = {self.numbers}"


class Case(msgspec.Struct, frozen=True):
    """One attack: on which upload, of which images, by whom, how."""

    upload: Upload
    attacker: str
    attack: str
    batch: int = 1
    rounds: int = 1
    index: int = 0  # of the batch: images index * batch and on


class Settings(msgspec.Struct, frozen=True):
    """What all cases of a study share."""

    model: str = "lenet"
    labels: str = "known"
    iterations: int = 300
    restarts: int = 1
    rate: float = 0.0  # of the server's steps between the rounds that are seen
    seed: int = 0
    variation: dict[str, float] = msgspec.field(default_factory=lambda: dict(VARIATION))


class Picture(msgspec.Struct, frozen=True):
    """A reconstruction against its original; the pixels are left out of a study's summary."""

    image: int
    psnr: float
    ssim: float
    identified: bool
    found: bytes = b""  # 32 x 32 x 3
    true: bytes = b""


class Result(msgspec.Struct, frozen=True):
    case: Case
    loss: float
    bytes: int  # of the messages seen
    labels: float  # share of them that the attacker had right
    seconds: float
    pictures: list[Picture]


class Guess(msgspec.Struct, frozen=True):
    """Labels inferred from one kind of upload."""

    upload: Upload
    attacker: str
    batch: int
    right: int
    images: int


class Guesses(msgspec.Struct, frozen=True):
    """Of one kind of upload and one size of batch, by attacker."""

    guesses: list[Guess]


class Summary(msgspec.Struct, frozen=True):
    """A study: all that its tables need."""

    settings: Settings
    source: str
    parameters: int
    images: int
    torch: str
    results: list[Result]
    baseline: list[Picture]  # the mean picture in place of a reconstruction
    guesses: list[Guess]


def case_file(folder: Path, case: Case, settings: Settings, source: str) -> Path:
    """Where a result lies: what a reader looks for, and a digest of everything that it depends on."""
    asked = msgspec.json.encode([case, settings, source])
    digest = xxhash.xxh3_64_hexdigest(asked)[:8]
    u = case.upload
    what = f"{u.method}{u.numbers or ''}-{case.attack}-{case.attacker}"
    return folder / f"{what}-b{case.batch}-r{case.rounds}-{case.index:02d}-{digest}.json"


def label_file(folder: Path, upload: Upload, batch: int, settings: Settings, source: str) -> Path:
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode([upload, batch, settings, source]))[:8]
    return folder / f"labels-{upload.method}{upload.numbers or ''}-b{batch}-{digest}.json"


def write(path: Path, value: msgspec.Struct) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def read_result(path: Path) -> Result | None:
    return _read(path, Result)


def read_guesses(path: Path) -> Guesses | None:
    return _read(path, Guesses)


T = TypeVar("T")


def _read(path: Path, kind: type[T]) -> T | None:
    """What a file holds, or None: one that is missing or spoilt is made again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def read_summary(path: Path) -> Summary:
    return msgspec.json.decode(path.read_bytes(), type=Summary)


def without_pixels(result: Result) -> Result:
    small = [msgspec.structs.replace(p, found=b"", true=b"") for p in result.pictures]
    return msgspec.structs.replace(result, pictures=small)
