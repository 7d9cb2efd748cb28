"""Runs side by side: for the terminal and as Markdown."""

from __future__ import annotations

from narrowcast.runs.summary import Compression, Summary, compression, reference
from narrowcast.tables import PlainTable, markdown_table, plain_table, times
from narrowcast.units import format_bytes, format_count, format_seconds

HEAD = (
    "run",
    "{metric}",
    "at the nodes",
    "epsilon",
    "up",
    "down",
    "compression\nup/down/total",
    "rounds",
    "time",
    "on {network}",
    "first contact",
    "dense",
)
# Columns of runs that have something in them.
NODES, EPSILON, NETWORK = map(HEAD.index, ("at the nodes", "epsilon", "on {network}"))
WIDE = 110  # columns of a terminal that shows all of them


def head(runs: list[Summary]) -> list[str]:
    metrics, networks = (
        sorted({*names}) for names in zip(*((r.facts.metric, r.facts.network) for r in runs), strict=True)
    )
    network = "/".join(filter(None, networks))
    return _shown([column.format(metric="/".join(metrics), network=network) for column in HEAD], runs)


def rows(runs: list[Summary]) -> list[list[str]]:
    """The cells of the table, a list a run; where nodes have evaluated, theirs stands beside the server's."""
    return [_shown(_row(run, compression(run, reference(run, runs))), runs) for run in runs]


def _shown(cells: list[str], runs: list[Summary]) -> list[str]:
    """Without the columns that no run has anything in: nodes' metrics, epsilon, the time on a network."""
    known = {
        NODES: any(run.at_nodes is not None for run in runs),
        EPSILON: any(run.epsilon is not None for run in runs),
        NETWORK: any(run.facts.network for run in runs),
    }
    return [cell for i, cell in enumerate(cells) if known.get(i, True)]


def _metric(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:.5g}"


def _row(run: Summary, ratio: Compression | None) -> list[str]:
    hidden = run.epsilon is not None  # bytes and seconds depend on who came

    def size(count: int) -> str:
        return "-" if hidden else format_bytes(count)

    return [
        run.facts.label,
        _headline(run),
        _metric(run.at_nodes),
        "-" if run.epsilon is None else f"{run.epsilon:.4g}",
        size(run.up),
        size(run.down),
        "-" if ratio is None else times(ratio.up, ratio.down, ratio.total),
        f"{run.rounds}" if run.complete else f"{run.rounds}/{run.facts.rounds}",
        "-" if hidden else format_seconds(run.seconds),
        "-" if run.network_seconds is None else format_seconds(run.network_seconds),
        size(run.down_first),
        size(run.down_dense),
    ]


def _headline(run: Summary) -> str:
    if run.diverged is not None:
        return "diverged"
    if run.metric is None or run.interval is None:
        return _metric(run.metric)
    return f"{_metric(run.metric)}±{_metric(run.interval)}"


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
    asked = sum(run.evaluation for run in runs)
    apart = f"; evaluation at the nodes took {format_bytes(asked)} more" if asked else ""
    deltas = sorted({f"{r.facts.privacy.delta:g}" for r in runs if r.facts.privacy})
    private = f"; epsilon is of every client, at delta {', '.join(deltas)}" if deltas else ""
    return "; ".join(tasks) + "; " + how + several + apart + private


def terminal(runs: list[Summary], width: int = WIDE) -> PlainTable:
    """For a terminal of so many columns: a narrow one does without the parts of `down`."""
    titles = head(runs)
    shown = len(titles) if width >= WIDE else len(titles) - 2
    return plain_table(titles[:shown], [row[:shown] for row in rows(runs)], caption(runs))


def markdown(runs: list[Summary]) -> str:
    titles = [title.replace("\n", " ") for title in head(runs)]
    return f"{markdown_table(titles, rows(runs))}\n\n{caption(runs)}\n"
