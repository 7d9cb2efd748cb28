"""Folders of data that are whole or absent: filled beside, moved into place at once, and known by a note."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from narrowcast.files import locked

NOTE = ".narrowcast.json"


class Note(msgspec.Struct, frozen=True):
    """What narrowcast put into a folder: where it is from, and every file with its size."""

    package: str
    files: dict[str, int]


def whole(folder: Path) -> bool | None:
    """Whether all files of the note are there, in their sizes; None: narrowcast did not fill this folder."""
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == n for name, n in note.files.items()
    )


def check_free(folder: Path) -> None:
    """What is not ours is never replaced."""
    if folder.exists() and whole(folder) is None and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} is there, is not complete, and is not from `narrowcast data`: move it away, or choose "
            "another --to"
        )


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """An empty folder beside this one, ours alone and gone afterwards; what a kill left is swept away."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent):
        work = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def settle(ready: Path, folder: Path, package: str, work: Path) -> int:
    """Move what is ready into place, with its note; -> how many files."""
    files = {
        p.relative_to(ready).as_posix(): p.stat().st_size for p in sorted(ready.rglob("*")) if p.is_file()
    }
    (ready / NOTE).write_bytes(msgspec.json.format(msgspec.json.encode(Note(package, files))) + b"\n")
    for name in (*files, NOTE):
        with (ready / name).open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():  # ours and damaged, or empty
        os.rename(folder, work / "old")
    os.rename(ready, folder)
    return len(files)
