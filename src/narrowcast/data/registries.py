"""The package registries, asked by their own tools: packages are downloaded, never installed or run."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from narrowcast.data.sources import Package

LINES = 3  # of a tool's complaint that are passed on


class Registry(NamedTuple):
    """`words` is the command that downloads an artefact into the folder it is run in."""

    title: str
    suffix: str  # of an artefact's name
    tools: tuple[str, ...]
    words: Callable[[Package], list[str]]
    advice: str  # where they are missing or fail


def _pip(package: Package) -> list[str]:
    # Wheels only: a source package would have to be run to say what it holds.
    how = ["--no-deps", "--only-binary", ":all:"]
    return [sys.executable, "-m", "pip", "download", *how, f"{package.name}=={package.version}"]


def _npm(package: Package) -> list[str]:
    return ["npm", "pack", "--ignore-scripts", f"{package.name}@{package.version}"]


def _apt(package: Package) -> list[str]:
    return ["apt-get", "download", package.name]


REGISTRIES: dict[str, Registry] = {
    "pip": Registry(
        "PyPI", ".whl", (sys.executable,), _pip, "see that this Python has pip (`python -m ensurepip`)"
    ),
    "npm": Registry(
        "npm", ".tgz", ("npm",), _npm, "install npm, which comes with Node.js (https://nodejs.org)"
    ),
    "apt": Registry(
        "Debian",
        ".deb",
        ("apt-get", "dpkg-deb"),
        _apt,
        "on Debian and its kin, `apt-get update` makes the package known",
    ),
}


def require(package: Package) -> None:
    """The registry's tools are on this machine."""
    registry = REGISTRIES[package.registry]
    if missing := [tool for tool in registry.tools if shutil.which(tool) is None]:
        raise RuntimeError(
            f"{package.name} comes from {registry.title}, and there is no {' and no '.join(missing)} here: "
            f"{registry.advice}; or {package.instead}"
        )


def download(package: Package, folder: Path) -> Path:
    """The artefact of the package, in this folder. It must be empty: `python -m` imports what lies there."""
    registry = REGISTRIES[package.registry]
    words = registry.words(package)
    done = subprocess.run(
        words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        last = " / ".join(said[-LINES:]) or f"exit code {done.returncode}"
        raise RuntimeError(
            f"`{shlex.join(words)}` failed: {last}. See that there is a network; {registry.advice}; or "
            f"{package.instead}"
        )
    found = sorted(folder.glob(f"*{registry.suffix}"))
    if len(found) != 1:
        raise RuntimeError(
            f"`{shlex.join(words)}` left {len(found)} files *{registry.suffix}, needed one: {package.instead}"
        )
    return found[0]
