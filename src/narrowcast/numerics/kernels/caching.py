"""Where compiled kernels are kept when numba finds no place, beside the source or in the user's home.

Whoever can write there runs code in this process, since what numba keeps is pickled: a folder among the
temporary ones is taken only where nobody but this user can write.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

import numba


def ensure_place() -> None:
    """Let numba keep what it compiles in a temporary folder, if it has nowhere else to."""
    try:
        numba.njit(cache=True)(_probe)  # compiles nothing: it only looks for a place
    except RuntimeError:
        numba.config.CACHE_DIR = str(temporary_folder())


def _probe() -> None: ...


def temporary_folder() -> Path:
    """This user's own, the same for all processes; where that is not safely theirs, one of this process."""
    shared = Path(tempfile.gettempdir()) / f"narrowcast-kernels-{_user()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        if _ours_alone(shared):
            return shared
    except OSError:
        pass
    own = tempfile.mkdtemp(prefix="narrowcast-kernels-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def _ours_alone(folder: Path) -> bool:
    """A folder, not a link to one, that nobody else can look into or write to."""
    found = folder.lstat()
    private = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _user() and private


def _user() -> int:
    """The number of this process's user; 0 on a system that has none, where folders say 0 too."""
    return os.getuid() if hasattr(os, "getuid") else 0
