"""Two pictures of few bits a number.

narrow   the metric against the bytes of a run: a line along the best of float32, one of few bits
bits     the bytes of a run against its bits a number, both ways together: full where the row comes near to
         the best of float32, hollow where it does not; the bytes to that target are the lowest full mark
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from narrowcast.plotting import plt
from narrowcast.runs import bytes_axis, place_labels
from narrowcast_studies.reproduce.table import Line, lines
from narrowcast_studies.study import Outcome

WIDE, FEW = "#444444", "#c0392b"  # ink of float32 and of few bits
PLAIN = 32.0


def draw(kind: str, outcomes: list[Outcome], path: Path, title: str, by: float) -> Path | None:
    """Write the picture; None where no row is in float32, and `bits` has no target."""
    marks = list(zip(outcomes, lines(outcomes), strict=True))
    if kind == "bits" and not any(bits_of(o) == 2 * PLAIN for o in outcomes):
        return None
    run = outcomes[0].runs[0]
    figure, axes = plt.subplots(figsize=(10, 6.5), layout="constrained")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    (_frontiers if kind == "narrow" else _bytes_by_bits)(axes, marks, run.metric, run.higher_is_better, by)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def bits_of(o: Outcome) -> float:
    """Bits a number, up and down together."""
    return sum(PLAIN if bits is None else bits for bits in (o.row.config.up_bits, o.row.config.down_bits))


def frontier(rows: list[Line], higher_is_better: bool) -> list[Line]:
    """The rows that no other beats for as few bytes, by their bytes."""
    best: list[Line] = []
    for row in sorted(rows, key=lambda r: (r.up + r.down, -r.mean if higher_is_better else r.mean)):
        if not best or (row.mean > best[-1].mean if higher_is_better else row.mean < best[-1].mean):
            best.append(row)
    return best


def reaches(row: Line, target: float, higher_is_better: bool, by: float) -> bool:
    return row.mean >= target - by if higher_is_better else row.mean <= target + by


def _frontiers(
    axes: Axes, marks: list[tuple[Outcome, Line]], metric: str, higher_is_better: bool, by: float
) -> None:
    for ink, name, rows in (
        (WIDE, "float32", [line for o, line in marks if bits_of(o) == 2 * PLAIN]),
        (FEW, "few bits a number", [line for o, line in marks if bits_of(o) < 2 * PLAIN]),
    ):
        best = frontier(rows, higher_is_better)
        axes.plot([r.up + r.down for r in best], [r.mean for r in best], color=ink, alpha=0.5, label=name)
        for r in rows:
            axes.errorbar(
                r.up + r.down, r.mean, yerr=r.error or None, fmt="o", color=ink, capsize=3, zorder=4
            )
    bytes_axis(axes)
    axes.set_ylabel(metric)
    axes.margins(x=0.15, y=0.1)
    axes.legend(loc="lower right" if higher_is_better else "upper right")
    bars = [(r.up + r.down, r.mean - r.error, r.mean + r.error) for _, r in marks]
    named = [(r.up + r.down, r.mean, r.name, FEW if bits_of(o) < 2 * PLAIN else WIDE) for o, r in marks]
    place_labels(axes, named, bars)


def _bytes_by_bits(
    axes: Axes, marks: list[tuple[Outcome, Line]], metric: str, higher_is_better: bool, by: float
) -> None:
    wide = [line.mean for o, line in marks if bits_of(o) == 2 * PLAIN]
    target = (max if higher_is_better else min)(wide)
    for o, row in marks:
        ink = FEW if bits_of(o) < 2 * PLAIN else WIDE
        face = ink if reaches(row, target, higher_is_better, by) else "white"
        axes.plot(bits_of(o), row.up + row.down, "o", color=ink, markerfacecolor=face, markersize=8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log")
    axes.set_xlabel("bits a number, up and down together")
    axes.set_ylabel(f"bytes of a run; full: {metric} within {by:g} of the best in float32 ({target:.4g})")
    axes.margins(x=0.15, y=0.12)
    place_labels(axes, [(bits_of(o), r.up + r.down, r.name, "#444444") for o, r in marks], [])
