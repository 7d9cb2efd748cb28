"""The runs of a study that came to their end: in folders of this machine, or as lines that were committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from narrowcast.runs import RunConfig, attempts, run_folder, summarise
from narrowcast_studies import ran, untrained
from narrowcast_studies.ran import Metrics, Ran


@dataclass(frozen=True)
class Going:
    """A run that was begun here, and has not ended."""

    rounds: int
    of: int
    seconds: float


class Ledger:
    """A line counts as its run does: on another machine nothing is repeated.

    A line is that of a run where every setting that is asked for is the line's, as on the page of results.
    """

    def __init__(self, runs: Path, lines: Iterable[Ran] = ()) -> None:
        self.runs = runs
        self._lines = [(line.asked, line) for line in lines]
        self._read: dict[str, Ran] = {}  # what folders said: an end is final

    def folder(self, config: RunConfig) -> Path:
        return self.runs / attempts.folder_of(config)

    def find(self, config: RunConfig, row: str) -> Ran | None:
        """The run with these settings, which the row asks for; None: it has not come to its end."""
        folder = self.folder(config)
        if folder.name not in self._read and attempts.outcome(folder) is not None:
            attempts.agree(config, folder, "remove it")
            before = {} if config.validation else self.before(config)
            self._read[folder.name] = ran.from_folder(folder, row, before)
        return self._read.get(folder.name) or self._line(config)

    def _line(self, config: RunConfig) -> Ran | None:
        plain = config.model_copy(update={"data": None})  # where its data lay changes no run
        what = (config.seed, config.lr, config.method)
        return next(
            (
                line
                for asked, line in self._lines
                if (asked.seed, asked.lr, asked.method) == what and plain.agrees_with(asked)
            ),
            None,
        )

    def before(self, config: RunConfig) -> Metrics:
        """The metrics of the untrained model; {}: not known."""
        if found := untrained.known(config, self.runs):
            return found
        return next((line.untrained for asked, line in self._lines if _begin_alike(config, asked, line)), {})

    def measured(self, config: RunConfig) -> Metrics:
        """The same, measured here unless it is known."""
        return self.before(config) or untrained.measured(config, self.runs)

    def going(self, config: RunConfig) -> Going | None:
        """How far the run got that was begun here; None: it was not, or it has ended."""
        folder = self.folder(config)
        if not run_folder.is_run(folder) or attempts.outcome(folder) is not None:
            return None
        run = summarise(folder)
        return Going(run.rounds, run.facts.rounds, run.seconds)


def _begin_alike(config: RunConfig, asked: RunConfig, line: Ran) -> bool:
    """Whether the line's run began with the model and the test set of this one."""
    if not line.untrained or (asked.task, asked.seed) != (config.task, config.seed):
        return False
    names = untrained.decisive() - {"data"}
    mine, theirs = config.model_dump(include=names, exclude_none=True), asked.model_dump(include=names)
    return all(theirs[name] == value for name, value in mine.items())
