"""Runs side by side: for the terminal and as Markdown."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from narrowcast.runs.summary import Compression, Summary, compression, reference
from narrowcast.units import format_bytes, format_count, format_seconds

HEAD = (
    "run",
    "{metric}",
    "up",
    "down",
    "compression\nup/down/total",
    "rounds",
    "time",
    "first contact",
    "dense",
)
WIDE = 110  # columns of a terminal that shows all of them


def head(runs: list[Summary]) -> list[str]:
    metrics = sorted({run.facts.metric for run in runs})
    return [column.format(metric="/".join(metrics)) for column in HEAD]


def times(*ratios: float) -> str:
    """1111/582/76.4: three significant digits, thousands whole."""
    return "/".join(f"{x:.0f}" if x >= 100 else f"{x:.3g}" for x in ratios)


def rows(runs: list[Summary]) -> list[list[str]]:
    """The cells of the table, a list a run."""
    return [_row(run, compression(run, reference(run, runs))) for run in runs]


def _row(run: Summary, ratio: Compression | None) -> list[str]:
    return [
        run.facts.label,
        "-" if run.metric is None else f"{run.metric:.4f}" if abs(run.metric) < 10 else f"{run.metric:.5g}",
        format_bytes(run.up),
        format_bytes(run.down),
        "-" if ratio is None else times(ratio.up, ratio.down, ratio.total),
        f"{run.rounds}" if run.complete else f"{run.rounds}/{run.facts.rounds}",
        format_seconds(run.seconds),
        format_bytes(run.down_first),
        format_bytes(run.down_dense),
    ]


def caption(runs: list[Summary]) -> str:
    """What the numbers are counted against."""
    tasks = sorted(
        {
            f"{r.facts.task}: {format_count(r.facts.parameters)} parameters, {r.facts.clients} clients"
            for r in runs
        }
    )
    against = {r.facts.label for run in runs if (r := reference(run, runs))}
    how = (
        f"compression: bytes of the whole run '{', '.join(sorted(against))}' over bytes of the run"
        if against
        else "compression: 4 D bytes a message over bytes sent"
    )
    return "; ".join(tasks) + "; " + how


def terminal(runs: list[Summary], width: int = WIDE) -> Table:
    """For a terminal of so many columns: a narrow one does without the parts of `down`."""
    shown = len(HEAD) if width >= WIDE else len(HEAD) - 2
    return plain_table(head(runs)[:shown], [row[:shown] for row in rows(runs)], caption(runs))


def plain_table(head: list[str], rows: list[list[str]], caption: str) -> Table:
    """Names to the left, numbers to the right, no lines: as much as fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", padding=0)
    for i, column in enumerate(head):
        table.add_column(
            column,
            justify="right" if i else "left",
            no_wrap=i > 0,
            min_width=None if i else 14,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))  # a label is text, never markup
    return table


def markdown(runs: list[Summary]) -> str:
    titles = [title.replace("\n", " ") for title in head(runs)]
    return f"{markdown_table(titles, rows(runs))}\n\n{caption(runs)}\n"


def markdown_table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table whose first `left` columns are words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])
