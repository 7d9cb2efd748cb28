"""Files that are either old or new, never half written, and errors that name the file."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import subprocess
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import xxhash

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: see docs/compatibility.md for what is promised less
    fcntl = None

_ELSEWHERE = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"}


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Say of an OSError that does not know it which file it is about: a full disk is met in a write.

    One about what is written beside the file first, as `.name.something`, is about the file itself.
    """
    beside = str(Path(path).with_name(f".{Path(path).name}."))
    try:
        yield
    except OSError as error:
        if str(error.filename).startswith(beside):
            raise OSError(error.errno, error.strerror, str(path)) from error
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to instead. It takes the place of the file when all went well, and else is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # of several errors the first is told
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


def refuse_large(path: Path, most: int) -> None:
    """A ValueError, unless it is a plain file of at most so many bytes: a pipe may wait, a device not end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        raise ValueError(f"it is no plain file of at most {most} bytes")


def write_atomically(path: Path, data: bytes | memoryview, modified: int | None = None) -> None:
    """Replace a file: whoever reads it, even after a crash, finds the old bytes or the new ones.

    It was `modified` then, in nanoseconds of Unix time, where what it says is no newer.
    """
    with replacing(path) as temporary:
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        if modified is not None:
            os.utime(temporary, ns=(modified, modified))


@contextlib.contextmanager
def appending(path: Path) -> Iterator[io.BufferedWriter]:
    """A file to add to. Of several errors the first is told: after a failed write, closing fails too."""
    f = path.open("ab")
    try:
        yield f
    except BaseException:
        with contextlib.suppress(OSError):
            f.close()
        raise
    with naming(path):
        f.close()


def append(f: io.BufferedWriter, data: bytes) -> None:
    """Write to the end of a file, for others to see."""
    with naming(f.name):
        f.write(data)
        f.flush()


def sync(f: io.BufferedWriter) -> None:
    """What was written is on the disk."""
    with naming(f.name):
        f.flush()
        os.fsync(f.fileno())


def sealed(data: bytes | memoryview) -> bytes:
    """The bytes behind their digest: whoever reads them can tell whether they are whole."""
    return b"".join((xxhash.xxh3_64_digest(data), data))


def unsealed(data: bytes) -> bytes | None:
    """What was sealed; None: it is no longer whole."""
    body = data[8:]
    return body if xxhash.xxh3_64_digest(body) == data[:8] else None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; the lock ends with the process, however it ends.

    A system without such locks gives none: there it is the user who keeps two processes apart.
    """
    with (folder / ".lock").open("w") as f:
        if fcntl is None:
            yield
            return
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"{folder} is in use by another narrowcast process") from None
        _locks.append(f)
        try:
            yield
        finally:
            _locks.remove(f)
            fcntl.flock(f, fcntl.LOCK_UN)  # whoever else has the file open


_locks: list[TextIO] = []  # that this process holds


def _leave_locks() -> None:
    """A forked process shares the locks of its parent, and would hold them when that is gone."""
    while _locks:
        _locks.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@lru_cache
def commit() -> str:
    """The commit of narrowcast's own source, "-dirty" where that was changed since; "" if it is no clone.

    A repository that merely encloses this folder (an environment in a project, a copy) is not ours: ours has
    the source where it is here, and tracks it.
    """
    here = Path(__file__).parent
    own = here.parents[1]
    try:
        top = _git(here, "rev-parse", "--show-toplevel")
        project = (own / "pyproject.toml").read_text(encoding="utf-8")
        if not top or Path(top).resolve() != own.resolve() or 'name = "narrowcast"' not in project:
            return ""
        if not _git(here, "ls-files", "--", Path(__file__).name):
            return ""
        head = _git(here, "rev-parse", "--short", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", ".")
    except (OSError, UnicodeDecodeError):  # no git, no project
        return ""
    return f"{head}-dirty" if head and changed else head


def _git(folder: Path, *words: str) -> str:
    """What git says of a folder, whatever repository this process was told to be in (hooks set GIT_DIR)."""
    env = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    return subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True).stdout.strip()


def sync_path(path: Path) -> None:
    """The same of a file that was closed, or of a folder: the names in it."""
    if os.name == "nt" and path.is_dir():  # which Windows does not open
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
