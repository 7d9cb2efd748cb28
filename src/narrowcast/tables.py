"""Rows of text as tables: for a terminal, and as Markdown."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text


def plain_table(head: list[str], rows: list[list[str]], caption: str) -> Table:
    """Names to the left, numbers to the right, no lines: as much as fits 80 columns."""
    below = Text(caption, style="table.caption")
    table = Table(box=box.SIMPLE_HEAD, caption=below, caption_justify="left", padding=0)
    for i, column in enumerate(head):
        table.add_column(
            Text(column),
            justify="right" if i else "left",
            no_wrap=i > 0,
            min_width=None if i else 14,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))  # labels and metrics are text, never markup
    return table


def markdown_table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table whose first `left` columns are words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def times(*ratios: float) -> str:
    """1111/582/76.4: three significant digits, thousands whole."""
    return "/".join(f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in ratios)
