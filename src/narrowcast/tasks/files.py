"""Reading data files as if a stranger wrote them: sizes are checked before memory is taken.

Whatever is wrong with a file is a `DataError` that names it; nothing in a file is ever executed.
"""

from __future__ import annotations

import gzip
import lzma
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

LIMIT = 1 << 29  # bytes in one array: three times all of CIFAR-10
_PIECE = 1 << 20

Bytes = NDArray[np.uint8]


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class DataError(ValueError):
    """A data file that is not what it should be."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Any failure inside becomes a DataError that names the file; a missing file stays FileNotFoundError."""
    try:
        yield
    except (DataError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # decoders fail in many ways on hostile bytes, and all mean the same here
        raise DataError(
            f"{path} is not {what}: {error or type(error).__name__}. Fetch the file again"
        ) from error


def opened(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its name ends in .gz or .xz."""
    match path.suffix:
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".xz":
            return lzma.open(path)
        case _:
            return path.open("rb")


def read_exactly(file: Readable, size: int, path: Path) -> bytearray:
    """`size` bytes, piece by piece: a file that only claims to be large costs no more than it holds."""
    if size > LIMIT:
        raise DataError(
            f"{path} claims {size} bytes of data, more than the {LIMIT} allowed. Fetch the file again"
        )
    data = bytearray()
    while len(data) < size:
        piece = file.read(min(_PIECE, size - len(data)))
        if not piece:
            raise DataError(
                f"{path} is truncated: {len(data)} of {size} bytes are there. Fetch the file again"
            )
        data += piece
    return data


def read_rest(file: Readable, shape: tuple[int, ...], path: Path) -> Bytes:
    """The array that fills the file to its end, where gzip and zip check their checksums."""
    data = read_exactly(file, math.prod(shape), path)
    if file.read(1):
        raise DataError(
            f"{path} goes on after the {len(data)} bytes of its {shape} array. Fetch the file again"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def read_idx(path: Path, tail: tuple[int, ...]) -> Bytes:
    """An IDX file of bytes, plain or gzip, shape (n, *tail): 0, 0, 8, number of axes, sizes, data."""
    with reading(path, "an IDX file"), opened(path) as file:
        magic = read_exactly(file, 4, path)
        expected = bytes((0, 0, 8, 1 + len(tail)))
        if magic != expected:
            raise DataError(
                f"{path} begins with {magic.hex()}, an IDX file of bytes with {1 + len(tail)} axes with "
                f"{expected.hex()}. Check that it is the right file"
            )
        shape = tuple(int(n) for n in np.frombuffer(read_exactly(file, 4 * (1 + len(tail)), path), ">u4"))
        if shape[1:] != tail or shape[0] < 1:
            raise DataError(
                f"{path} holds an array of shape {shape}, needed (n, {', '.join(map(str, tail))}), n >= 1"
            )
        return read_rest(file, shape, path)


def read_npz(path: Path, name: str, tail: tuple[int, ...]) -> Bytes:
    """One array of bytes from an .npz file, shape (n, *tail). Pickled objects have no way in."""
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise DataError(f"{path} has no array {name!r}, only {', '.join(archive.namelist())}")
        with archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise DataError(f"{path}: array {name!r} is in .npy version {version}, only (1, 0) is read")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            if (
                dtype != np.uint8
                or fortran
                or shape[1:] != tail
                or len(shape) != 1 + len(tail)
                or shape[0] < 1
            ):
                raise DataError(
                    f"{path}: array {name!r} is {dtype} of shape {shape}, needed uint8 (n, "
                    f"{', '.join(map(str, tail))}) in C order"
                )
            return read_rest(file, shape, path)


def check_labels(labels: Bytes, examples: int, classes: int, path: Path) -> Bytes:
    """Labels as many as examples and below `classes`."""
    if len(labels) != examples:
        raise DataError(
            f"{path} has {len(labels)} labels for {examples} images: the files do not belong together"
        )
    if labels.max() >= classes:
        raise DataError(f"{path} has a label {labels.max()}: labels are 0 to {classes - 1}")
    return labels
