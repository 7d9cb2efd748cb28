"""The table of methods in words: for the terminal, and as the generated part of docs/methods.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic.fields import FieldInfo
from rich.console import Group
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from narrowcast.methods.entry import About
from narrowcast.methods.table import METHODS
from narrowcast.runs.own import config_class
from narrowcast.runs.used import of_method
from narrowcast.runs.words import either
from narrowcast.tables import markdown_table

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"


@dataclass(frozen=True)
class MethodRow:
    name: str
    about: About
    linear: bool
    stateful: bool
    settings: dict[str, FieldInfo]  # of a run, that concern it

    @property
    def kind(self) -> str:
        linear = "linear" if self.linear else "not linear"
        return f"{linear}, clients have a state of their own" if self.stateful else linear


def rows(names: Iterable[str] = METHODS) -> list[MethodRow]:
    """These methods, made with their default options."""
    return [_row(name) for name in names]


def _row(name: str) -> MethodRow:
    entry = METHODS.find(name)
    made, fields = entry.make(), config_class(None, name).model_fields
    settings = {setting: fields[setting] for setting in of_method(name)}
    return MethodRow(name, entry.about, made.linear, made.stateful, settings)


def broken() -> dict[str, str]:
    """Methods of others that cannot be used, and why."""
    why = {}
    for name in METHODS.others:
        try:
            _row(name)
        except Exception as error:  # whatever another's module does
            why[name] = str(error)
    return why


def _facts(row: MethodRow) -> list[tuple[str, str]]:
    a = row.about
    facts = [
        ("up", a.up),
        ("down", a.down),
        ("client", a.client and f"keeps {a.client}"),
        ("server", a.server and f"keeps {a.server}"),
        ("maths", a.formula),
        ("source", a.source),
    ]
    return [(key, value) for key, value in facts if value]


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
    for name, field in row.settings.items():
        default = "" if field.default is None else f" [{field.default}]"
        grid.add_row(Text(either(name, field.default)), Text((field.description or "") + default))
    return [Text("Settings:"), grid]


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
    settings = ", ".join(f"`{either(name, field.default)}`" for name, field in row.settings.items())
    facts = [
        f"Source: {a.source}.",
        f"A client keeps {a.client}; the server keeps {a.server}.",
        f"It is {row.kind}.",
        f"Settings: {settings}." if settings else "No settings of its own.",
    ]
    return f"### {row.name}\n\n    {a.formula}\n\n{a.text.strip()}\n\n{' '.join(facts)}"


def fill(page: str) -> str:
    """The page with its generated part made anew: of ours alone, whatever is installed here."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page has no place for the methods: one {BEGIN} ... {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{markdown(rows(METHODS.own))}\n{END}", page)
