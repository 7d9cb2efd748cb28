"""Runs side by side: for the terminal and as Markdown."""

from __future__ import annotations

from rich.table import Table

from narrowcast.runs.summary import Compression, Summary, compression, reference
from narrowcast.tables import markdown_table, plain_table, times
from narrowcast.units import format_bytes, format_count, format_seconds

HEAD = (
    "run",
    "{metric}",
    "up",
    "down",
    "compression\nup/down/total",
    "rounds",
    "time",
    "on {network}",
    "first contact",
    "dense",
)
NETWORK = HEAD.index("on {network}")  # a column of runs that have one
WIDE = 110  # columns of a terminal that shows all of them


def head(runs: list[Summary]) -> list[str]:
    metrics, networks = (
        sorted({*names}) for names in zip(*((r.facts.metric, r.facts.network) for r in runs), strict=True)
    )
    network = "/".join(filter(None, networks))
    titles = [column.format(metric="/".join(metrics), network=network) for column in HEAD]
    return _shown(titles, runs)


def rows(runs: list[Summary]) -> list[list[str]]:
    """The cells of the table, a list a run."""
    return [_shown(_row(run, compression(run, reference(run, runs))), runs) for run in runs]


def _shown(cells: list[str], runs: list[Summary]) -> list[str]:
    """Without the time on a network, where no run has one."""
    return cells if any(run.facts.network for run in runs) else cells[:NETWORK] + cells[NETWORK + 1 :]


def _row(run: Summary, ratio: Compression | None) -> list[str]:
    return [
        run.facts.label,
        "-" if run.metric is None else f"{run.metric:.4f}" if abs(run.metric) < 10 else f"{run.metric:.5g}",
        format_bytes(run.up),
        format_bytes(run.down),
        "-" if ratio is None else times(ratio.up, ratio.down, ratio.total),
        f"{run.rounds}" if run.complete else f"{run.rounds}/{run.facts.rounds}",
        format_seconds(run.seconds),
        "-" if run.network_seconds is None else format_seconds(run.network_seconds),
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
    titles = head(runs)
    shown = len(titles) if width >= WIDE else len(titles) - 2
    return plain_table(titles[:shown], [row[:shown] for row in rows(runs)], caption(runs))


def markdown(runs: list[Summary]) -> str:
    titles = [title.replace("\n", " ") for title in head(runs)]
    return f"{markdown_table(titles, rows(runs))}\n\n{caption(runs)}\n"
