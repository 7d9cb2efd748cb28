"""PersonaChat's files: JSON lines, the JSON of the ConvAI2 baseline, and ParlAI's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from narrowcast.tasks.files import DataError
from narrowcast.tasks.text.files import decode_json, existing, read_lines, read_text

LINES = "personachat_3072.jsonl"
JSON = "personachat_self_original.json"
TEXT = ("train_self_original.txt", "valid_self_original.txt")


@dataclass(frozen=True)
class Dialogue:
    """Two people speak in turns; utterances owner, owner + 2, ... are by the holder of the persona."""

    split: str  # train or valid
    persona: tuple[str, ...]
    owner: int
    utterances: tuple[str, ...]


class _Line(msgspec.Struct):
    split: str
    persona: list[str]
    owner: int
    utterances: list[str]


class _Turn(msgspec.Struct):
    candidates: list[str]  # the last one was said
    history: list[str]


class _Entry(msgspec.Struct):
    personality: list[str]
    utterances: list[_Turn]


def present(folder: Path) -> bool:
    return any(_files(folder, names) for names, _ in READERS)


def load(folder: Path) -> list[Dialogue]:
    """All dialogues, from the first form that is there."""
    for names, reader in READERS:
        if paths := _files(folder, names):
            found = [d for path in paths for d in reader(path)]
            return [d for d in found if d.utterances[d.owner :: 2]]
    raise FileNotFoundError(folder)


def _files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    found = [existing(folder, name) for name in names]
    return [path for path in found if path] if all(found) else []


def _from_lines(path: Path) -> Iterator[Dialogue]:
    for number, line in enumerate(read_lines(path), 1):
        entry = decode_json(line, _Line, f"{path}, line {number}")
        yield _dialogue(path, entry.split, entry.persona, entry.owner, entry.utterances)


def _from_json(path: Path) -> Iterator[Dialogue]:
    parts = decode_json(read_text(path), dict[str, list[_Entry]], str(path))
    for part, entries in parts.items():
        for entry in entries:
            if entry.utterances and entry.utterances[-1].candidates:
                last = entry.utterances[-1]
                said = [*last.history, last.candidates[-1]]
                yield _dialogue(path, part, entry.personality, (len(said) - 1) % 2, said)


def _from_text(path: Path) -> Iterator[Dialogue]:
    """`1 your persona: ...` lines, then `n what the other says<tab>the answer<tab>...`; 1 begins anew."""
    part = path.name.partition("_")[0]
    persona: list[str] = []
    said: list[str] = []
    for number, line in enumerate(read_lines(path), 1):
        match = re.fullmatch(r"(\d+) (.*)", line)
        if not match:
            raise DataError(f"{path}, line {number}: needed a number and a text, got {line[:60]!r}")
        if match[1] == "1" and said:
            yield _dialogue(path, part, persona, 1, said)
            persona, said = [], []
        if match[2].startswith("your persona: "):
            persona.append(match[2].removeprefix("your persona: "))
        elif not match[2].startswith("partner's persona: "):
            asked, tab, rest = match[2].partition("\t")
            if not tab:
                raise DataError(f"{path}, line {number}: needed an utterance, a tab and its answer")
            said += [asked, rest.partition("\t")[0]]
    if said:
        yield _dialogue(path, part, persona, 1, said)


def _dialogue(path: Path, part: str, persona: list[str], owner: int, said: list[str]) -> Dialogue:
    if part not in ("train", "valid") or owner not in (0, 1):
        raise DataError(
            f"{path} has a dialogue of split {part!r}, owner {owner}: needed train or valid, 0 or 1"
        )
    return Dialogue(part, tuple(persona), owner, tuple(said))


READERS: list[tuple[tuple[str, ...], Callable[[Path], Iterator[Any]]]] = [
    ((JSON,), _from_json),
    (TEXT, _from_text),
    ((LINES,), _from_lines),
]
