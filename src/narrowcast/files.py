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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sealed(data: bytes) -> bytes:
    """The bytes behind their digest: whoever reads them can tell whether they are whole."""
    return xxhash.xxh3_64_digest(data) + data


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
