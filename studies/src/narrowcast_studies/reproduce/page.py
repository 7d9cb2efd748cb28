"""docs/results.md: every experiment with its pictures and its claims, from the committed results alone."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from narrowcast.errors import ConfigError
from narrowcast.files import write_atomically
from narrowcast.tables import markdown_table
from narrowcast_studies.reproduce import experiment, sections, words
from narrowcast_studies.reproduce.claims import Judged
from narrowcast_studies.reproduce.sections import Section

PAGE = Path("docs/results.md")
ORDER = (
    "table1", "cifar10", "sst2", "personachat", "lora", "trend-*", "combination", "baselines-mlp",
    "baselines-*", "participation", "matrix", "*",
)  # fmt: skip
VERDICT = "Verdict: "
OPENING = """
`narrowcast reproduce results` writes this page, every word of its verdicts included, from the files and the
results of `studies/experiments/`; [how claims are judged](#how-claims-are-judged) stands below the tables.
"""
PREFACE = """
A claim is a list of pairs of rows; its verdict is computed from their results, which stand below it. A pair
is judged within one scale, the largest at which both rows are complete, over the same seeds; where an
experiment has results of several, the last column says which. Two rows are compared seed by seed, for with
a seed they share the first model, the clients and who comes when: the column "difference" is the mean m of
the differences in favour of the first row, +- e, the half width of Student's 95 % interval. The first row
is ahead where m - e > 0, within so much of the other where m - e is above minus that much, and cheaper
where its whole run takes fewer bytes, up and down together; open is what the seeds do not settle, and in
brackets stands how many would, if m and the scatter of the differences stayed as they are. A row of which a
seed diverged is never ahead or within; it is behind where the mean of its others is, and open otherwise. A
claim holds where every pair says yes, holds in part where some do, is open where the seeds settle none of
its pairs, and does not hold here otherwise; it is run in part where rows of some pairs are missing. The
runs are small: orderings and margins are judged, not the paper's absolute numbers. Three seeds make wide
intervals (e is 4.3 standard errors); of pairs without a difference one in twenty is settled nevertheless,
by chance. What e does not contain: that all runs are judged by the same test set, and that a row's rate was
found by one tuning seed on a coarse grid. The rule was sharpened once when most results were known: before,
two rows were taken for independent, and the limit was twice the standard error. Rows that were run before
messages had their present form count some thirty bytes a message more, less than a hundredth from d = 1 024
on. Reasons given below a verdict are explanations, not tested.
"""


def write(path: Path = PAGE) -> str:
    """The page, also written to `path`."""
    page = text()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return page


def text() -> str:
    """The page, its links as from the folder docs/."""
    known = names()
    if known == ["table1"]:
        raise ConfigError(
            f"there are no experiments in {experiment.FOLDER}/: run this in a clone of narrowcast"
        )
    found = {name: sections.table1() if name == "table1" else sections.section(name) for name in known}
    done = [section for section in found.values() if section is not None]
    papers = [(s, j) for s in done for j in s.judged if j.claim.where.startswith("the paper")]
    others = [(s, j) for s in done for j in s.judged if not j.claim.where.startswith("the paper")]
    parts = [
        "# What was measured",
        sections.filled(OPENING),
        *words.in_short(done),
        *_missing([name for name, section in found.items() if section is None]),
        *_summary("## The paper's claims", papers),
        *_summary("## Claims of other methods, and questions of our own", others),
        "## How claims are judged",
        sections.filled(PREFACE),
        *(section.text for section in done),
        *_by_scripts(),
    ]
    return "\n\n".join(parts) + "\n"


def names() -> list[str]:
    """table1 and the experiments there are, in the order of the page."""

    def place(name: str) -> int:
        return next(i for i, pattern in enumerate(ORDER) if fnmatch.fnmatch(name, pattern))

    return sorted(["table1", *experiment.names()], key=place)


def _missing(names: list[str]) -> list[str]:
    commands = ", ".join(f"{name} (`narrowcast reproduce {name}`)" for name in names)
    return [f"Not run yet: {commands}."] if names else []


Judgements = list[tuple[Section, Judged]]


def _by_scripts() -> list[str]:
    """What programs beside `narrowcast reproduce` wrote, results/NAME.md: titles, and verdicts if any."""
    lines = []
    for path in sorted((experiment.FOLDER / "results").glob("*.md")):
        title, *parts = path.read_text().split("\n\n")
        verdict = next((part.strip() for part in parts if part.startswith(VERDICT)), "")
        said = f": {' '.join(verdict.removeprefix(VERDICT).split())}" if verdict else ""
        lines.append(f"- [{title.removeprefix('# ')}](../{path.as_posix()}){said}")
    return ["## Measured by programs of their own", "\n".join(lines)] if lines else []


def _summary(heading: str, judged: Judgements) -> list[str]:
    """A line a claim; what several experiments ask is one claim."""
    rows: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for section, one in judged:
        _, verdicts = rows.setdefault(one.claim.says, (one.claim.where or "-", {}))
        verdicts.setdefault(one.verdict, []).append(f"[{section.name}](#{section.name}){one.share}")
    table = [
        [says, where, "; ".join(f"**{verdict}**: {', '.join(links)}" for verdict, links in verdicts.items())]
        for says, (where, verdicts) in rows.items()
    ]
    return [heading, markdown_table(["claim", "where", "verdict"], table, left=3)] if table else []
