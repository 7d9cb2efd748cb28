"""Runs side by side: for the terminal and as Markdown."""

from __future__ import annotations

from narrowcast.runs.summary import Compression, Summary, compression, reference
from narrowcast.tables import PlainTable, markdown_table, plain_table, times
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


def rows(runs: list[Summary]) -> list[list[str]]:
    """The cells of the table, a list a run."""
    return [_row(run, compression(run, reference(run, runs))) for run in runs]


def _row(run: Summary, ratio: Compression | None) -> list[str]:
    return [
        run.facts.label,
        _metric(run),
        format_bytes(run.up),
        format_bytes(run.down),
        "-" if ratio is None else times(ratio.up, ratio.down, ratio.total),
        f"{run.rounds}" if run.complete else f"{run.rounds}/{run.facts.rounds}",
        format_seconds(run.seconds),
        format_bytes(run.down_first),
        format_bytes(run.down_dense),
    ]


def _metric(run: Summary) -> str:
    if run.diverged is not None:
        return "diverged"
    if run.metric is None:
        return "-"
    digits = "{:.4f}" if abs(run.metric) < 10 else "{:.5g}"
    width = "" if run.interval is None else f"±{digits.format(run.interval)}"
    return digits.format(run.metric) + width


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
    several = "; ±: Student's 95 % interval of the mean" if any(r.interval is not None for r in runs) else ""
    return "; ".join(tasks) + "; " + how + several


def terminal(runs: list[Summary], width: int = WIDE) -> PlainTable:
    """For a terminal of so many columns: a narrow one does without the parts of `down`."""
    shown = len(HEAD) if width >= WIDE else len(HEAD) - 2
    return plain_table(head(runs)[:shown], [row[:shown] for row in rows(runs)], caption(runs))


def markdown(runs: list[Summary]) -> str:
    titles = [title.replace("\n", " ") for title in head(runs)]
    return f"{markdown_table(titles, rows(runs))}\n\n{caption(runs)}\n"
