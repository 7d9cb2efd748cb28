"""An experiment: a file studies/experiments/NAME.toml with a study for each scale, and pictures to draw.

title = "..."
about = "..."                 what its clients hold and how they come, for the page of results; or left out
[[figure]]                    kind = "frontier", "curves", "lines" (`figures`), "narrow", "bits" or "liars"
[[claim]], [[published]]      what is to be judged, and the paper's own rows, see `claims`
[small]                       a study (see `narrowcast_studies.study`) that this machine can run; its rows are
                              run in the order of the file, and `about` may stand here too
[medium]                      a longer one, over several sessions; rows of one name ask the same
[paper]                       the same with the paper's own settings
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from narrowcast.errors import ConfigError
from narrowcast.runs import read_toml
from narrowcast_studies import study
from narrowcast_studies.reproduce import claims
from narrowcast_studies.reproduce.claims import Claim, Published
from narrowcast_studies.study import Study

FOLDER = Path("studies") / "experiments"
SCALES = ("small", "medium", "paper")  # each larger than the one before
SMOKE_ROUNDS = 2


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture. `rows` restricts it to some rows, by name."""

    kind: Literal["frontier", "curves", "lines", "narrow", "bits", "liars"]
    x: str = "bytes"  # frontier: bytes or compression; lines: a setting, such as dim
    by: str = "method"  # lines: what the lines are; "name": the rows' names up to " @ "
    within: Annotated[float, Meta(ge=0)] = 0.01  # bits: of the best row in float32
    rows: Annotated[list[str], Meta(min_length=1)] | None = None
    name: str = ""  # of the file; the kind, where nothing is said
    title: str = ""  # the experiment's, where nothing is said

    @property
    def file(self) -> str:
        return f"{self.name or self.kind}.png"


@dataclass(frozen=True)
class Experiment:
    name: str
    scale: str
    study: Study
    figures: list[Figure]
    claims: list[Claim]  # about rows that have their names at some scale
    published: list[Published]
    about: str = ""

    @property
    def runs(self) -> Path:
        return Path("runs") / f"{self.name}-{self.scale}"

    @property
    def results(self) -> Path:
        folder = FOLDER / "results" / self.name
        return folder if self.scale == "small" else folder / self.scale


def names() -> list[str]:
    """The experiments there are: files that have a table for a scale."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        if any(scale in read_toml(path) for scale in SCALES):
            found.append(path.stem)
    return found


def scales(name: str) -> list[str]:
    """Those that the experiment has, the largest first."""
    table = read_toml(_path(name))
    return [scale for scale in reversed(SCALES) if isinstance(table.get(scale), dict)]


def _path(name: str) -> Path:
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(["table1", *names()])
        raise ConfigError(f"there is no {path}: run this in a clone of narrowcast, with one of {known}")
    return path


def load(name: str, scale: str) -> Experiment:
    """The experiment at a scale, every row and figure of it checked."""
    path = _path(name)
    table = read_toml(path)
    if scale not in SCALES or not isinstance(table.get(scale), dict):
        there = [s for s in SCALES if s in table]
        raise ConfigError(f"{path} has no scale {scale!r}: it has {', '.join(there) or 'none'}")
    shared = {"title": table.get("title", name)}
    own = {key: value for key, value in table[scale].items() if key != "about"}
    planned = study.parse({**shared, **own}, f"{path} [{scale}]")
    try:
        figures = msgspec.convert(table.get("figure", []), list[Figure])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [[figure]]: {error}") from None
    said, published = claims.parse(table, str(path))
    rows = {row.name for row in planned.rows} | _named(table)
    _known(path, "figure", {name for figure in figures for name in figure.rows or []} - rows)
    _known(path, "claim", {name for claim in said for pair in claim.pairs for name in pair} - rows)
    if wrong := sorted({scale for claim in said for scale in claim.reasons} - {"", *SCALES}):
        raise ConfigError(f"{path}: a claim's why is of scales that are none: {', '.join(wrong)}")
    about = table[scale].get("about", table.get("about", ""))
    if not isinstance(about, str):
        raise ConfigError(f"{path}: about is a text, got {about!r}")
    return Experiment(name, scale, planned, figures, said, published, about)


def _named(table: dict[str, Any]) -> set[str]:
    """The names of rows of all scales: a claim may be about one that only a larger scale has."""
    tables = [table[scale] for scale in SCALES if isinstance(table.get(scale), dict)]
    given = [run for each in tables for run in each.get("run", []) if isinstance(run, dict)]
    runs = [row for run in given for row in study.every(run)]
    return {str(run["name"]) for run in runs if "name" in run}


def _known(path: Path, what: str, unknown: set[str]) -> None:
    if unknown:
        raise ConfigError(f"{path}: a {what} names rows that are none: {', '.join(sorted(unknown))}")


def smoke(experiment: Experiment, changes: dict[str, Any]) -> Experiment:
    """The same rows for a few rounds and one seed, to see that all of it runs; its numbers mean nothing."""
    short: dict[str, Any] = {"rounds": SMOKE_ROUNDS, "epochs": None, "evaluate_every": 0, **changes}
    rows = [replace(row, config=row.config.model_copy(update=short)) for row in experiment.study.rows]
    planned = replace(experiment.study, rows=rows, seeds=[0], tuning=None)
    return replace(experiment, name=f"{experiment.name}-smoke", study=planned)
