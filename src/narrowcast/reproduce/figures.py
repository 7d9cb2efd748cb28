"""An experiment's pictures, from its outcomes alone, means with standard errors over the seeds.

frontier   the metric against the bytes of a run, or against how many times fewer they are than uncompressed
curves     the metric against epochs, of the rows named
lines      the metric against a setting (d, a rate of participation), a line for each method
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from narrowcast import records
from narrowcast.report import labels, study_plot
from narrowcast.report.study_table import Line, lines, standard_error
from narrowcast.report.style import FAMILY, STYLE
from narrowcast.reproduce.experiment import Experiment, Figure
from narrowcast.study import Outcome

SIZE = (9, 6)


def draw(experiment: Experiment, figure: Figure, outcomes: list[Outcome], path: Path) -> Path | None:
    """Write the picture; None where no row of it is complete."""
    chosen = [o for o in outcomes if o.runs and (figure.rows is None or o.row.name in figure.rows)]
    if not chosen:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    facts, title = chosen[0].runs[0].facts, experiment.study.title
    if figure.kind == "frontier" and figure.x == "bytes":
        return study_plot.draw(lines(chosen), path, title, facts.metric, facts.higher_is_better)
    canvas, axes = plt.subplots(figsize=SIZE, layout="constrained")
    axes.set_title(title)
    axes.set_ylabel(facts.metric)
    axes.grid(alpha=0.3)
    match figure.kind:
        case "frontier":
            _compression(axes, lines(chosen))
        case "curves":
            _curves(axes, chosen)
        case "lines":
            _lines(axes, figure, chosen)
    canvas.savefig(path, dpi=150)
    plt.close(canvas)
    return path


def _compression(axes: Axes, rows: list[Line]) -> None:
    shown = [row for row in rows if row.ratio is not None]
    for row in shown:
        assert row.ratio is not None
        colour, marker = STYLE[row.method]
        loud = row.method in FAMILY
        axes.errorbar(
            row.ratio.total, row.mean, yerr=row.error, fmt=marker, color=colour, capsize=3,
            markersize=10 if loud else 7, markeredgecolor="black" if loud else colour,
            zorder=4 if loud else 3,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("compression of the run: uncompressed bytes over these, harmonic mean of up and down")
    axes.margins(x=0.15, y=0.1)
    points = [(r.ratio.total, r.mean, r.name, STYLE[r.method][0]) for r in shown if r.ratio]
    labels.place(axes, points)


def _curves(axes: Axes, chosen: list[Outcome]) -> None:
    for outcome in chosen:
        series = [_by_epoch(run.folder, run.facts) for run in outcome.runs]
        at = [epoch for epoch, _ in series[0]]
        values = [[curve[i][1] for curve in series if i < len(curve)] for i in range(len(at))]
        means, errors = [statistics.mean(v) for v in values], [standard_error(v) for v in values]
        colour, marker = STYLE[outcome.row.config.method]
        axes.errorbar(at, means, yerr=errors, color=colour, marker=marker, capsize=3, label=outcome.row.name)
    axes.set_xlabel("epochs")
    axes.legend()


def _by_epoch(folder: Path, facts: Any) -> list[tuple[float, float]]:
    done = records.read(folder / "records.jsonl")
    evaluated = [r for r in done if facts.metric in r.metrics]
    return [((r.round + 1) / facts.rounds_per_epoch, r.metrics[facts.metric]) for r in evaluated]


def _lines(axes: Axes, figure: Figure, chosen: list[Outcome]) -> None:
    groups: dict[str, list[tuple[float, Line]]] = {}
    for outcome, line in zip(chosen, lines(chosen), strict=True):
        value = float(getattr(outcome.row.config, figure.x))
        groups.setdefault(_group(outcome, figure.by), []).append((value, line))
    for i, (name, points) in enumerate(groups.items()):
        points.sort(key=lambda point: point[0])
        colour, marker = STYLE.get(name, (f"C{i}", "os^Dvp"[i % 6]))
        axes.errorbar(
            [x for x, _ in points], [line.mean for _, line in points],
            yerr=[line.error for _, line in points], color=colour, marker=marker, capsize=3, label=name,
        )  # fmt: skip
    if figure.x in ("dim", "participation"):
        axes.set_xscale("log", base=2)
        ticks = sorted({x for points in groups.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.set_xlabel(
        {"dim": "d", "participation": "share of the asked clients that come"}.get(figure.x, figure.x)
    )
    axes.legend()


def _group(outcome: Outcome, by: str) -> str:
    """The line that a row is a point of; by "name": what stands before " @ " in its name."""
    row = outcome.row
    return row.name.split(" @ ")[0] if by == "name" else str(getattr(row.config, by))
