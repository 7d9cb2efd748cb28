"""A measurement as tables, for the terminal and as Markdown. Reads results only."""

from __future__ import annotations

import math
from typing import NamedTuple

from narrowcast.measure import rules
from narrowcast.measure.results import Measured, Probe, Seed
from narrowcast.tables import PlainTable, markdown_table, plain_table


class Grid(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]
    caption: str


def answer(m: Measured) -> str:
    """The result in a sentence."""
    share = f"{100 * m.threshold:g} % of the uncompressed {m.metric}"
    what = f"{m.task}, {m.method} with {m.subspace}, D = {m.parameters:,}"
    found = m.interval
    if found is None:
        missed = len(m.seeds) - len(m.dims)
        return f"{what}: {missed} of {len(m.seeds)} seeds reached {share} at no d, not even at d = D."
    if not math.isfinite(found.high):
        return f"{what}: {share} takes d = {m.dims[0]}, by one seed."
    return (
        f"{what}: {share} takes d = {found.d:.0f} (geometric mean of {len(m.seeds)} seeds; 95 % interval "
        f"{found.low:.0f} to {found.high:.0f}, seeds from {found.least} to {found.most}, each to a factor "
        f"{m.tolerance:g}), 1 in {m.parameters / found.d:.0f} of the parameters."
    )


def by_seed(m: Measured) -> Grid:
    head = ["seed", "uncompressed", "target", "d", "failed", "d/D", "probes", "rounds of them"]
    caption = (
        f"d reached the target, the largest d below it that was tried failed; they are within a factor "
        f"{m.tolerance:g}. Uncompressed: the best evaluation. {m.rounds} rounds ({m.epochs:g} epochs) a run, "
        "less where a probe was decided earlier."
    )
    return Grid("By seed", head, [_seed(m, s) for s in m.seeds], caption)


def _seed(m: Measured, s: Seed) -> list[str]:
    budget = sum(run.rounds for p in s.probes for run in p.runs)
    used = sum(p.used for p in s.probes)
    return [
        str(s.seed),
        f"{s.baseline.best:.4f}",
        f"{s.target:.4f}",
        "-" if s.d is None else str(s.d),
        str(s.failed or "-"),
        "-" if s.d is None else f"{s.d / m.parameters:.5f}",
        str(len(s.probes)),
        f"{used} of {budget}",
    ]


def probes(m: Measured) -> Grid:
    head = ["d", "lr", *(f"seed {s.seed}" for s in m.seeds)]
    asked = [{p.d: p for p in s.probes} for s in m.seeds]
    rows = []
    for d in sorted({d for by_d in asked for d in by_d}):
        rates = sorted({rate for by_d in asked if d in by_d for rate in by_d[d].rates})
        cells = [_cell(m, by_d[d]) if d in by_d else "" for by_d in asked]
        rows.append([str(d), ", ".join(f"{rate:g}" for rate in rates), *cells])
    caption = f"Best {m.metric} of a probe, + where it reached the target, and the rounds it took."
    return Grid("Probes", head, rows, caption)


def _cell(m: Measured, p: Probe) -> str:
    best = p.best(m.higher_is_better)
    value = "diverged" if best is None else f"{best:.4f}"
    return f"{value}{' +' if p.reached else ''} ({p.used})"


def terminal(m: Measured) -> list[PlainTable]:
    return [plain_table(g.head, g.rows, f"{g.title}. {g.caption}") for g in (probes(m), by_seed(m))]


def markdown(m: Measured, pictures: str = "", level: str = "##") -> str:
    """All of it; `pictures` is the folder of the picture, seen from the page."""
    parts = [answer(m), f"![{m.metric} against d]({pictures}measure.png)"]
    for g in (by_seed(m), probes(m)):
        parts += [f"{level} {g.title}", as_markdown(g), g.caption]
    return "\n\n".join(parts) + "\n"


def as_markdown(g: Grid) -> str:
    names = all(not row[0][:1].isdigit() for row in g.rows)
    return markdown_table(g.head, g.rows, left=int(names))


def page(m: Measured, command: str) -> str:
    """The Markdown beside the results."""
    return f"# Intrinsic dimension: {m.task}\n\n`{command}`\n\n{markdown(m)}\n## Rules\n\n{stated(m)}\n"


def stated(m: Measured) -> str:
    """The rules that were used, from their own constants."""
    settings = ", ".join(f"{name} {value}" for name, value in m.settings.items())
    rates = sorted({rate for s in m.seeds for rate in s.baseline.rates})
    return (
        f"Target: {m.threshold:g} of the best evaluation of an uncompressed run of the same seed and budget "
        f"(lr {', '.join(f'{r:g}' for r in rates)}). A probe succeeds at the first evaluation that reaches "
        f"it. It fails when its rounds are spent, or from {rules.HALF:.0%} of them on when its best, plus "
        f"{rules.HOPE:g} times the pace since half the rounds so far up to the end, or {rules.MARGIN:.0%} of "
        f"the target if that is more, is still short. Settings: {settings or 'defaults'}; torch {m.torch}."
    )
