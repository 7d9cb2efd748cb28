"""The metric while rows are trained: by epochs and, below, by the bytes that a run has taken by then.

Only rows that were evaluated on their way are in it. A method has its colour, its rows differ in dashes.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from narrowcast.plotting import plt
from narrowcast.runs import STYLE, bytes_axis, metric_axis
from narrowcast_studies.reproduce import plot
from narrowcast_studies.reproduce.table import standard_error
from narrowcast_studies.study import Outcome

SIZE = (9, 11)  # inches: one panel above the other is legible at the width of a page
DASHES = ("-", "--", ":", "-.")
COLUMNS = 3  # of the legend, which stands below: the ends of curves lie where it would


def draw(chosen: list[Outcome], path: Path, title: str) -> Path | None:
    """Write the picture; None where no row was evaluated on its way."""
    rows = [o for o in chosen if all(len(run.by_epoch()) > 1 for run in o.runs)]
    if not rows:
        return None
    run = rows[0].runs[0]
    canvas, (above, below) = plt.subplots(2, figsize=SIZE, layout="constrained")
    above.set_title(title)
    for axes in (above, below):
        metric_axis(axes, run.metric, run.higher_is_better)
        axes.grid(alpha=0.3)
    for number, outcome in enumerate(rows):
        method = outcome.row.config.method
        alike = sum(other.row.config.method == method for other in rows[:number])
        colour, marker = STYLE[method]
        epochs, means, errors = _along([run.by_epoch() for run in outcome.runs])
        spent, _, _ = _along([run.by_bytes() for run in outcome.runs])
        panels = [(above, epochs), *([(below, spent)] if spent else [])]
        for axes, at in panels:
            axes.errorbar(
                at, means, yerr=errors, color=colour, marker=marker, markersize=5, capsize=2, elinewidth=1,
                linestyle=DASHES[alike % len(DASHES)], label=plot.named(outcome.row.name, method),
            )  # fmt: skip
    above.set_xlabel("epochs")
    bytes_axis(below)
    below.set_xlabel("bytes until then, up and down, all clients")
    canvas.legend(
        *above.get_legend_handles_labels(), loc="outside lower center", ncols=COLUMNS, frameon=False
    )
    several = max(len(outcome.runs) for outcome in rows)
    plot.explain(above, several, several > 1)
    canvas.savefig(path, dpi=150)
    plt.close(canvas)
    return path


def _along(series: list[list[tuple[float, float]]]) -> tuple[list[float], list[float], list[float]]:
    """(where, mean, standard error) over the runs of a row, at every evaluation that all of them have."""
    points = list(zip(*series, strict=False))
    values = [[y for _, y in point] for point in points]
    where = [statistics.mean(x for x, _ in point) for point in points]
    return where, [statistics.mean(v) for v in values], [standard_error(v) for v in values]
