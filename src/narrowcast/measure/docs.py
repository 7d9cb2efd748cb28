"""The generated part of docs/measure.md, from committed results."""

from __future__ import annotations

from pathlib import Path

from narrowcast.measure import suggest_table, tables
from narrowcast.measure.results import Measured, read_results
from narrowcast.measure.suggest import Suggested

BEGIN, END = "<!-- measure: begin -->", "<!-- measure: end -->"


def fill(text: str, results: Path, seen: str) -> str:
    """The page with its tables made anew; `seen` is the folder of the results as the page sees it."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page has no place for the tables: one {BEGIN} ... {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n{generated(results, seen)}\n{END}{after}"


def generated(results: Path, seen: str) -> str:
    """A section for every measurement and every suggestion in the folder, with the command that made it."""
    parts = []
    for path in sorted(results.glob("*/measure.json")):
        measured, name = read_results(path, Measured), path.parent.name
        parts += [f"## {_title(measured)}", f"`{_command(path.parent / 'README.md')}`"]
        parts += [tables.markdown(measured, f"{seen}{name}/", "###").strip(), tables.stated(measured)]
    for path in sorted(results.glob("*/suggest.json")):
        suggested = read_results(path, Suggested)
        parts += [f"## {suggested.task}: what to run with so many bytes"]
        parts += [f"`{_command(path.with_suffix('.md'))}`", suggest_table.markdown(suggested).strip()]
    return "\n\n".join(parts) + "\n"


def _title(m: Measured) -> str:
    return f"{m.task}, {m.method}, {m.subspace}"


def _command(page: Path) -> str:
    """The command at the top of a page, for where results are now: some were written before they moved."""
    return page.read_text().split("`")[1].replace("--out experiments/", "--out studies/experiments/")
