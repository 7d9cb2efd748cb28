"""MNIST's files: read, checked by their digests, and refused where they are another data set's."""

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from narrowcast.tasks import build, mnist
from narrowcast.tasks.files import DataError
from narrowcast.tasks.options import TaskOptions

REAL = Path(os.environ.get("NARROWCAST_DATA", "absent")) / "mnist"
needs_mnist = pytest.mark.skipif(
    not (REAL / "t10k-labels-idx1-ubyte").exists(),
    reason="no MNIST in $NARROWCAST_DATA/mnist: narrowcast data mnist",
)


def write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files of MNIST's names, one of them packed, and their digests in the place of the real ones."""
    digests = {}
    for part, n in (("train", 50), ("t10k", 10)):
        images, labels = (np.arange(n * 784) % 251).reshape(n, 28, 28), np.arange(n) % 10
        found = []
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = array.astype(np.uint8).tobytes()
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            path = folder / f"{part}-{kind}-ubyte"
            if kind == "images-idx3":
                path = path.with_name(f"{path.name}.gz")
                path.write_bytes(gzip.compress(head + data))
            else:
                path.write_bytes(head + data)
            found.append(hashlib.sha256(data).hexdigest())
        digests[part] = (found[0], found[1])
    monkeypatch.setattr(mnist, "DIGESTS", digests)


def test_it_reads_what_was_written_and_deals_it_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, monkeypatch)
    task = build("mnist", TaskOptions(0, data=tmp_path))
    assert (task.layout.size, len(task.clients), task.name) == (199_210, 10, "mnist")
    train, test = mnist.load(tmp_path)
    assert train[0].dtype == torch.uint8
    assert train[0][2, 3] == (2 * 784 + 3) % 251
    assert test[1].tolist() == list(range(10))
    assert any(len(set(train[1][c].tolist())) > 1 for c in task.clients)  # not by class
    assert 0 <= task.evaluate(task.theta0())["accuracy"] <= 1


def test_files_of_another_data_set_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch)
    monkeypatch.setitem(mnist.DIGESTS, "t10k", ("0" * 64, "0" * 64))
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is not MNIST's: .* expected 0{16}"):
        build("mnist", TaskOptions(0, data=tmp_path))


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="narrowcast data mnist"):
        build("mnist", TaskOptions(0, data=tmp_path))


@needs_mnist
def test_the_real_mnist() -> None:
    task = build("mnist", TaskOptions(0, data=REAL))
    assert (task.layout.size, len(task.clients)) == (199_210, 12_000)
    train, test = mnist.load(REAL)
    assert (len(train[0]), len(test[0])) == (60_000, 10_000)
    x = task._inputs(train[0][:20_000])
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02
