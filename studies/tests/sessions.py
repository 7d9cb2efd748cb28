"""A tiny experiment on digits, and helpers for tests of work that goes over many sessions."""

import csv
import json
import re
from pathlib import Path
from typing import ClassVar

from typer.testing import CliRunner

from narrowcast.cli.app import app
from narrowcast.errors import Interrupted
from narrowcast.runs import RunConfig, run_folder, runner

STUDY = """
task = "digits"
width = 8
cohort = 100
epochs = 2
evaluate_every = 3
seeds = [0, 1]
[SCALE.tune]
seed = 100
epochs = 1
most = 3
[[SCALE.run]]
name = "static d=16"
method = "static"
dim = 16
lr = 5.0
[[SCALE.run]]
name = "uncompressed"
method = "uncompressed"
lr = 0.3
[[SCALE.run]]
name = "half as long"
method = "uncompressed"
epochs = 1
lr = 0.3
"""
CLAIM = """
title = "a test"
[[claim]]
says = "Static sends fewer bytes"
kind = "cheaper"
pairs = [["static d=16", "uncompressed"]]
why.small = "It was short."
why.medium = "It was long."
"""
FILE = CLAIM + "[small]" + STUDY.replace("SCALE", "small")
RESULTS = Path("studies/experiments/results/tiny")


def stand(folder: Path, text: str) -> Path:
    """A folder with one experiment, as a reader of the paper stands in."""
    (folder / "studies/experiments").mkdir(parents=True)
    (folder / "studies/experiments/tiny.toml").write_text(text)
    return folder


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code == 0, result.output
    return result.output


def timeless(folder: Path) -> dict[str, object]:
    """The results without how long they took and which commit made them."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    rows = csv.DictReader((folder / "results.csv").read_text().splitlines())
    page = re.sub(r"commit \w+,", "", (folder / "README.md").read_text())
    return {
        "runs": [{k: v for k, v in line.items() if k not in ("seconds", "commit")} for line in lines],
        "rows": [{k: v for k, v in row.items() if k != "seconds"} for row in rows],
        "page": page[: page.index("The final runs took")],
    }


def lines(change: dict[str, object], drop: str = "none") -> None:
    """Every line of the results with these values, but for those that have this in them."""
    path = RESULTS / "runs.jsonl"
    runs = [json.loads(line) | change for line in path.read_text().splitlines() if drop not in line]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))


class Cut:
    """Runs here, for so many rounds in all; then the deadline has come, between two rounds."""

    rounds = 10**9
    ended: ClassVar[list[str]] = []

    def __call__(self, config: RunConfig, folder: Path) -> None:
        def enough() -> bool:
            Cut.rounds -= 1
            return Cut.rounds <= 0

        if run_folder.is_run(folder):
            runner.resume(folder, until=enough)
        else:
            runner.start(config, folder, until=enough)
        if not run_folder.finished(folder):
            raise Interrupted("stopped")
        Cut.ended.append(folder.name)

    def stop(self) -> None:
        """The rounds alone decide."""
