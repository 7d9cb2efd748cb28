"""A study's picture: the metric against the bytes of a run, a mark and a label a row, the family loud."""

from __future__ import annotations

import statistics
from pathlib import Path

from narrowcast.plotting import Axes, plt
from narrowcast.runs import FAMILY, STYLE, bytes_axis, metric_axis, place_labels
from narrowcast_studies.reproduce.table import Line

REACH = 3.0  # how much further than the median from the best a row may lie
NEAR = 1.5  # a row that lies so much further still is drawn where it is
AT = " @ "  # in a row's name, before the share of the asked clients that come


def draw(rows: list[Line], path: Path, title: str, metric: str, higher_is_better: bool = True) -> Path:
    """Write the picture to `path` (the ending chooses the format).

    Rows far below the others lie on the border, with an arrow and their value: they would press all that is
    of interest into a line.
    """
    border = limit(rows, higher_is_better)
    heights = [max(row.mean, border) if higher_is_better else min(row.mean, border) for row in rows]
    figure, axes = plt.subplots(figsize=(12, 7.5), layout="constrained")
    for group in _groups(rows).values():  # rows of one name at several shares
        at = [(row.up + row.down, height) for row, height in zip(rows, heights, strict=True) if row in group]
        axes.plot(*zip(*sorted(at), strict=True), color=_ink(group[0]), linewidth=1, alpha=0.6, zorder=2)
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
    short = {row.name for group in _groups(rows).values() for row in group[1:]}
    names = [_label(r, h).split(AT)[-1] if r.name in short else _label(r, h) for r, h in marks]
    place_labels(
        axes, [(r.up + r.down, h, name, _ink(r)) for (r, h), name in zip(marks, names, strict=True)], bars
    )
    explain(axes, max(len(row.values) for row in rows), any(row.error for row in rows), bool(short))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def explain(axes: Axes, seeds: int, bars: bool, shares: bool = False) -> None:
    """What the marks are, in the picture itself."""
    words = [f"mean of {seeds} seeds" if seeds > 1 else "one seed"]
    words += ["bars: a standard error each way"] if bars else []
    words += (
        [f"after the {AT.strip()}, and alone: the share of the asked clients that come"] if shares else []
    )
    text = "; ".join(words)
    axes.text(0.99, 0.015, text, transform=axes.transAxes, ha="right", fontsize=8, color="#555555")


def named(name: str, method: str) -> str:
    """A row's name with its method in it: "K=8 d=512" alone could be anybody's."""
    return f"K-subspace {name}" if method == "k-subspace" and name.startswith("K=") else name


def _groups(rows: list[Line]) -> dict[str, list[Line]]:
    """Rows that differ in what stands after the @ alone, where there are several."""
    found: dict[str, list[Line]] = {}
    for row in rows:
        if AT in row.name:
            found.setdefault(row.name.split(AT)[0], []).append(row)
    return {name: group for name, group in found.items() if len(group) > 1}


def limit(rows: list[Line], higher_is_better: bool) -> float:
    """Where the border lies: REACH times the median's distance below the best, or as low as bars go."""
    sign = 1.0 if higher_is_better else -1.0
    values = [sign * row.mean for row in rows]
    best, worst = max(values), min(values)
    border = best - max(REACH * (best - statistics.median(values)), 1e-9)
    near = best - worst <= NEAR * (best - border)  # it fits almost: no need to bend it
    while not near and (lower := min([border, *_feet(rows, values, border)])) < border:
        border = lower  # and lets in others, whose bars may go lower still
    return sign * (worst if near else border)


def _feet(rows: list[Line], values: list[float], border: float) -> list[float]:
    """How low the bars go of those that lie above the border."""
    return [value - row.error for value, row in zip(values, rows, strict=True) if value >= border]


def _label(row: Line, height: float) -> str:
    name = named(row.name, row.method)
    if height == row.mean:
        return name
    return f"{name} {'↓' if row.mean < height else '↑'} {row.mean:.3g}"


def _ink(row: Line) -> str:
    return STYLE[row.method][0] if row.method in FAMILY else "#444444"
