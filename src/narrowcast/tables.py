"""Rows of text as tables: for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from narrowcast.texts import encodable

NAMES = 14  # columns that the names of the rows need: longer ones are folded


class PlainTable:
    """Names to the left, numbers to the right, no lines.

    No number is ever cut: a terminal too narrow for the columns is given each row as lines, a number on each.
    """

    def __init__(self, head: list[str], rows: list[list[str]], caption: str) -> None:
        self.head, self.rows, self.caption = head, rows, caption

    @property
    def width(self) -> int:
        """Columns of a terminal that holds the table."""
        first, *others = (
            max((len(line) for cell in column for line in cell.split("\n")), default=0)
            for column in zip(self.head, *self.rows, strict=True)
        )
        return min(first, NAMES) + sum(others) + len(self.head) + 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        plain = PlainTable(
            [encodable(cell, options.encoding) for cell in self.head],
            [[encodable(cell, options.encoding) for cell in row] for row in self.rows],
            encodable(self.caption, options.encoding),
        )
        yield plain._columns() if plain.width <= options.max_width else plain._lines()

    def _columns(self) -> Table:
        below = Text(self.caption, style="table.caption")
        table = Table(box=box.SIMPLE_HEAD, caption=below, caption_justify="left", padding=0)
        for i, column in enumerate(self.head):
            table.add_column(
                Text(column),
                justify="right" if i else "left",
                no_wrap=i > 0,
                min_width=None if i else NAMES,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*map(Text, row))  # labels and metrics are text, never markup
        return table

    def _lines(self) -> Text:
        lines = []
        for name, *cells in self.rows:
            lines.append(name or self.head[0])
            for title, cell in zip(self.head[1:], cells, strict=True):
                lines.append(f"  {' '.join(title.split())}: {cell}")
        return Text("\n".join([*lines, self.caption]))


def plain_table(head: list[str], rows: list[list[str]], caption: str) -> PlainTable:
    """A table for the terminal."""
    return PlainTable(head, rows, caption)


def markdown_table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table whose first `left` columns are words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def times(*ratios: float) -> str:
    """1111/582/76.4: three significant digits, thousands whole."""
    return "/".join(f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in ratios)
