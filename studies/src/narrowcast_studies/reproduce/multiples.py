"""Small multiples of a grid of rows: a panel for every attack and partition, the metric against the share of
clients that lie, a line for every rule, a cross on the lower border where all seeds diverged. Honest rows
stand at zero in every panel; bars: standard errors."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from narrowcast.plotting import plt
from narrowcast_studies.reproduce.table import Line, all_lines
from narrowcast_studies.study import Outcome

PANEL = (3.0, 2.8)  # inches
HOLDS = {"class": "one class a client", "iid": "any classes"}
MARKS = "osD^vPX"


def draw(outcomes: list[Outcome], path: Path, title: str) -> Path | None:
    """Write the picture; None where no row has clients that lie."""
    every = zip(outcomes, all_lines(outcomes), strict=True)
    marks = [(o, line) for o, line in every if line.values or line.diverged]
    attacks = list(dict.fromkeys(o.row.config.attack for o, _ in marks if o.row.config.attackers))
    parts = list(dict.fromkeys(o.row.config.partition or "" for o, _ in marks if o.row.config.attackers))
    if not attacks:
        return None
    rules = list(dict.fromkeys(o.row.config.aggregate for o, _ in marks))
    size = (PANEL[0] * len(attacks), PANEL[1] * len(parts))
    figure, grid = plt.subplots(
        len(parts), len(attacks), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for part, row in zip(parts, grid, strict=True):
        for attack, axes in zip(attacks, row, strict=True):
            _panel(axes, [(o, line) for o, line in marks if _belongs(o, part, attack)], rules)
            axes.set_title(f"{attack}, {HOLDS.get(part, part)}", fontsize=9)
        row[0].set_ylabel(next(o.runs[0].metric for o, _ in marks if o.runs))
    for axes in grid[-1]:
        axes.set_xlabel("share of clients that lie")
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(rules), frameon=False)
    figure.suptitle(f"{title} (x: diverged)" if any(not line.values for _, line in marks) else title)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _belongs(o: Outcome, part: str, attack: str) -> bool:
    config = o.row.config
    return config.partition == part and (not config.attackers or config.attack == attack)


def _panel(axes: Axes, marks: list[tuple[Outcome, Line]], rules: list[str]) -> None:
    axes.grid(alpha=0.3)
    for i, rule in enumerate(rules):
        mine = [(o.row.config.attackers, line) for o, line in marks if _rule(o) == rule]
        found = sorted((share, line.mean, line.error) for share, line in mine if line.values)
        lost = [share for share, line in mine if not line.values]
        axes.plot(lost, [0.04] * len(lost), "x", color=f"C{i}", transform=axes.get_xaxis_transform())
        at, means, errors = zip(*found, strict=True) if found else ((), (), ())
        axes.errorbar(
            at, means, yerr=errors, color=f"C{i}", marker=MARKS[i % len(MARKS)], markersize=4, capsize=2,
            linewidth=1.2, label=rule,
        )  # fmt: skip


def _rule(o: Outcome) -> str:
    return o.row.config.aggregate
