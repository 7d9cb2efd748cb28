"""The results as tables: for the terminal and as Markdown. Reads results only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from narrowcast.tables import PlainTable, markdown_table, plain_table
from narrowcast_studies.theory.checks import Check, checks
from narrowcast_studies.theory.dimension import Quantile, proportion
from narrowcast_studies.theory.programme import KINDS, Result

BEGIN, END = "<!-- theory: begin -->", "<!-- theory: end -->"


class Grid(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]
    caption: str


def grids(results: Sequence[Result]) -> list[Grid]:
    return [
        _rho(results),
        _theorems(results),
        _path(results),
        _parts(results),
        _variance(results),
        _carried(results),
    ]


def terminal(results: Sequence[Result]) -> list[PlainTable]:
    """The two tables that answer the question, in the columns that 80 characters have room for."""
    rho, theorems = _rho(results), _theorems(results)
    shown = [
        _columns(rho, ["problem", "subspaces", "d", "rho, delta 1/2", rho.head[5], "rho, all theta0"]),
        _columns(theorems, ["problem", "subspaces", "theorem", "bound", "median", "runs within", "verdict"]),
    ]
    return [plain_table(g.head, g.rows, f"{g.title}. {g.caption}") for g in shown]


def _columns(g: Grid, names: list[str]) -> Grid:
    """Some columns, with heads that break and the problem and its subspaces in one."""
    at = [g.head.index(name) for name in names]
    head = ["problem", *(name.replace(" ", "\n", 1) for name in names[2:])]
    rows = [[f"{row[0]}, {row[1]}", *(row[i] for i in at[2:])] for row in g.rows]
    return Grid(g.title, head, rows, g.caption.split(" Reached at")[0].split(" All theta0")[0])


def markdown(results: Sequence[Result], pictures: str = "") -> str:
    """All tables; `pictures` is the folder in which the pictures lie, seen from the page."""
    parts = []
    for g in grids(results):
        parts += [f"## {g.title}", markdown_table(g.head, g.rows, left=2), g.caption]
    parts.append("## Loss against epochs")
    parts += [f"![{r.dimension.title}]({pictures}{r.spec.problem}.png)" for r in results]
    return "\n\n".join(parts) + "\n"


def page(results: Sequence[Result], command: str) -> str:
    """The Markdown beside the results."""
    return f"# Theory: bound against measured\n\n`{command}`\n\n{markdown(results)}"


def fill(text: str, results: Sequence[Result], pictures: str) -> str:
    """The docs page with its generated part made anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page has no place for the tables: one {BEGIN} ... {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n{markdown(results, pictures)}\n{END}{after}"


def _interval(q: Quantile) -> str:
    return f"{q.value:.3f} [{q.low:.3f}, {q.high:.3f}]"


def _rho(results: Sequence[Result]) -> Grid:
    s = results[0].spec
    head = ["problem", "subspaces", "d", "d/D", "rho, delta 1/2", f"rho, delta {s.delta:g}", "delta, rho 1/2",
            "rho, all theta0", "floor"]  # fmt: skip
    rows = []
    for r in results:
        n = r.spec.draws
        for row in r.dimension.rows:
            low, high = proportion(row.misses, n, r.spec.confidence)
            rows.append([
                r.spec.problem, row.kind, str(row.d), f"{row.d / r.dimension.D:.3f}",
                f"{row.median.value:.3f}",
                _interval(row.rho), f"{row.misses / n:.3f} [{low:.3f}, {high:.3f}]",
                f"> {row.worst.value:.3f}", f"{row.floor:.3f}",
            ])  # fmt: skip
    draws = ", ".join(f"{r.spec.problem} {r.spec.draws}" for r in results)
    caption = (
        f"rho at theta0 unless it says all theta0. Draws: {draws}. In brackets a lower and an upper "
        f"bound, each right with confidence {s.confidence:g} (order statistics; Clopper and Pearson for "
        "delta). All theta0: measured next to the optimum along the direction of least curvature, delta "
        f"{s.delta:g}; floor: 1 - d / (D (1 - delta)), below which no problem is."
    )
    return Grid("Intrinsic dimension", head, rows, caption)


def _theorems(results: Sequence[Result]) -> Grid:
    head = ["problem", "subspaces", "theorem", "rho", "bound", "median", "worst", "runs within", "share >",
            "promised", "steps", "reached at", "verdict"]  # fmt: skip
    s = results[0].spec
    caption = (
        "Losses and bounds: (g - g*) / (g(theta0) - g*) at the end of a run. Share >: a lower bound of the "
        f"share of runs within the bound, confidence {s.confidence:g}. Verdict: holds, when that is the "
        "promised probability or more; fails, when an upper bound of the share is below it; empty, when the "
        "bound is 1 or more, where every run begins; not refuted otherwise. Reached at: the share of "
        "the steps after which a run is first within the bound, on average. Rows of theorem 3 with rho at "
        "theta0 and for all theta0 are the two other readings, for comparison."
    )
    return Grid("Theorems", head, [_check(c) for c in checks(results)], caption)


def _check(c: Check) -> list[str]:
    n = len(c.losses)
    return [
        c.problem, c.kind, c.theorem, f"{c.rho:.3f}", f"{c.bound:.3f}", f"{statistics.median(c.losses):.3f}",
        f"{max(c.losses):.3f}", f"{c.hits}/{n}", f"{c.low:.3f}", f"{c.promised:.3f}", f"{c.steps:.0f}",
        f"{c.reached:.0%}", c.verdict,
    ]  # fmt: skip


def _path(results: Sequence[Result]) -> Grid:
    E = max(r.spec.E for r in results)
    head = ["problem", "subspaces", *(f"epoch {e + 1}" for e in range(E))]
    rows = [
        [r.spec.problem, kind, *map(_interval, r.pilots[kind].path), *[""] * (E - r.spec.E)]
        for r in results
        for kind in KINDS
    ]
    caption = (
        f"rho (delta {results[0].spec.delta:g}) at the start of each epoch of time-varying runs with keys "
        f"of their own ({results[0].spec.pilots} runs, whose bases the draws take turns over)."
    )
    return Grid("rho along the way", head, rows, caption)


def _parts(results: Sequence[Result]) -> Grid:
    """The two terms of the proofs apart: the subspace's, and the optimiser's."""
    head = ["problem", "subspaces", "method", "stages with r <= rho", "mean h - h*", "largest", "epsilon"]
    rows = []
    for r in results:
        for kind in KINDS:
            s, path = r.spec, [q.high for q in r.pilots[kind].path]
            for name, epsilon in (("static", s.epsilon), ("k-subspace", s.epsilon_k),
                                  ("time-varying", s.epsilon * s.E**0.5)):  # fmt: skip
                runs = r.trials[kind][name]
                within = [x <= rho for t in runs for x, rho in zip(t.ratios, path, strict=False)]
                gaps = [g for t in runs for g in t.gaps]
                numbers = [f"{x:.4f}" for x in (statistics.mean(gaps), max(gaps), epsilon)]
                rows.append([s.problem, kind, name, f"{sum(within)}/{len(within)}", *numbers])
    caption = (
        "r: the exact minimum over base + span(A) of a run's own A, over the excess at base; h - h*: what "
        "the run is above that minimum at the end of the stage. A stage of time-varying has epsilon sqrt(E)."
    )
    return Grid("The two terms of the proofs", head, rows, caption)


def _variance(results: Sequence[Result]) -> Grid:
    head = ["problem", "subspaces", "K", "variance, K-subspace / static", "K (1 + 1/C)"]
    rows = [
        [r.spec.problem, kind, str(K), f"{ratio:.2f}", f"{most:.2f}"]
        for r in results
        for kind in KINDS
        for K, ratio, most in r.pilots[kind].variances
    ]
    return Grid("What K subspaces do to the variance", head, rows, "At theta0, one client a step, exact.")


def _carried(results: Sequence[Result]) -> Grid:
    head = ["problem", "v", "method", "d", "numbers in an upload", "difference", "outside span(A)"]
    rows = [
        [
            r.spec.problem,
            c.v,
            c.method,
            str(c.dim),
            f"{c.numbers:g}",
            f"{c.difference:.1e}",
            f"{c.outside:.1e}",
        ]
        for r in results
        for c in r.proposition.rows
    ]
    caption = (
        "20 rounds of 8 clients. Difference: the largest distance between the theta of the simulator "
        "(float32, through encoded messages) and of the update itself (float64, A written out), over how far "
        "theta moved."
    )
    return Grid("Proposition 1", head, rows, caption)
