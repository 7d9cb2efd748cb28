"""Archives read as if a stranger had made them: named members only, plain files, no more than they may hold.

An archive is refused when a member's name is absolute or climbs (..), when a wanted member is a link or a
device or comes twice, or when the wanted ones together hold more than LIMIT bytes.
"""

from __future__ import annotations

import hashlib
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from narrowcast.tasks.files import DataError, opened, reading

LIMIT = 1 << 29  # bytes unpacked: almost four times the largest of the packages
_PIECE = 1 << 20


class Member(NamedTuple):
    name: str
    folder: bool
    plain: bool
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: str, patterns: tuple[str, ...], to: Path, limit: int = LIMIT) -> list[str]:
    """Write archive:folder/NAME to `to`/NAME where NAME fits a pattern; every pattern must have fitted."""
    found: dict[str, str] = {}  # name: the pattern it fits
    room = limit
    with closing(_members(archive)) as members:
        for member in members:
            name = _inside(_checked(member.name, archive), folder)
            pattern = next((p for p in patterns if fnmatchcase(name, p)), None)
            if not name or pattern is None or member.folder:
                continue
            if not member.plain or name in found:
                what = "comes twice" if name in found else "is no plain file but a link or a device"
                raise DataError(f"{archive.name} is refused: its member {member.name!r} {what}")
            found[name] = pattern
            room -= _write(_pieces(member.open, archive, room), to / name)
    if missing := set(patterns) - set(found.values()):
        raise DataError(
            f"{archive.name} has no {', '.join(sorted(missing))} in {folder}: it is not the package that was "
            "asked for"
        )
    return sorted(found)


def digest(path: Path, limit: int = LIMIT) -> str:
    """SHA-256 of what a file holds, unpacked where it is packed."""
    summed = hashlib.sha256()
    for piece in _pieces(partial(opened, path), path, limit):
        summed.update(piece)
    return summed.hexdigest()


def _checked(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DataError(
            f"{archive.name} is refused: its member {name!r} would be written outside of its folder"
        )
    return path


def _inside(path: PurePosixPath, folder: str) -> str:
    """The name below the folder; "" for what is elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""


def _pieces(start: Callable[[], IO[bytes] | None], path: Path, room: int) -> Iterator[bytes]:
    """What is really there is counted: the size in a header is only a claim."""
    with reading(path, "a file that can be unpacked"):
        file = start()
        assert file is not None
        with file:
            while piece := file.read(_PIECE):
                room -= len(piece)
                if room < 0:
                    raise DataError(f"{path.name} is refused: it unpacks to more than is allowed")
                yield piece


def _write(pieces: Iterator[bytes], path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        return sum(file.write(piece) for piece in pieces)


def _members(archive: Path) -> Generator[Member, None, None]:
    readers = {".whl": _zip, ".tgz": _tgz, ".deb": _deb}
    with reading(archive, "an archive that can be unpacked"):
        yield from readers[archive.suffix](archive)


def _zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where no Unix made it
            yield Member(info.filename, info.is_dir(), kind in (0, stat.S_IFREG), partial(file.open, info))


def _tgz(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r|gz") as tar:
        yield from _tar(tar)


def _deb(archive: Path) -> Iterator[Member]:
    """Its tar, by the tool that knows the format; the files are written by us, as those of the others are."""
    words = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tool:
        assert tool.stdout is not None
        with tarfile.open(fileobj=tool.stdout, mode="r|") as tar:
            yield from _tar(tar)
        while tool.stdout.read(_PIECE):  # the padding: left unread, the tool would fail to write it
            pass
    if tool.returncode:
        raise DataError(f"dpkg-deb cannot read {archive.name} (exit code {tool.returncode})")


def _tar(tar: tarfile.TarFile) -> Iterator[Member]:
    for info in tar:
        yield Member(info.name, info.isdir(), info.isreg(), partial(tar.extractfile, info))
