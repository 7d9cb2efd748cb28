"""The picture: the metric against the bytes of the run, one mark a run, with the way it took."""

from __future__ import annotations

from pathlib import Path

from narrowcast.plotting import Axes, FuncFormatter, plt
from narrowcast.runs.style import STYLE
from narrowcast.runs.summary import Summary
from narrowcast.units import format_bytes, format_count


def draw(runs: list[Summary], path: Path, title: str | None = None) -> Path:
    """Write the picture of the runs to `path` (the ending chooses the format)."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for run in runs:
        _one(axes, run)
    facts = runs[0].facts
    bytes_axis(axes)
    axes.set_ylabel(facts.metric)
    axes.set_title(
        title or f"{facts.task}: {format_count(facts.parameters)} parameters, {facts.clients} clients"
    )
    axes.grid(alpha=0.3, which="major")
    axes.legend(loc="best", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def bytes_axis(axes: Axes) -> None:
    """Bytes of a run from left to right, in powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_bytes(x)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
    axes.set_xlabel("bytes of the run, up and down, all clients")


def _one(axes: Axes, run: Summary) -> None:
    if not run.curve:
        return
    color, marker = STYLE[run.facts.method]
    spent, metric = zip(*run.curve, strict=True)
    axes.plot(spent, metric, color=color, linewidth=1, alpha=0.45)
    if run.band:
        low, high = zip(*run.band, strict=True)
        axes.fill_between(spent, low, high, color=color, alpha=0.12, linewidth=0)
    axes.plot(
        spent[-1], metric[-1], marker, color=color, markersize=9, label=run.facts.label, linestyle="none"
    )
