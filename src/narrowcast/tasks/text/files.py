"""Text files, plain or packed, read as if a stranger wrote them."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import IO, Any

from narrowcast.tasks.files import LIMIT, DataError, reading

PACKED = ("", ".xz", ".gz")


def existing(folder: Path, name: str) -> Path | None:
    """The file of this name, plain or packed."""
    return next((p for end in PACKED if (p := folder / f"{name}{end}").is_file()), None)


def read_text(path: Path) -> str:
    """All of it, as UTF-8; no more than LIMIT bytes once unpacked."""
    with reading(path, "a text file"), _open(path) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise DataError(f"{path} holds more than {LIMIT} bytes: cut it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from None


def read_json(path: Path) -> Any:
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    match path.suffix:
        case ".xz":
            return lzma.open(path)
        case ".gz":
            return gzip.open(path)
        case _:
            return path.open("rb")
