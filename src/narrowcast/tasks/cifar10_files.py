"""CIFAR-10's files in the forms they are found in, each read as bytes: images (n, 3, 32, 32), labels (n,)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from narrowcast.extras import require
from narrowcast.tasks.files import Bytes, DataError, check_labels, read_npz, read_rest, reading

CLASSES = 10
PIXELS = 3 * 32 * 32
SIDE = 100  # images along one side of a mosaic
BATCH_LIMIT = 1 << 26  # bytes of a batch file, about 31 million in the original

Pair = tuple[Bytes, Bytes]


def read_mosaic(path: Path) -> Bytes:
    """SIDE x SIDE images in one lossless picture, row by row."""
    require("PIL", "images", "CIFAR-10 from its mosaics")
    from PIL import Image

    size = (SIDE * 32, SIDE * 32)
    with reading(path, "a mosaic of images"), Image.open(path, formats=("WEBP", "PNG")) as picture:
        if picture.size != size or picture.mode != "RGB":  # known from the header, before anything is decoded
            raise DataError(
                f"{path} is {picture.size} {picture.mode}, needed {size} RGB. Fetch the file again"
            )
        tiles: Bytes = np.asarray(picture).reshape(SIDE, 32, SIDE, 32, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, 32, 32)


def read_binary(path: Path) -> Pair:
    """Records of a label and 3 072 pixels."""
    record = 1 + PIXELS
    with reading(path, "a binary batch of CIFAR-10"), path.open("rb") as file:
        size = path.stat().st_size
        if size == 0 or size % record or size > BATCH_LIMIT:
            raise DataError(
                f"{path} has {size} bytes: a binary batch is records of {record} bytes, at most "
                f"{BATCH_LIMIT} in all. Fetch the file again"
            )
        records = read_rest(file, (size // record, record), path)
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return images, check_labels(records[:, 0], len(images), CLASSES, path)


def _mosaics(folder: Path, part: str) -> Pair:
    names = [f"train{i}.webp" for i in range(1, 6)] if part == "train" else ["test.webp"]
    images = np.concatenate([read_mosaic(folder / name) for name in names])
    path = folder / "labels.npz"
    return images, check_labels(read_npz(path, part, ()), len(images), CLASSES, path)


def _small(folder: Path, part: str) -> Pair:
    path = folder / SMALL.files[0]
    images = read_npz(path, f"x_{part}", (32, 32, 3)).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), check_labels(
        read_npz(path, f"y_{part}", ()), len(images), CLASSES, path
    )


def _binary(folder: Path, part: str) -> Pair:
    names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
    pairs = [read_binary(folder / f"{name}.bin") for name in names]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


class Form(NamedTuple):
    """The files that make CIFAR-10 up in one of its forms, and load(folder, "train" or "test")."""

    files: tuple[str, ...]
    load: Callable[[Path, str], Pair]

    def present(self, folder: Path) -> bool:
        return all((folder / name).is_file() for name in self.files)


MOSAICS = Form(("labels.npz", *(f"train{i}.webp" for i in range(1, 6)), "test.webp"), _mosaics)
BINARY = Form((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"), _binary)
SMALL = Form(("cifar10_small.npz",), _small)
FULL = (MOSAICS, BINARY)
