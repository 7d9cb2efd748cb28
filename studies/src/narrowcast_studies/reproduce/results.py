"""What an experiment leaves behind, from run folders and committed lines: a page, a CSV, runs, pictures."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from narrowcast import files
from narrowcast.files import write_atomically
from narrowcast.units import format_seconds
from narrowcast_studies import ran
from narrowcast_studies.conducting import Known
from narrowcast_studies.reproduce import figures, table
from narrowcast_studies.reproduce.committed import PAGE, RUNS, TABLE
from narrowcast_studies.reproduce.experiment import Experiment


def keep(rows: list[Known], folder: Path) -> None:
    """runs.jsonl: every run that came to its end, of rows that are not complete too; to go on from it.

    Such a row keeps all the lines that it has: it may not have come to ask for them yet.
    """
    lines: dict[bytes, bytes] = {}  # a tuning run that rows share is the first one's
    waiting = {row.row.name for row in rows if row.outcome is None}
    there = [(run.row, run) for run in ran.read(folder / RUNS) if run.row in waiting]
    for name, run in [(row.row.name, run) for row in rows for run in row.runs] + there:
        nameless, named = (ran.to_line(replace(run, row=word)) for word in ("", name))
        lines.setdefault(nameless, named)
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / RUNS, b"\n".join(lines.values()) + b"\n")


def write(experiment: Experiment, rows: list[Known], folder: Path, command: str) -> str | None:
    """The page, also written to folder/README.md; None: no row is complete yet."""
    keep(rows, folder)
    outcomes = [row.outcome for row in rows if row.outcome]
    if not table.lines(outcomes):
        return None
    drawn = [
        figure.file
        for figure in experiment.figures
        if figures.draw(experiment, figure, outcomes, folder / figure.file)
    ]
    missing = [_missing(row, len(experiment.study.seeds)) for row in rows if not row.outcome]
    page = table.markdown(experiment.study, outcomes, command, files.commit() or "unknown", missing)
    pictures = "".join(f"\n![{Path(name).stem}]({name})\n" for name in drawn)
    spent = sum(run.seconds for o in outcomes for run in o.runs)
    hidden = sum(run.private for o in outcomes for run in o.runs)
    but = f", without the {hidden} that are private and tell no times" if hidden else ""
    page += f"{pictures}\nThe final runs took {format_seconds(spent)} of one core together{but}.\n"
    write_atomically(folder / PAGE, page.encode())
    write_atomically(folder / TABLE, table.as_csv(outcomes).encode())
    return page


def _missing(row: Known, seeds: int) -> str:
    """The row's name, and how many of its seeds have ended at the rate that it is run at."""
    done = [run for run in row.runs if not run.tuning and row.next and run.config["lr"] == row.next.lr]
    return f"{row.row.name} ({len(done)} of {seeds} seeds)" if done else row.row.name
