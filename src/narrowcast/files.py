"""Files that are either old or new, never half written."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import xxhash


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace a file: whoever reads it, even after a crash, finds the old bytes or the new ones."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


def sweep(folder: Path) -> None:
    """Remove what killed processes have left of their writing."""
    for path in folder.glob(".*.tmp"):
        writer = path.suffixes[-2].removeprefix(".") if len(path.suffixes) > 1 else ""
        if writer.isdigit() and not _alive(int(writer)):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sealed(data: bytes | memoryview) -> bytes:
    """The bytes behind their digest: whoever reads them can tell whether they are whole."""
    return b"".join((xxhash.xxh3_64_digest(data), data))


def unsealed(data: bytes) -> bytes | None:
    """What was sealed; None: it is no longer whole."""
    body = data[8:]
    return body if xxhash.xxh3_64_digest(body) == data[:8] else None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the lock ends with the process, however it ends."""
    with (folder / ".lock").open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"{folder} is in use by another narrowcast process") from None
        yield


@lru_cache
def commit() -> str:
    """The commit of narrowcast's own source, "-dirty" where that was changed since; "" if it is no clone."""
    here = Path(__file__).parent
    try:
        asked = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", str(here)])
        head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True).stdout.strip()
            for words in asked
        )
    except OSError:  # no git
        return ""
    return f"{head}-dirty" if head and changed else head


def sync(f: io.BufferedWriter) -> None:
    """What was written is on the disk."""
    f.flush()
    os.fsync(f.fileno())


def sync_path(path: Path) -> None:
    """The same of a file that was closed, or of a folder: the names in it."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
