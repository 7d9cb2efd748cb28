"""Files that are old or new, errors that name them, and whose commit this is."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from narrowcast import files


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file on a full disk."""
    if not Path("/dev/full").is_char_device():
        pytest.skip("this system has no /dev/full")
    path = tmp_path / "records.jsonl"
    path.symlink_to("/dev/full")
    return path


def append(path: Path, data: bytes) -> None:
    with files.appending(path) as f:
        files.append(f, data)


@pytest.mark.parametrize("size", [10, 1 << 20])  # less than the buffer, and more
def test_a_full_disk_names_the_file(full: Path, size: int) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*records\.jsonl'") as caught:
        append(full, bytes(size))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("then", [lambda f: None, files.sync])
def test_it_is_named_where_the_disk_is_met_later(full: Path, then) -> None:
    def write() -> None:
        with files.appending(full) as f:
            f.write(b"few")
            then(f)

    with pytest.raises(OSError, match=r"No space left on device: '.*records\.jsonl'"):
        write()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    files.write_atomically(path, b"old")

    def fail() -> None:
        with files.replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*/checkpoint\.pt'"):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("place", ["absent/file.pt", "file/file.pt"])
def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_bytes(b"no folder")
    with pytest.raises(OSError, match=rf"'{tmp_path / place}'$"):
        files.write_atomically(tmp_path / place, b"new")


def test_a_folder_in_its_place_is_named_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match=rf"\] [\w ]+: '{tmp_path / 'there'}'$"):
        files.write_atomically(tmp_path / "there", b"new")


def test_what_another_error_says_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), files.naming(tmp_path / "here"):
        (tmp_path / "elsewhere").read_bytes()


# ---- the commit


def git(folder: Path, *words: str) -> str:
    own = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false"]
    ran = subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def said(place: Path, **env: str) -> str:
    """What the copy of files.py in this folder says."""
    code = f"import sys; sys.path.insert(0, {str(place)!r}); import files; print(files.commit())"
    words = [sys.executable, "-B", "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout.strip()


def test_a_clone_says_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    source = tmp_path / "ours" / "src" / "narrowcast"
    source.mkdir(parents=True)
    shutil.copy(files.__file__, source)
    (tmp_path / "ours" / "pyproject.toml").write_text('[project]\nname = "narrowcast"\n')
    git(tmp_path / "ours", "init", "-q")
    git(tmp_path / "ours", "add", ".")
    git(tmp_path / "ours", "commit", "-qm", "one")
    head = git(source, "rev-parse", "--short", "HEAD")
    assert said(source) == head
    git(tmp_path, "init", "-q", "other")
    assert said(source, GIT_DIR=str(tmp_path / "other" / ".git")) == head  # as in a hook of another
    (source / "more.py").write_text("")
    assert said(source) == f"{head}-dirty"


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("place", [".venv/lib/python3/site-packages/narrowcast", "src/narrowcast"])
def test_a_repository_around_an_installed_copy_is_not_ours(tmp_path: Path, place: str, tracked: bool) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "their-app"\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "their commit")
    shutil.copy(files.__file__, tmp_path / place)
    if tracked:
        git(tmp_path, "add", "-f", ".")
        git(tmp_path, "commit", "-qm", "with a copy")
    assert said(tmp_path / place) == ""


def test_a_copy_in_no_repository_says_nothing(tmp_path: Path) -> None:
    shutil.copy(files.__file__, tmp_path)
    assert said(tmp_path) == ""
