"""The results of an experiment as they were committed: what a page of results is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from narrowcast.errors import ConfigError
from narrowcast.runs import make_config
from narrowcast_studies.reproduce.table import Line, from_csv
from narrowcast_studies.study import Row, Study


class Run(msgspec.Struct, frozen=True):
    """What is needed of a line of runs.jsonl. All that were written before the metric was have accuracy."""

    row: str
    seed: int
    config: dict[str, Any]
    parameters: int
    metric: str = "accuracy"
    higher_is_better: bool = True
    curve: dict[int, dict[str, float]] = {}  # rounds -> metrics, where it was evaluated


@dataclass(frozen=True)
class Committed:
    lines: dict[str, Line]  # by the row's name, in the order of the file
    runs: list[Run]

    def of(self, study: Study) -> Committed | None:
        """What was run with the settings that the study has now; None: nothing of it."""
        rows = {row.name: row for row in study.rows}
        runs = [run for run in self.runs if run.row in rows and _asked(rows[run.row], run)]
        kept = {run.row for run in runs} | {name for name, line in self.lines.items() if not line.values}
        lines = {name: line for name, line in self.lines.items() if name in kept}
        return Committed(lines, runs) if runs else None

    @property
    def metric(self) -> str:
        return self.runs[0].metric

    @property
    def higher_is_better(self) -> bool:
        return self.runs[0].higher_is_better


def _asked(row: Row, run: Run) -> bool:
    """Whether the run is one of the row's: its rate, its seed and the place of its data aside."""
    update = {"lr": run.config["lr"], "seed": run.seed, "data": None}
    return row.config.model_copy(update=update).agrees_with(make_config(run.config))


def read(folder: Path) -> Committed | None:
    """What `results.write` left in the folder; None: nothing yet."""
    table, runs = folder / "results.csv", folder / "runs.jsonl"
    if not table.is_file() or not runs.is_file():
        return None
    try:
        lines = {line.name: line for line in from_csv(table.read_text(encoding="utf-8"))}
        known = [msgspec.json.decode(line, type=Run) for line in runs.read_bytes().splitlines() if line]
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{folder} is damaged ({error}): write it again with narrowcast reproduce {folder.name}"
        ) from None
    return Committed(lines, known) if known else None
