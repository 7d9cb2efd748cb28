"""The metric against d, with the threshold and the d that was found. Reads results only."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

from narrowcast.measure.results import Measured
from narrowcast.plotting import Axes, plt
from narrowcast.runs.style import STYLE

MARKERS = "os^Dv<>pPX"


def draw(m: Measured, path: Path) -> Path:
    """A mark a probe: full where it reached the target (and stopped there), hollow where it failed."""
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    colour = STYLE[m.method][0]
    for number, s in enumerate(m.seeds):
        marker = MARKERS[number % len(MARKERS)]
        points = [(p.d, value, p.reached) for p in s.probes if (value := p.best(m.higher_is_better))]
        for d, value, reached in points:
            axes.plot(d, value, marker, color=colour, fillstyle="full" if reached else "none", markersize=8)
        axes.plot([], [], marker, color=colour, fillstyle="none", linestyle="none", label=f"seed {s.seed}")
    _lines(axes, m)
    axes.set_xscale("log")
    ticks = _ticks(sorted({p.d for s in m.seeds for p in s.probes}))
    axes.set_xticks(ticks, [str(d) for d in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"d, of D = {m.parameters:,}")
    axes.set_ylabel(f"best {m.metric} of a probe (full: reached, and stopped there)")
    axes.set_title(f"{m.task}, {m.method}, {m.subspace}: {m.metric} against d")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _ticks(dims: list[int], apart: float = 1.08) -> list[int]:
    """The d that were tried, without those too near to the one before to be read."""
    kept: list[int] = []
    room = max(apart, (dims[-1] / dims[0]) ** (1 / 20))
    for d in dims:
        if not kept or d > room * kept[-1]:
            kept.append(d)
    return kept


def _lines(axes: Axes, m: Measured) -> None:
    """The uncompressed metric, the target and the interval, as means over the seeds."""
    whole = statistics.mean(s.baseline.best for s in m.seeds)
    target = statistics.mean(s.target for s in m.seeds)
    axes.axhline(whole, color="#333333", linewidth=1, label=f"uncompressed ({whole:.3f})")
    axes.axhline(
        target, color="#333333", linewidth=1, linestyle="--", label=f"{m.threshold:.0%} of it ({target:.3f})"
    )
    if m.interval is None:
        return
    found = m.interval
    axes.axvline(found.d, color="#d62728", linewidth=1.2, label=f"d = {found.d:.0f}")
    if math.isfinite(found.high):
        axes.axvspan(found.low, found.high, color="#d62728", alpha=0.12, linewidth=0, label="95 % interval")
