"""A study of three short rows, and a way to run them that remembers what it ran."""

from pathlib import Path

from narrowcast.runs import RunConfig, attempts
from narrowcast_studies import conducting, study
from narrowcast_studies.ledger import Ledger
from narrowcast_studies.study import Outcome, Study

TINY = """
title = "digits: a try"
task = "digits"
width = 8
cohort = 60
epochs = 1
evaluate_every = 0
seeds = [0, 1]
[tune]
seed = 7
epochs = 0.4
[[run]]
name = "ours"
method = "static"
dim = 32
lr = 10.0
[[run]]
name = "plain"
method = "uncompressed"
lr = 0.3
[[run]]
name = "plain, half as long"
method = "uncompressed"
epochs = 0.5
lr = 0.3
"""


class Counting:
    """Runs in this process, and remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[RunConfig] = []

    def __call__(self, config: RunConfig, folder: Path) -> None:
        self.ran.append(config)
        attempts.in_process(config, folder)


def tiny(folder: Path, text: str = TINY) -> Study:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(text)
    return study.load(folder / "tiny.toml")


def collected(plan: Study, runs: Path) -> tuple[list[Outcome], list[str]]:
    """(what became of the rows that are complete, the names of the others), from the folders alone."""
    rows = conducting.collect(plan, Ledger(runs))
    return [row.outcome for row in rows if row.outcome], [row.row.name for row in rows if not row.outcome]
