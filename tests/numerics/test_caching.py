"""Compiled kernels where neither the package nor HOME can be written: a folder that is this user's alone."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import narrowcast
from narrowcast.numerics.kernels import caching

USE = """
from narrowcast.numerics import keyed
import narrowcast
print(keyed.words(7, keyed.Purpose.RUN, 4).tolist(), narrowcast.__file__)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(caching.tempfile, "tempdir", str(folder))
    return folder


def test_kernels_run_where_nothing_can_be_written(tmp_path: Path, temporary: Path) -> None:
    """A file stands where __pycache__ would be made, and no home is to be found: not even root can write."""
    shutil.copytree(
        Path(narrowcast.__file__).parent,
        tmp_path / "narrowcast",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (tmp_path / "narrowcast" / "numerics" / "kernels" / "__pycache__").touch()
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "TMPDIR": str(temporary)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    ran = subprocess.run(
        [sys.executable, "-c", USE],
        env={**kept, **nowhere, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert str(tmp_path) in ran.stdout
    (made,) = temporary.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert list(made.rglob("*.nbi"))  # compiled once for all processes of this user


def test_the_folder_is_the_same_every_time(temporary: Path) -> None:
    first = caching.temporary_folder()
    assert caching.temporary_folder() == first
    assert list(temporary.iterdir()) == [first]


@pytest.mark.parametrize("trap", ["open to all", "a link", "a file", "a stranger's"])
def test_a_folder_that_others_could_have_filled_is_not_used(
    temporary: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there is unpickled: that is code."""
    known = temporary / f"narrowcast-kernels-{os.getuid()}"
    match trap:
        case "open to all":
            known.mkdir()
            known.chmod(0o777)
        case "a link":
            (temporary / "theirs").mkdir(mode=0o700)
            known.symlink_to(temporary / "theirs")
        case "a file":
            known.touch()
        case _:
            stranger = os.getuid() + 1
            monkeypatch.setattr(caching.os, "getuid", lambda: stranger)
            (temporary / f"narrowcast-kernels-{stranger}").mkdir(mode=0o700)
    made = caching.temporary_folder()
    assert made.name != f"narrowcast-kernels-{os.getuid()}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert not list(made.iterdir())
