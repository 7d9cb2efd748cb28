"""A suggestion as a table, for the terminal and as Markdown. Reads results only."""

from __future__ import annotations

from narrowcast.measure.suggest import Option, Suggested
from narrowcast.measure.tables import Grid, as_markdown
from narrowcast.tables import PlainTable, plain_table
from narrowcast.units import format_bytes


def grid(s: Suggested) -> Grid:
    head = ["method", "K", "refresh", "d", s.metric, "range", "lr", "bytes\na client", "predicted"]
    rows = [_row(o) for o in s.options] + [_row(s.whole)]
    caption = (
        f"{s.task}: {s.epochs:g} epochs, D = {s.parameters:,}, at most {format_bytes(s.budget)} a client, up "
        f"and down. {s.metric.capitalize()} on a held-out tenth of the training set at the end of the run, "
        f"mean and range over seeds {', '.join(map(str, s.seeds))}, at the best of the rates tried with the "
        "first of them. The last row is uncompressed training, for comparison."
    )
    return Grid("What fits", head, rows, caption)


def _row(o: Option) -> list[str]:
    spread = f"{min(o.metrics):.4f} to {max(o.metrics):.4f}"
    refresh = o.refresh if o.candidate.varies else "-"
    routes = str(o.subspaces) if o.subspaces > 1 else "-"
    sizes = [format_bytes(o.sent), format_bytes(o.predicted)]
    mean = f"{o.mean:.4f}, {o.lost}" if o.lost else f"{o.mean:.4f}"
    return [o.method, routes, refresh, str(o.d), mean, spread, f"{o.rate:g}", *sizes]


def answer(s: Suggested) -> str:
    return f"Best within {format_bytes(s.budget)} a client: {s.command}"


def certainty(s: Suggested) -> str:
    """How much the order means: ranges over the seeds that overlap with the best one's, and seeds lost."""
    if len(s.seeds) < 2:
        return "One seed says nothing about luck: give more --repeats."
    best, *rest = s.options
    low, high = min(best.metrics), max(best.metrics)
    alike = [o for o in rest if o.diverged == best.diverged]
    others = [o for o in alike if min(o.metrics) <= high and low <= max(o.metrics)]
    which = "" if len(alike) == len(rest) else " that lost as few seeds"
    return (
        f"The ranges of {len(others)} of the other {len(alike)}{which} overlap with that of the best: "
        f"between those the order may be luck.{_lost(s)}"
    )


def _lost(s: Suggested) -> str:
    """The seeds that diverged at the rate which the first of them chose."""
    lost = "; ".join(f"{o.candidate.label} ({o.lost})" for o in s.options if o.lost)
    return f" Seeds were lost, and a row stands behind those that lost fewer: {lost}." if lost else ""


def terminal(s: Suggested) -> PlainTable:
    g = grid(s)
    keep = [i for i, name in enumerate(g.head) if name not in ("range", "predicted")]
    return plain_table([g.head[i] for i in keep], [[row[i] for i in keep] for row in g.rows], g.caption)


def markdown(s: Suggested) -> str:
    g = grid(s)
    flat = g._replace(head=[name.replace("\n", " ") for name in g.head])
    best = f"The best within the budget:\n\n```\n{s.command}\n```\n"
    return f"{as_markdown(flat)}\n\n{g.caption}\n\n{certainty(s)} {best}"


def page(s: Suggested, command: str) -> str:
    title = f"# {s.task}: what to run with {format_bytes(s.budget)} a client"
    return f"{title}\n\n`{command}`\n\n{markdown(s)}"
