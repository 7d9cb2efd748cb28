"""Text files, plain or packed, read as if a stranger wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from narrowcast.tasks.files import LIMIT, DataError, opened, reading

PACKED = ("", ".xz", ".gz")
T = TypeVar("T")


def existing(folder: Path, name: str) -> Path | None:
    """The file of this name, plain or packed."""
    return next((p for end in PACKED if (p := folder / f"{name}{end}").is_file()), None)


def read_text(path: Path) -> str:
    """All of it, as UTF-8; no more than LIMIT bytes once unpacked."""
    with reading(path, "a text file"), opened(path) as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise DataError(f"{path} holds more than {LIMIT} bytes: cut it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error}") from None


def read_lines(path: Path) -> list[str]:
    """Its lines as line feeds end them: `splitlines` would cut at Unicode's other separators as well."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def decode_json(text: str, kind: type[T], where: str) -> T:
    """JSON of a known form; what is not of it takes no memory."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{where} is not what it should be: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from None
