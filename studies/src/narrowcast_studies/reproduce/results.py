"""What an experiment leaves behind, from its run folders alone: a page, a CSV, the runs, the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from narrowcast import files
from narrowcast.files import write_atomically
from narrowcast.rounds import records
from narrowcast.runs import Summary, run_folder
from narrowcast.units import format_seconds
from narrowcast_studies import study
from narrowcast_studies.reproduce import figures, table
from narrowcast_studies.reproduce.experiment import Experiment
from narrowcast_studies.study import Outcome


def write(experiment: Experiment, runs: Path, folder: Path, command: str) -> str | None:
    """The page, also written to folder/README.md; None: no row is complete yet."""
    outcomes, missing = study.collect(experiment.study, runs)
    if not table.lines(outcomes):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        figure.file
        for figure in experiment.figures
        if figures.draw(experiment, figure, outcomes, folder / figure.file)
    ]
    page = table.markdown(experiment.study, outcomes, command, files.commit() or "unknown", missing)
    pictures = "".join(f"\n![{Path(name).stem}]({name})\n" for name in drawn)
    spent = sum(run.seconds for o in outcomes for run in o.runs)
    page += f"{pictures}\nThe final runs took {format_seconds(spent)} of one core together.\n"
    write_atomically(folder / "README.md", page.encode())
    write_atomically(folder / "results.csv", table.as_csv(outcomes).encode())
    lines = [msgspec.json.encode(_record(o, run)) for o in outcomes for run in o.runs]
    write_atomically(folder / "runs.jsonl", b"\n".join(lines) + b"\n")
    return page


def _record(outcome: Outcome, run: Summary) -> dict[str, Any]:
    """A final run in one line: what it was asked, and what came of it."""
    done = records.read(run.folder / run_folder.RECORDS)
    return {
        "row": outcome.row.name,
        "seed": run.facts.seed,
        "commit": run.facts.commit or f"before it was recorded, narrowcast {run.facts.narrowcast}",
        "seconds": round(run.seconds, 1),
        "config": run_folder.load_config(run.folder).model_dump(exclude_none=True, exclude={"data"}),
        "parameters": run.facts.parameters,
        "metric": run.facts.metric,
        "higher_is_better": run.facts.higher_is_better,
        "rounds": run.rounds,
        "bytes_up": run.up,
        "bytes_down": run.down,
        "down_first": run.down_first,
        "down_dense": run.down_dense,
        "dropped": run.dropped,
        "untrained": outcome.untrained.get(run.facts.seed, {}),
        "curve": {r.round + 1: r.metrics for r in done if r.metrics},
    }
