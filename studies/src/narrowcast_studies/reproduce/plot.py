"""A study's picture: the metric against the bytes of a run, a mark and a label a row, the family loud."""

from __future__ import annotations

import statistics
from pathlib import Path

from narrowcast.plotting import plt
from narrowcast.runs import FAMILY, STYLE, bytes_axis, metric_axis, place_labels
from narrowcast_studies.reproduce.table import Line

REACH = 3.0  # how much further than the median from the best a row may lie


def draw(rows: list[Line], path: Path, title: str, metric: str, higher_is_better: bool = True) -> Path:
    """Write the picture to `path` (the ending chooses the format).

    Rows far below the others lie on the border, with an arrow and their value: they would press all that is
    of interest into a line.
    """
    limit = _limit([row.mean for row in rows], higher_is_better)
    heights = [max(row.mean, limit) if higher_is_better else min(row.mean, limit) for row in rows]
    figure, axes = plt.subplots(figsize=(12, 7.5), layout="constrained")
    for row, height in zip(rows, heights, strict=True):
        colour, marker = STYLE[row.method]
        loud = row.method in FAMILY
        axes.errorbar(
            row.up + row.down,
            height,
            yerr=row.error if height == row.mean else None,
            fmt=marker,
            color=colour,
            markersize=11 if loud else 7,
            markeredgecolor="black" if loud else colour,
            elinewidth=1.2,
            capsize=3,
            zorder=4 if loud else 3,
        )
    bytes_axis(axes)
    metric_axis(axes, metric, higher_is_better)
    axes.set_title(title)
    axes.grid(alpha=0.3, which="major")
    axes.margins(x=0.12, y=0.08)
    marks = list(zip(rows, heights, strict=True))
    bars = [(r.up + r.down, h - r.error, h + r.error) for r, h in marks if h == r.mean]
    place_labels(axes, [(r.up + r.down, h, _label(r, h), _ink(r)) for r, h in marks], bars)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _limit(values: list[float], higher_is_better: bool) -> float:
    """Where the border lies: the best, and REACH times the median's distance from it."""
    sign = 1.0 if higher_is_better else -1.0
    best = max(sign * v for v in values)
    return sign * (best - max(REACH * (best - statistics.median(sign * v for v in values)), 1e-9))


def _label(row: Line, height: float) -> str:
    if height == row.mean:
        return row.name
    return f"{row.name} {'↓' if row.mean < height else '↑'} {row.mean:.3g}"


def _ink(row: Line) -> str:
    return STYLE[row.method][0] if row.method in FAMILY else "#444444"
