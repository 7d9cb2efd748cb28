"""The table of methods in words: for the terminal, and as the generated part of docs/methods.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.console import Group
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from narrowcast.methods.entry import About
from narrowcast.methods.table import METHODS
from narrowcast.runs.config import RunConfig
from narrowcast.runs.used import of_method
from narrowcast.runs.words import flag, off
from narrowcast.tables import markdown_table

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"


@dataclass(frozen=True)
class MethodRow:
    name: str
    about: About
    linear: bool
    stateful: bool
    settings: tuple[str, ...]  # fields of RunConfig that concern it

    @property
    def kind(self) -> str:
        linear = "linear" if self.linear else "not linear"
        return f"{linear}, clients have a state of their own" if self.stateful else linear


def rows(name: str | None = None) -> list[MethodRow]:
    """The methods of the table, or the one of this name; made with the default options."""
    if name is not None:
        METHODS.check(name)
    return [_row(n) for n in METHODS if name in (None, n)]


def _row(name: str) -> MethodRow:
    entry = METHODS[name]
    made = entry.make()
    return MethodRow(name, entry.about, made.linear, made.stateful, of_method(name))


def _facts(row: MethodRow) -> list[tuple[str, str]]:
    a = row.about
    return [
        ("up", a.up),
        ("down", a.down),
        ("client", f"keeps {a.client}"),
        ("server", f"keeps {a.server}"),
        ("maths", a.formula),
        ("source", a.source),
    ]


def terminal(rows: list[MethodRow]) -> Group:
    """Some lines a method: readable at 80 columns."""
    return Group(*(part for row in rows for part in (*_lines(row), Text(""))), _more())


def detail(row: MethodRow) -> Group:
    """One method in full: its text, and the settings that concern it."""
    return Group(*_lines(row), Text(""), Markdown(row.about.text.strip()), Text(""), *_settings(row))


def _lines(row: MethodRow) -> tuple[Text, Table]:
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in _facts(row):
        grid.add_row(Text(key), Text(value))
    return Text.assemble((row.name, "bold"), f": {row.kind}"), grid


def _more() -> Text:
    return Text("v: a client's update, W: clients of a round. One in full: narrowcast methods NAME")


def _settings(row: MethodRow) -> list[Text | Table]:
    if not row.settings:
        return [Text("No settings of its own.")]
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name in row.settings:
        field = RunConfig.model_fields[name]
        default = "" if field.default is None else f" [{field.default}]"
        grid.add_row(Text(_shown(name)), Text((field.description or "") + default))
    return [Text("Settings:"), grid]


def _shown(name: str) -> str:
    """A setting as it is given: what is on by default can only be turned off."""
    return off(name) if RunConfig.model_fields[name].default is True else flag(name)


def markdown(rows: list[MethodRow]) -> str:
    """The table, and a section for each method."""
    head = ["method", "up, a visit", "down, a visit", "a client keeps", "the server keeps", "linear"]
    cells = [
        [f"[`{r.name}`](#{r.name})", a.up, a.down, a.client, a.server, "yes" if r.linear else "no"]
        for r in rows
        for a in [r.about]
    ]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in cells]
    table = markdown_table(head, escaped, left=len(head))
    return "\n\n".join([table, *map(_section, rows)])


def _section(row: MethodRow) -> str:
    a = row.about
    settings = ", ".join(f"`{_shown(name)}`" for name in row.settings)
    facts = [
        f"Source: {a.source}.",
        f"A client keeps {a.client}; the server keeps {a.server}.",
        f"It is {row.kind}.",
        f"Settings: {settings}." if settings else "No settings of its own.",
    ]
    return f"### {row.name}\n\n    {a.formula}\n\n{a.text.strip()}\n\n{' '.join(facts)}"


def fill(page: str) -> str:
    """The page with its generated part made anew."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page has no place for the methods: one {BEGIN} ... {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{markdown(rows())}\n{END}", page)
