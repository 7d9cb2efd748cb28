"""The results in plain words, which cannot go stale: what they rest on is compared with the verdicts.

studies/experiments/results/in-short.toml has paragraphs. `rests_on` names the verdicts that one is true by,
(experiment, claim, verdict). Numbers are taken from the committed results: `{cifar10/small: static d=2000}`
is that row's mean over its seeds, and `{cifar10/small: static d=2000 / uncompressed}` is how many times fewer
bytes its run takes than the other's.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from narrowcast.errors import ConfigError
from narrowcast.runs import read_toml
from narrowcast.units import digits
from narrowcast_studies.reproduce import experiment, sections
from narrowcast_studies.reproduce.sections import Section
from narrowcast_studies.reproduce.table import Line

FILE = Path("results/in-short.toml")
NUMBER = re.compile(r"\{([\w-]+)/(\w+): ([^{}]+)\}")
AGAINST = " / "


class Paragraph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    says: str
    rests_on: list[tuple[str, str, str]] = []


def in_short(done: list[Section]) -> list[str]:
    """The paragraphs, where there is such a file, with their numbers in them."""
    path = experiment.FOLDER / FILE
    if not path.is_file():
        return []
    verdicts = {(s.name, one.claim.says): one.verdict for s in done for one in s.judged}
    try:
        paragraphs = msgspec.convert(read_toml(path).get("paragraph", []), list[Paragraph])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [[paragraph]]: {error}") from None
    for paragraph in paragraphs:
        for name, claim, verdict in paragraph.rests_on:
            if (now := verdicts.get((name, claim))) != verdict:
                raise ConfigError(
                    f"{path} rests on {name}: {claim!r} {verdict}, which is now {now!r}: rewrite the "
                    f"paragraph that begins {paragraph.says.strip()[:60]!r}"
                )
    lines = {(s.name, scale): rows for s in done for scale, rows in s.lines.items()}

    def number(found: re.Match[str]) -> str:
        name, scale, rows = found.groups()
        return _number(lines.get((name, scale), {}), name, scale, rows.split(AGAINST))

    return [sections.filled(NUMBER.sub(number, paragraph.says)) for paragraph in paragraphs]


def _number(lines: dict[str, Line], name: str, scale: str, rows: list[str]) -> str:
    if missing := [row for row in rows if row not in lines]:
        raise ConfigError(f"{FILE} speaks of {missing[0]!r} of {name}, scale {scale}, which has no results")
    one, *against = [lines[row] for row in rows]
    return digits(_bytes(against[0]) / _bytes(one)) if against else _mean(one)


def _mean(line: Line) -> str:
    return f"{line.mean:.3f}" if line.mean < 1 else f"{line.mean:.1f}"


def _bytes(line: Line) -> float:
    return line.up + line.down
