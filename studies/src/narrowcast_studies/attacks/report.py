"""Write what a study of attacks found: results.json, a CSV, pictures, a page of tables, the documentation."""

from __future__ import annotations

import os
from pathlib import Path

from narrowcast.files import write_atomically
from narrowcast_studies.attacks import page as pages
from narrowcast_studies.attacks import plot, results, table
from narrowcast_studies.attacks.results import Summary
from narrowcast_studies.attacks.table import terminal

__all__ = ["terminal", "write"]


def write(summary: Summary, cases: Path, out: Path, command: str, page: Path | None = None) -> None:
    """Everything into `out`; the documentation to `page`, if asked for."""
    out.mkdir(parents=True, exist_ok=True)
    results.write(out / "results.json", summary)
    _text(out / "results.csv", table.as_csv(summary))
    _text(out / "README.md", pages.tables(summary, command))
    attacks = dict.fromkeys(r.case.attack for r in summary.results)
    for attack in attacks:
        plot.grid(summary, cases, attack, out / f"grid-{attack}.png")
    plot.over_d(summary, out / "dimension.png")
    plot.over_rounds(summary, out / "rounds.png")
    if page:
        page.parent.mkdir(parents=True, exist_ok=True)
        _text(page, pages.page(summary, command, _link(out, page)))


def _text(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


def _link(out: Path, page: Path) -> str:
    """The folder of the pictures as the page names it."""
    return Path(os.path.relpath(out, page.parent)).as_posix()
