"""Pictures of runs: the metric against the bytes, or the time on a network, a line and a mark a run."""

from __future__ import annotations

from pathlib import Path

from narrowcast.plotting import Axes, FuncFormatter, plt
from narrowcast.runs.labels import place_labels
from narrowcast.runs.style import STYLE
from narrowcast.runs.summary import Summary
from narrowcast.units import format_bytes, format_count, format_seconds

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
MOMENTS = (
    1,
    10,
    MINUTE,
    10 * MINUTE,
    HOUR,
    10 * HOUR,
    DAY,
    10 * DAY,
    100 * DAY,
    1000 * DAY,
)  # ticks of a time


def draw(runs: list[Summary], path: Path, title: str | None = None, time: bool = False) -> Path:
    """Write the picture of the runs to `path` (the ending chooses the format); `time`: on their networks.

    Private runs tell neither bytes nor times: they have no place in it, and it says so.
    """
    every, runs = runs, [run for run in runs if run.epsilon is None]
    figure, axes = plt.subplots(figsize=(9, 5.6), layout="constrained")
    ends = [end for run in runs if (end := _one(axes, run, run.timed if time else run.curve))]
    facts = every[0].facts
    if time:
        time_axis(axes, "/".join(sorted({run.facts.network for run in runs if run.facts.network})))
    else:
        bytes_axis(axes)
    metric_axis(axes, facts.metric, facts.higher_is_better)
    model = f"{facts.task}: {format_count(facts.parameters)} parameters, {facts.clients} clients"
    axes.set_title(title or model)
    axes.grid(alpha=0.3, which="major")
    axes.margins(x=0.1, y=0.18)
    if ends:
        ways = [[(float(x), y) for x, y in (run.timed if time else run.curve)] for run in runs]
        place_labels(axes, ends, size=9, ways=ways)
    axes.text(
        0.99,
        0.02,
        _how_many(runs, len(every) - len(runs)),
        transform=axes.transAxes,
        ha="right",
        fontsize=8,
        color="#555555",
    )
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


def time_axis(axes: Axes, network: str) -> None:
    """Seconds to years from left to right, at the moments that people count in."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xticks([t for t in MOMENTS if low <= t <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_seconds(x)))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
    axes.set_xlabel(f"time of the run on the network {network}, every round until its slowest client is done")


def metric_axis(axes: Axes, metric: str, higher_is_better: bool) -> None:
    """What is measured, and where is better."""
    axes.set_ylabel(f"{metric} ({'higher' if higher_is_better else 'lower'} is better)")


def _one(
    axes: Axes, run: Summary, curve: list[tuple[int, float]] | list[tuple[float, float]]
) -> tuple[float, float, str, str] | None:
    """Draw the run; where it ends, with its name and colour."""
    if not curve:
        return None
    colour, marker = STYLE[run.facts.method]
    spent, metric = zip(*curve, strict=True)
    axes.plot(spent, metric, color=colour, linewidth=1.6, alpha=0.9)
    if run.band and curve is run.curve:
        low, high = zip(*run.band, strict=True)
        axes.fill_between(spent, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.plot(spent[-1], metric[-1], marker, color=colour, markersize=9, linestyle="none", zorder=3)
    return spent[-1], metric[-1], run.facts.label, colour


def _how_many(runs: list[Summary], private: int) -> str:
    """What a line is, so that nobody takes it for a mean; how many are not drawn."""
    hidden = f"; of {private} with differential privacy no bytes are known" if private else ""
    if any(run.band for run in runs):
        return "a line is the mean over a run's seeds, its band Student's 95 % interval" + hidden
    seeds = sorted({run.facts.seed for run in runs})
    one = f"a line is one run, seed {seeds[0]}" if len(seeds) == 1 else "a line is one run of one seed"
    return one + hidden
