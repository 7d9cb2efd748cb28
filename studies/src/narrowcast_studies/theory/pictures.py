"""Loss against epochs with the bounds drawn, a picture a problem. Reads results only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from narrowcast.plotting import plt
from narrowcast.runs import FAMILY
from narrowcast_studies.theory import bounds
from narrowcast_studies.theory.checks import epoch_bounds, path_rho
from narrowcast_studies.theory.programme import KINDS, Result
from narrowcast_studies.theory.trials import Trial

NAMES = {"dense": "uniform subspaces (dense A)", "rotation": "rotation"}


def draw(result: Result, path: Path) -> Path:
    """A column a kind of subspace: static and time-varying above, K-subspace below."""
    figure, axes = plt.subplots(2, len(KINDS), figsize=(12, 9), layout="constrained", sharey="row")
    for column, kind in enumerate(KINDS):
        _epochs(axes[0, column], result, kind)
        _k_subspace(axes[1, column], result, kind)
    for a in axes[:, 0]:
        a.set_ylabel("(g - g*) / (g(theta0) - g*)")
    for a in axes.flat:
        a.set_yscale("log")
        a.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        a.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:e}"[0] in "23457" else "")
        a.grid(alpha=0.3, which="both")
    s = result.spec
    figure.suptitle(f"{result.dimension.title}: d = {s.dim}, {s.runs} runs each, bands from 10 % to 90 %")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _band(a: Axes, x: np.ndarray, runs: list[Trial], method: str, label: str) -> None:
    colour, marker = FAMILY[method]
    low, middle, high = np.quantile([t.curve for t in runs], [0.1, 0.5, 0.9], axis=0)
    a.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    a.plot(x, middle, marker=marker, markersize=4, color=colour, label=label)


def _epochs(a: Axes, r: Result, kind: str) -> None:
    s, pilot = r.spec, r.pilots[kind]
    red, blue = FAMILY["time-varying"][0], FAMILY["static"][0]
    runs = r.trials[kind]
    last = pilot.static.count / pilot.time_varying.count
    _band(a, np.linspace(0, last, len(runs["static"][0].curve)), runs["static"], "static", "static")
    _band(a, np.arange(s.E + 1), runs["time-varying"], "time-varying", "time-varying")
    a.axhline(
        bounds.static(pilot.rho.high, 1, s.epsilon), color=blue, linestyle="--", label="theorem 1, at the end"
    )
    e = np.arange(1, s.E + 1)
    top, first = path_rho(r, kind), pilot.rho.high
    sure = [min(1.0, bounds.time_varying(top, 1, s.epsilon * s.E**0.5 / n**0.5, int(n))) for n in e]
    a.plot(e, sure, "--", color=red, label=f"theorem 3, largest rho on the way ({top:.2f}), cut at 1")
    a.plot(
        np.arange(s.E + 1), epoch_bounds(r, kind), "-.", color=red, label="theorem 3, each epoch's own rho"
    )
    wrong = [min(1.0, bounds.time_varying(first, 1, s.epsilon * s.E**0.5 / n**0.5, int(n))) for n in e]
    a.plot(e, wrong, ":", color="#555555", label=f"theorem 3, if rho stayed that of theta0 ({first:.2f})")
    a.set_xticks(range(s.E + 1))
    a.set_xlabel(f"epochs of {pilot.time_varying.count} steps (static ends after {pilot.static.count} steps)")
    a.set_title(NAMES[kind])
    a.legend(fontsize=8)


def _k_subspace(a: Axes, r: Result, kind: str) -> None:
    s, pilot, runs = r.spec, r.pilots[kind], r.trials[kind]["k-subspace"]
    colour = FAMILY["k-subspace"][0]
    _band(a, np.linspace(0, 1, len(runs[0].curve)), runs, "k-subspace", f"K-subspace, K = {s.K}")
    a.axhline(
        bounds.static(pilot.rho.high, 1, s.epsilon_k),
        color=colour,
        linestyle="--",
        label="theorem 2, at the end",
    )
    times = float(np.mean([t.factor for t in runs]))
    a.set_xlabel(
        f"steps / (K (1 + 1/C) T), T = {pilot.k_subspace.count}, K (1 + 1/C) = {times:.1f} on average"
    )
    a.legend(fontsize=8, loc="lower left")
