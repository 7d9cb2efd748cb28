"""An experiment's pictures, from its outcomes alone, means with standard errors over the seeds.

frontier   the metric against the bytes of a run, or against how many times fewer they are than uncompressed
curves     the metric against epochs and bytes, see `curves`
narrow, bits   see `bits`; liars: see `multiples`
lines      the metric against a setting (d, a rate of participation), a line for each method; one without d
           is a level across

Where the paper prints rows of its own ([[published]]), a frontier over compression and lines over d have them
in a second panel: their model and data are larger, and so is the scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from narrowcast.plotting import FuncFormatter, plt
from narrowcast.runs import FAMILY, STYLE, metric_axis, place_labels
from narrowcast_studies.reproduce import bits, curves, multiples, plot
from narrowcast_studies.reproduce.claims import Published
from narrowcast_studies.reproduce.experiment import Experiment, Figure
from narrowcast_studies.reproduce.table import lines
from narrowcast_studies.study import Outcome

SIZE = (9, 6)  # inches of a panel
AXES = {"dim": "d", "participation": "share of the asked clients that come", "dp_epsilon": "epsilon"}
MANY = 6  # lines, whose legend would cover them


@dataclass(frozen=True)
class Mark:
    """A point with its error, whoever measured it."""

    x: float  # nan: it is a level across
    y: float
    error: float
    name: str
    method: str
    group: str  # the line it is on


def draw(experiment: Experiment, figure: Figure, outcomes: list[Outcome], path: Path) -> Path | None:
    """Write the picture; None where the rows that it needs are not complete."""
    asked = [o for o in outcomes if figure.rows is None or o.row.name in figure.rows]
    chosen = [o for o in asked if o.runs]
    if not chosen:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    run, title = chosen[0].runs[0], figure.title or experiment.study.title
    if figure.kind == "frontier" and figure.x == "bytes":
        return plot.draw(lines(chosen), path, title, run.metric, run.higher_is_better)
    if figure.kind in ("narrow", "bits"):
        return bits.draw(figure.kind, chosen, path, title, figure.within)
    if figure.kind == "liars":
        return multiples.draw(asked, path, title)
    if figure.kind == "curves":
        return curves.draw(chosen, path, title)
    theirs = _theirs(figure, experiment.published)
    panels = 2 if theirs else 1
    size = (SIZE[0], SIZE[1] * panels)
    canvas, grid = plt.subplots(panels, figsize=size, layout="constrained", squeeze=False)
    stack: list[Axes] = list(grid[:, 0])  # one above the other: legible at the width of a page
    titles = [title, "the same in the paper, with its own model and data"]
    for axes, heading in zip(stack, titles[:panels], strict=True):
        axes.set_title(heading)
        metric_axis(axes, run.metric, run.higher_is_better)
        axes.grid(alpha=0.3)
    _panels(figure, stack, [_ours(figure, chosen), theirs][:panels])
    several = max(len(outcome.runs) for outcome in chosen)
    plot.explain(stack[0], several, several > 1)
    canvas.savefig(path, dpi=150)
    plt.close(canvas)
    return path


def _ours(figure: Figure, chosen: list[Outcome]) -> list[Mark]:
    marks = []
    for o, line in zip(chosen, lines(chosen), strict=True):
        if figure.kind == "lines":
            level = figure.x == "dim" and o.row.config.method not in FAMILY
            x = math.nan if level else float(getattr(o.row.config, figure.x))
        elif line.ratio is not None:
            x = line.ratio.total
        else:
            continue
        marks.append(Mark(x, line.mean, line.error, line.name, line.method, _group(o, figure.by)))
    return marks


def _theirs(figure: Figure, published: list[Published]) -> list[Mark]:
    """The paper's rows, where they have what this figure shows."""
    if (figure.kind, figure.x) not in (("frontier", "compression"), ("lines", "dim")):
        return []
    at = [(row.dim if figure.kind == "lines" else row.total, row) for row in published]
    return [Mark(x, r.metric, r.error, r.name, r.method, r.method) for x, r in at if x is not None]


def _panels(figure: Figure, panels: list[Axes], marks: Sequence[list[Mark]]) -> None:
    for axes, points in zip(panels, marks, strict=True):
        if figure.kind == "lines":
            _lines(axes, figure, points)
        else:
            _compression(axes, points)
    if figure.kind == "frontier":  # once nothing moves any more
        for axes, points in zip(panels, marks, strict=True):
            bars = [(m.x, m.y - m.error, m.y + m.error) for m in points]
            names = [plot.named(m.name, m.method) for m in points]
            at = [(m.x, m.y, name, STYLE[m.method][0]) for m, name in zip(points, names, strict=True)]
            place_labels(axes, at, bars)


def _compression(axes: Axes, marks: list[Mark]) -> None:
    for mark in marks:
        colour, marker = STYLE[mark.method]
        loud = mark.method in FAMILY
        axes.errorbar(
            mark.x, mark.y, yerr=mark.error or None, fmt=marker, color=colour, capsize=3,
            markersize=10 if loud else 7, markeredgecolor="black" if loud else colour,
            zorder=4 if loud else 3,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}".replace(",", " ")))
    axes.set_xlabel("compression of the run: uncompressed bytes over these, harmonic mean of up and down")
    axes.margins(x=0.15, y=0.1)


def _lines(axes: Axes, figure: Figure, marks: list[Mark]) -> None:
    levels = [mark for mark in marks if math.isnan(mark.x)]
    for i, mark in enumerate(levels):
        alike = sum(other.method == mark.method for other in levels[:i])
        colour, dashes = STYLE[mark.method][0], ("--", ":", "-.")[alike % 3]
        axes.axhline(mark.y, color=colour, linestyle=dashes, label=mark.name)
        axes.axhspan(mark.y - mark.error, mark.y + mark.error, color=colour, alpha=0.1, linewidth=0)
    marks = [mark for mark in marks if not math.isnan(mark.x)]
    groups: dict[str, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: mark.x):
        groups.setdefault(mark.group, []).append(mark)
    names = list(dict.fromkeys(mark.group for mark in marks))  # in the order of the file
    for i, name in enumerate(names):
        points = groups[name]
        colour, marker = STYLE.get(name, (f"C{i}", "os^Dvp"[i % 6]))
        errors = [m.error for m in points] if any(m.error for m in points) else None
        axes.errorbar(
            [m.x for m in points], [m.y for m in points], yerr=errors, color=colour, marker=marker,
            capsize=3, label=name,
        )  # fmt: skip
    if figure.x in AXES:
        axes.set_xscale("log", base=2)
        ticks = sorted({mark.x for mark in marks})
        axes.set_xticks(ticks, [f"{x:,.10g}".replace(",", " ") for x in ticks])
    axes.set_xlabel(AXES.get(figure.x, figure.x))
    if len(names) + len(levels) < MANY:
        axes.legend()
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)


def _group(outcome: Outcome, by: str) -> str:
    """The line that a row is a point of; by "name": what stands before " @ " in its name."""
    row = outcome.row
    return row.name.split(" @ ")[0] if by == "name" else str(getattr(row.config, by))
